package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// webEvent and webResult are what curl sends and reads (router/api/HTTP.md).
type webEvent struct {
	Channel string          `json:"channel"`
	Data    json.RawMessage `json:"data"`
	Key     string          `json:"key,omitempty"`
}

type webResult struct {
	Epoch  string    `json:"epoch"`
	Offset uint64    `json:"offset"`
	Repeat bool      `json:"repeat"`
	Error  *webError `json:"error"`
}

type webError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// status is the code of gRPC that an error of HTTP names.
func (e *webError) status() codes.Code {
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if strings.EqualFold(strings.ReplaceAll(e.Code, "_", ""), c.String()) {
			return c
		}
	}
	return codes.Unknown
}

func (r *webResult) result() *routerv1.PublishResult {
	if r.Error != nil {
		return &routerv1.PublishResult{Outcome: &routerv1.PublishResult_Failure{Failure: &routerv1.Failure{Code: uint32(r.Error.status()), Message: r.Error.Message}}}
	}
	return &routerv1.PublishResult{Outcome: &routerv1.PublishResult_Placed{Placed: &routerv1.Placed{Epoch: r.Epoch, Offset: r.Offset, Repeat: r.Repeat}}}
}

// post sends drafts in one call over HTTP.
func (p *publisher) post(ctx context.Context, to *router, flow string, open []*draft) {
	events := make([]webEvent, len(open))
	for i, d := range open {
		e := d.publication(to, flow, i)
		events[i] = webEvent{e.Channel, json.RawMessage(e.GetJson()), e.Key}
	}
	var one webResult
	var all struct {
		Results []webResult `json:"results"`
	}
	var err error
	if len(open) == 1 {
		err = p.call(ctx, to, "/v1/publish", events[0], &one)
		all.Results = []webResult{one}
	} else {
		err = p.call(ctx, to, "/v1/publish/batch", map[string]any{"publications": events}, &all)
	}
	results := make([]*routerv1.PublishResult, len(all.Results))
	for i := range all.Results {
		results[i] = all.Results[i].result()
	}
	answered(p.tr.rec.now(), open, results, err)
}

// call posts a request; an error is one of gRPC, as the answer names it.
func (p *publisher) call(ctx context.Context, to *router, path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		panic(err) // strings only
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.tr.web(to.ID)+path, bytes.NewReader(body))
	if err != nil {
		panic(err) // an address of ours
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if resp.StatusCode != http.StatusOK {
		var e webError
		_ = json.Unmarshal(text, &e) // what is not ours is an unknown error
		return status.Error(e.status(), e.Message)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return status.Errorf(codes.Internal, "%q: %v", text, err)
	}
	return nil
}
