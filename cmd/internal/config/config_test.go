package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/gatewayfile"
	"github.com/spillway-io/spillway/cmd/internal/routerfile"
	"github.com/spillway-io/spillway/proto/schema"
	"github.com/spillway-io/spillway/router/api"
	"github.com/spillway-io/spillway/router/namespace"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gateway(t *testing.T, text string, environ []string, flags map[string]string) (*gatewayfile.File, error) {
	t.Helper()
	src := config.Source{Environ: environ, Flags: flags}
	if text != "" {
		src.File = write(t, "gateway.yaml", text)
	}
	return gatewayfile.Load(src)
}

func router(t *testing.T, text string, environ []string) (*routerfile.File, error) {
	t.Helper()
	src := config.Source{File: write(t, "router.yaml", text), Environ: environ}
	return routerfile.Load(src)
}

// problems demands an *Error on one line and returns "key: text" of each.
func problems(t *testing.T, err error) []string {
	t.Helper()
	var e *config.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an *Error", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err.Error())
	}
	var all []string
	for _, p := range e.Problems {
		all = append(all, p.Key+": "+p.Text)
	}
	return all
}

// Every key of the design's two examples is known, with the names written there.
func TestDesignExamplesLoad(t *testing.T) {
	secret := write(t, "secret", "0123456789abcdef0123456789abcdef")
	g, err := gateway(t, `
id: edge-1
region: eu
listen: 127.0.0.1:8400
ops_listen: 127.0.0.1:8500
advertise_url: ws://127.0.0.1:8400/v1/ws
nats: {urls: ["nats://127.0.0.1:4222"]}
etcd: {endpoints: ["http://127.0.0.1:2379"], prefix: /spillway/c1}
auth: {anonymous: false, hs256_secret_file: `+secret+`}
limits: {max_conns: 20000, margin: 500}
admission: {fresh_per_second: 100, fresh_burst: 200, resume_per_second: 300, moved_per_second: 500, wait: 3s, adaptive: true}
drain: {deadline: 25s, notice: 0s}
origins: []
tls: {cert_file: , key_file: }
trusted_proxies: []
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := gatewayfile.Default()
	want.ID, want.Region, want.AdvertiseURL = "edge-1", "eu", "ws://127.0.0.1:8400/v1/ws"
	want.Auth.HS256SecretFile, want.DrainNotice = secret, 0
	want.Origins, want.Proxies = []string{}, []string{}
	if !reflect.DeepEqual(*g, want) {
		t.Errorf("got  %+v\nwant %+v", *g, want)
	}
	r, err := router(t, `
id: router-1
region: eu
listen: 127.0.0.1:8390
http_listen: 127.0.0.1:8380
store: {postgres: "postgres://localhost/x"}
nats: {urls: ["nats://127.0.0.1:4222"]}
etcd: {endpoints: ["http://127.0.0.1:2379"], prefix: /spillway/c1}
namespaces: {chat: {history_size: 1000, history_ttl: 24h}, short: {history_ttl: 60s, recover: false}, plain: }
api: {keys_file: }
ops_listen: 127.0.0.1:8381
tls: {cert_file: , key_file: , client_ca_file: }
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	short := namespace.Default()
	short.HistoryTTL, short.Recover = time.Minute, false
	if r.Router.Namespaces["chat"] != namespace.Default() || r.Router.Namespaces["plain"] != namespace.Default() || r.Router.Namespaces["short"] != short {
		t.Errorf("namespaces %+v", r.Router.Namespaces)
	}
}

func TestNothingWrittenIsTheDefault(t *testing.T) {
	g, err := gateway(t, "", []string{"SPILLWAY_AUTH__ANONYMOUS=true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := gatewayfile.Default()
	want.Auth.Anonymous = true
	if !reflect.DeepEqual(*g, want) {
		t.Errorf("got %+v, want %+v", *g, want)
	}
	host, err := os.Hostname()
	if err != nil || g.ID != host {
		t.Errorf("id %q, want the host name %q (%v)", g.ID, host, err)
	}
}

func TestUnknownKeysAreNamedWithTheirFile(t *testing.T) {
	_, err := gateway(t, "auth: {anonymous: true, hs512: x}\nlimits: {max_con: 3}\nListen: 127.0.0.1:1\nport:\n",
		[]string{"SPILLWAY_LIMITS__MAX_CON=4", "SPILLWAY_NOISE=1", "PATH=/bin"}, nil)
	got := problems(t, err)
	for _, want := range []string{
		"auth.hs512: unknown key", "SPILLWAY_LIMITS__MAX_CON: unknown key", "SPILLWAY_NOISE: unknown key",
		"Listen: unknown key", "port: unknown key",
	} {
		if !contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	if !strings.Contains(err.Error(), "gateway.yaml: auth.hs512: unknown key") {
		t.Errorf("the file is not named: %v", err)
	}
	if _, err = router(t, "store: {sqlite: x}\nnamespaces: {chat: {histroy_size: 3}}\n", nil); !contains(problems(t, err), "namespaces.chat.histroy_size: unknown key") {
		t.Errorf("namespace: %v", err)
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	f := gatewayfile.Default()
	err := config.Load(config.Source{File: write(t, "gateway.yaml", `
listen: nowhere
limits: {max_conns: many, margin: 1.5}
drain: {deadline: 25}
nats: {urls: ["http://x"]}
auth: {hs256_secret_file: /does/not/exist}
tls: {cert_file: /does/not/exist}
pprof: perhaps
trusted_proxies: [10.0.0.0/8, 192.0.2.1, balancer]
origins: {a: b}
typo: 1
`)}, &f, func() error {
		return errors.Join(errors.New("limits.inbox_bytes: 0: must be positive"), errors.New("limits.max_conns: 0: told already"))
	})
	got := problems(t, err)
	for _, want := range []string{
		`listen: "nowhere": must be host:port`, `limits.max_conns: "many": must be a whole number`,
		`limits.margin: 1.5: must be a whole number`, `drain.deadline: 25: must be a duration with its unit, such as "3s" or "24h"`,
		`nats.urls: "(number 1)": must be a URL with nats:// or tls://`, `auth.hs256_secret_file: "/does/not/exist": cannot be read`,
		`pprof: "perhaps": must be true or false`, `trusted_proxies: "balancer": must be a network (10.0.0.0/8) or an address`, `typo: unknown key`, `limits.inbox_bytes: 0: must be positive`,
		`tls: "/does/not/exist": cert_file and key_file go together`,
	} {
		if !contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, strings.Join(got, "\n"))
		}
	}
	if strings.Contains(err.Error(), "told already") {
		t.Errorf("two problems for one key: %v", err)
	}
}

func TestEnvironmentOverridesFileAndFlagsBoth(t *testing.T) {
	file := "listen: 127.0.0.1:1\nregion: eu\nlimits: {max_conns: 900, margin: 9}\nauth: {anonymous: true}\nnats: {urls: [nats://file:1]}\n"
	g, err := gateway(t, file, []string{
		"SPILLWAY_LIMITS__MAX_CONNS=800", "SPILLWAY_LISTEN=127.0.0.1:2", "SPILLWAY_DRAIN__DEADLINE=7s",
		"SPILLWAY_NATS__URLS=nats://a:1, nats://b:2", "SPILLWAY_ADMISSION__ADAPTIVE=false",
	}, map[string]string{"listen": "127.0.0.1:3", "region": ""})
	if err != nil {
		t.Fatal(err)
	}
	if g.Listen != "127.0.0.1:3" || g.Region != "eu" || g.MaxConns != 800 || g.Margin != 9 ||
		g.DrainDeadline != 7*time.Second || g.Admission.Adaptive || !reflect.DeepEqual(g.NATS.URLs, []string{"nats://a:1", "nats://b:2"}) {
		t.Errorf("got %+v", *g)
	}
}

func TestProblemsNameTheVariableOrFlag(t *testing.T) {
	_, err := gateway(t, "auth: {anonymous: true}\n", []string{"SPILLWAY_DRAIN__NOTICE=soon"}, map[string]string{"ops_listen": "x"})
	text := err.Error()
	for _, want := range []string{`environment: SPILLWAY_DRAIN__NOTICE: "soon": must be a duration`, `flag: --ops-listen: "x": must be host:port`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %q", want, text)
		}
	}
}

// A service named spillway in Kubernetes must not keep its own pods from starting.
func TestVariablesOfOthersAreLetBe(t *testing.T) {
	_, err := gateway(t, "auth: {anonymous: true}\n", []string{
		"SPILLWAY_SERVER=x", "SPILLWAY_EDGE=x", "SPILLWAY_API_KEY_FILE=x",
		"SPILLWAY_SERVICE_HOST=10.0.0.1", "SPILLWAY_SERVICE_PORT=8400", "SPILLWAY_SERVICE_PORT_GRPC=8390", "SPILLWAY_PORT=tcp://10.0.0.1:8400",
		"SPILLWAY_PORT_8400_TCP=tcp://10.0.0.1:8400", "SPILLWAY_PORT_8400_TCP_ADDR=10.0.0.1", "SPILLWAY_ROUTER_SERVICE_HOST=10.0.0.2",
		"SPILLWAY_ROUTER_PORT_8390_TCP_PROTO=tcp",
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestUnreadableFilesAreOneClearLine(t *testing.T) {
	for name, text := range map[string]string{"syntax": "a: [1\nb: }", "list": "- a\n- b\n", "twice": "id: a\nid: b\n"} {
		if _, err := gateway(t, text, nil, nil); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			problems(t, err)
		}
	}
	_, err := routerfile.Load(config.Source{File: "/does/not/exist.yaml"})
	if got := err.Error(); got != "/does/not/exist.yaml: no such file or directory" {
		t.Errorf("got %q", got)
	}
}

func TestRouterStoreAndAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"store: {}\n":                                                           `store: "0 named": exactly one of postgres, postgres_file and sqlite`,
		"store: {sqlite: a, postgres: b}\n":                                     `store: "2 named": exactly one of postgres, postgres_file and sqlite`,
		"store: {postgres: a, sqlite_max_bytes: 2000000}\n":                     `store.sqlite_max_bytes: 2000000: needs store.sqlite`,
		"store: {sqlite: a, sqlite_max_bytes: 1000}\n":                          `store.sqlite_max_bytes: 1000: must be 0 or at least 1,048,576`,
		"store: {sqlite: a, sqlite_max_bytes: -5}\n":                            `store.sqlite_max_bytes: -5: must be 0 or at least 1,048,576`,
		"store: {sqlite: a}\nlisten: 0.0.0.0:1\n":                               `advertise_addr: "": must be set when listen is every address of the host`,
		"store: {sqlite: a}\nnamespaces: {chat: {durability: fast}}\n":          `namespaces.chat.durability: "fast": must be committed or none`,
		"store: {sqlite: a}\nnamespaces: {chat: {durability: async}}\n":         `namespaces.chat.durability: "async": exists no more: choose committed if events must survive their router, none if they need not`,
		"store: {sqlite: a}\ntls: {client_ca_file: " + os.DevNull + "}\n":       `tls.client_ca_file: "` + os.DevNull + `": needs tls.cert_file and tls.key_file`,
		"store: {sqlite: a}\ntls: {cert_file: " + os.DevNull + "}\n":            `tls: "` + os.DevNull + `": cert_file and key_file go together`,
		"store: {sqlite: a}\nnamespaces: {chat: {history_size: 1000000000s}}\n": `namespaces.chat.history_size: "1000000000s": must be a whole number`,
	} {
		_, err := router(t, text, nil)
		if got := problems(t, err); !contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestKeysFileIsStrictAndNeverRepeatsSecrets(t *testing.T) {
	good := write(t, "keys.yaml", "keys:\n- {name: billing, secret: 0123456789abcdef, rights: [publish, read]}\n")
	keys, err := routerfile.API{KeysFile: good}.Keys()
	if err != nil || !reflect.DeepEqual(keys, []api.Key{{Name: "billing", Secret: "0123456789abcdef", Rights: []api.Right{api.RightPublish, api.RightRead}}}) {
		t.Errorf("got %v, %v", keys, err)
	}
	for _, text := range []string{
		"keys:\n- {name: a, secret: hunter2hunter2, right: [read]}\n", "keys:\n- {name: a, secret: [hunter2hunter2]}\n",
		"- hunter2\n", "keys: hunter2\n", "hunter2: [", "keys: []\n",
	} {
		_, err := routerfile.API{KeysFile: write(t, "keys.yaml", text)}.Keys()
		if err == nil || strings.Contains(err.Error(), "hunter2") && !strings.Contains(text, "keys: hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSecretIsOneTrimmedFile(t *testing.T) {
	if s, err := config.Secret("a", write(t, "s", " hush\n")); s != "hush" || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	if _, err := config.Secret("etcd.password_file", write(t, "s", "\n")); err == nil || !strings.HasPrefix(err.Error(), "etcd.password_file: ") {
		t.Errorf("empty: %v", err)
	}
}

func contains(all []string, want string) bool {
	for _, s := range all {
		if s == want {
			return true
		}
	}
	return false
}

func TestSettingsOfTheClusterAreHotKeysOnly(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "",
		"admission: {fresh_per_second: 50}":    "",
		"limits: {max_conns: 9000}":            "",
		"limits: {send_queue_bytes: 9000}":     "limits.send_queue_bytes: cannot change while an edge runs",
		"listen: 127.0.0.1:1":                  "listen: cannot change while an edge runs",
		"admission: {fresh_per_seconds: 50}":   "admission.fresh_per_seconds: unknown key",
		"admission: {fresh_per_second: 0}":     "admission.fresh_per_second: 0: must be above 0",
		"admission: {wait: 3}":                 `admission.wait: 3: must be a duration with its unit, such as "3s" or "24h"`,
		"drain: {deadline: 5s, notice: 6s}":    "drain.notice: 6s: must be shorter than drain.deadline, which includes it",
		"limits: {max_conns: 10, margin: 500}": "limits.max_conns: 10: must be more than limits.margin (500)",
		"heartbeat: {ping_interval: 1s}":       "heartbeat.ping_interval: 1s: must be at least 2s",
	} {
		err := gatewayfile.CheckSettings(text)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if got := problems(t, err); !contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	f := gatewayfile.Default()
	with, err := f.WithSettings("admission: {enabled: false, wait: 1s}")
	if err != nil || with.Admission.Enabled || with.Admission.Wait != time.Second || !f.Admission.Enabled || len(f.Waiting(with)) > 0 {
		t.Errorf("%v: %+v over %+v", err, with, f)
	}
}

// Behind one address a drain waits for the balancer's health checks, unless the file
// says something else; never for the whole deadline.
func TestADrainWaitsForBalancersWhereThereIsOne(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"advertise_url: ws://a/v1/ws\n": 0,
		"":                              15 * time.Second,
		"drain: {deadline: 10s}\n":      6 * time.Second,
		"drain: {notice: 0s}\n":         0,
		"drain: {notice: 2s}\n":         2 * time.Second,
		"advertise_url: ws://a/v1/ws\ndrain: {notice: 3s}\n": 3 * time.Second,
	} {
		f, err := gateway(t, "auth: {anonymous: true}\n"+text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Notice(f.AdvertiseURL != ""); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if with, err := f.WithSettings("drain: {deadline: 20s}"); err != nil || f.DrainNotice == schema.Auto && f.AdvertiseURL == "" && with.Notice(false) > 15*time.Second {
			t.Errorf("%q with settings: %v, %v", text, with, err)
		}
	}
}

// Numbers of all sizes and kinds can be set.
func TestFractionsAndLargeNumbersAreTaken(t *testing.T) {
	g, err := gateway(t, "auth: {anonymous: true}\nlimits: {max_memory_bytes: 8000000000, max_conns: 3e4}\n", []string{"SPILLWAY_REBALANCE__RATIO=1.25"}, nil)
	if err != nil || g.MaxMemoryBytes != 8_000_000_000 || g.MaxConns != 30_000 || g.Rebalance.Ratio != 1.25 {
		t.Errorf("%v, %+v", err, g)
	}
}
