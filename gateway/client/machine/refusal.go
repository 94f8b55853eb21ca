package machine

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spillway-io/spillway/proto/wire"
)

// Refusal is a handshake that failed.
type Refusal struct {
	Err        error
	Ours       bool          // the answer had our JSON body
	Wait       time.Duration // retry_after_ms, or Retry-After if not ours
	WaitIsTold bool
	Malformed  bool // what we sent was the cause, for all that we know
}

// ReadRefusal takes from an answer that is not 101 when to come back: from our own JSON
// body, else from Retry-After. Err stays nil.
func ReadRefusal(answer io.Reader) (r Refusal) {
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(answer, wire.MaxHandshakeBytes)), nil)
	if err != nil {
		return r
	}
	defer resp.Body.Close()
	r.Malformed = resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusRequestHeaderFieldsTooLarge
	var body struct {
		RetryAfterMS *uint32 `json:"retry_after_ms"`
	}
	content, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return r
	}
	if json.Unmarshal(content, &body) == nil && body.RetryAfterMS != nil {
		r.Ours, r.WaitIsTold, r.Wait = true, true, millis(*body.RetryAfterMS)
		return r
	}
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 32); err == nil {
		r.WaitIsTold, r.Wait = true, time.Duration(seconds)*time.Second
	}
	return r
}
