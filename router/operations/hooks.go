package operations

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/spillway-io/spillway/presence/control"
	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Steps of an evacuation at which hooks are called.
const (
	stepBefore   = "before"
	stepQuarter  = "quarter"
	stepHalf     = "half"
	stepDone     = "done"
	stepAborted  = "aborted"
	stepReturned = "returned"
)

const (
	hookOK       = "ok"
	hookTimeout  = 5 * time.Second // of one try
	hookTries    = 4
	hookPause    = time.Second // before the second try, doubled for each
	hookMaxReply = 4 << 10     // read and thrown away, so that the connection can be used again
)

// hooks tells operators' own systems (staged DNS, pagers) how far an evacuation is.
type hooks struct {
	client *http.Client
	pause  time.Duration
	now    func() time.Time
}

func newHooks(now func() time.Time) *hooks {
	return &hooks{
		client: &http.Client{
			Timeout: hookTimeout,
			// A redirect would carry the body to where nobody has sent it.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		pause: hookPause, now: now,
	}
}

// hookBody is what is POSTed.
type hookBody struct {
	Operation string `json:"operation"`
	Region    string `json:"region"`
	Step      string `json:"step"`
	State     string `json:"state"`
	Total     uint32 `json:"total"`
	Moved     uint32 `json:"moved"`
	Closed    uint32 `json:"closed"`
	Remaining uint32 `json:"remaining"`
	AtMS      int64  `json:"at_ms"`
}

// call POSTs a step to every URL, side by side, and waits for all of them.
func (h *hooks) call(ctx context.Context, op *gatewayv1.Operation, step string, figures []*gatewayv1.Progress) []*gatewayv1.HookCall {
	body := hookBody{Operation: op.Id, Region: op.Region, Step: step, State: control.StateName(op.State), AtMS: h.now().UnixMilli()}
	for _, p := range figures {
		body.Total += p.Total
		body.Moved += p.Moved
		body.Closed += p.Closed
		body.Remaining += p.Remaining
	}
	text, err := json.Marshal(body)
	if err != nil {
		text = nil // a struct of words and numbers cannot fail
	}
	calls := make([]*gatewayv1.HookCall, len(op.HookUrls))
	var wait sync.WaitGroup
	for i, to := range op.HookUrls {
		// One URL each, ended by its tries or ctx; waited for below.
		wait.Go(func() {
			calls[i] = &gatewayv1.HookCall{Step: step, Url: uint32(i), Outcome: h.try(ctx, to, text), AtMs: uint64(h.now().UnixMilli())}
		})
	}
	wait.Wait()
	return calls
}

// try POSTs until it is answered by a 2xx, and says what came of it.
func (h *hooks) try(ctx context.Context, to string, body []byte) string {
	pause := h.pause
	for n := 1; ; n++ {
		err := h.post(ctx, to, body)
		if err == nil {
			return hookOK
		}
		if n == hookTries || ctx.Err() != nil {
			return fmt.Sprintf("failed after %d tries: %v", n, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause *= 2
	}
}

// post is one try. Its error does not repeat the URL, which may be a secret.
func (h *hooks) post(ctx context.Context, to string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return errors.New("not a URL")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.client.Do(request)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			return wrapped.Err
		}
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, hookMaxReply)
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("answered %d", response.StatusCode)
	}
	return nil
}

// dueStep is the next step whose hooks are to be called; "": none.
func dueStep(op *gatewayv1.Operation, figures []*gatewayv1.Progress) string {
	if len(op.HookUrls) == 0 {
		return ""
	}
	called := make(map[string]bool)
	for _, c := range op.Hooks {
		called[c.Step] = true
	}
	for _, step := range stepsReached(op, figures) {
		if !called[step] {
			return step
		}
	}
	return ""
}

// stepsReached are those after the first that an evacuation has come to, in order.
func stepsReached(op *gatewayv1.Operation, figures []*gatewayv1.Progress) []string {
	var total, remaining uint32
	for _, p := range figures {
		total, remaining = total+p.Total, remaining+p.Remaining
	}
	var steps []string
	if total > 0 && 4*remaining <= 3*total {
		steps = append(steps, stepQuarter)
	}
	if total > 0 && 2*remaining <= total {
		steps = append(steps, stepHalf)
	}
	switch op.State {
	case gatewayv1.OperationState_OPERATION_STATE_HELD:
		return append(steps, stepDone)
	case gatewayv1.OperationState_OPERATION_STATE_DONE, gatewayv1.OperationState_OPERATION_STATE_PARTLY:
		return append(steps, stepDone, stepReturned)
	case gatewayv1.OperationState_OPERATION_STATE_ABORTED, gatewayv1.OperationState_OPERATION_STATE_FAILED:
		return []string{stepAborted}
	}
	return steps
}
