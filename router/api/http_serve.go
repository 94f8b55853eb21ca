package api

import (
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
)

// statusGone is for nobody: without a status net/http would say 200.
const statusGone = 499

var (
	errBodyTooLarge = statusOf(tooLarge("body", maxMessageBytes+1, maxMessageBytes))
	errBodySlow     = status.Error(codes.DeadlineExceeded, "the body did not arrive in time")
	errBodiesFull   = statusOf(channel.Result{Code: codes.ResourceExhausted, RetryAfter: 250 * time.Millisecond, Message: "too many bodies are being read; nothing was stored"})
	errGone         = errors.New("the client went away")
)

// call is the handler of an endpoint. The key is looked at before the body is.
func (w *web) call(e *endpoint) http.HandlerFunc {
	return func(out http.ResponseWriter, in *http.Request) {
		if !w.enter() {
			w.fail(out, errStopping)
			return
		}
		defer w.requests.Done()
		defer func() {
			if err := w.api.recovered(recover(), e.name, nil); err != nil {
				w.fail(out, err)
			}
		}()
		if in.Method != e.verb {
			out.Header().Set("Allow", e.verb)
			w.refuse(out, http.StatusMethodNotAllowed, status.New(codes.Unimplemented, "use "+e.verb))
			return
		}
		if err := w.api.gate.allow(in.Header.Values("Authorization"), e.name); err != nil {
			w.fail(out, err)
			return
		}
		text, err := w.answer(out, in, e)
		switch {
		case errors.Is(err, errBodySlow): // which ends the context too
			out.Header().Set("Connection", "close")
			w.refuse(out, http.StatusRequestTimeout, status.Convert(err))
		case errors.Is(err, errGone) || err != nil && in.Context().Err() != nil:
			w.api.metrics.http.gone.Inc()
			out.WriteHeader(statusGone)
		case err != nil:
			w.fail(out, err)
		default:
			w.write(out, http.StatusOK, text)
		}
	}
}

// answer reads the body and makes the call.
func (w *web) answer(out http.ResponseWriter, in *http.Request, e *endpoint) ([]byte, error) {
	query, err := url.ParseQuery(in.URL.RawQuery)
	if err != nil {
		return nil, statusOf(invalid("query: " + err.Error()))
	}
	held, err := w.reserve(in.ContentLength)
	if err != nil {
		return nil, err
	}
	defer w.bytes.Add(-held)
	body, err := w.body(out, in)
	if err != nil {
		return nil, err
	}
	return w.invoke(in.Context(), e, query, body)
}

// reserve takes a body's place before it is read.
func (w *web) reserve(length int64) (held int64, err error) {
	if length > maxMessageBytes {
		return 0, errBodyTooLarge
	}
	if length < 0 {
		length = maxMessageBytes // not said
	}
	if w.bytes.Add(length) > maxHTTPBytes {
		w.bytes.Add(-length)
		return 0, errBodiesFull
	}
	return length, nil
}

// body reads all of it, within CallDeadline.
func (w *web) body(out http.ResponseWriter, in *http.Request) ([]byte, error) {
	if in.Body == http.NoBody {
		return nil, nil
	}
	text, err := io.ReadAll(http.MaxBytesReader(out, in.Body, maxMessageBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errBodySlow
	case err != nil:
		return nil, errGone
	}
	// From here on the connection is read only to see whether the client is still there.
	_ = http.NewResponseController(out).SetReadDeadline(time.Time{})
	return text, nil
}

// fail writes a gRPC error as HTTP.
func (w *web) fail(out http.ResponseWriter, err error) {
	s := status.Convert(err)
	w.refuse(out, httpStatus(s), s)
}

func (w *web) refuse(out http.ResponseWriter, code int, s *status.Status) {
	var after time.Duration
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			after = info.RetryDelay.AsDuration()
		}
	}
	if after == 0 && (code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable) {
		after = time.Second
	}
	if after > 0 {
		out.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	if code == http.StatusUnauthorized {
		out.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.write(out, code, wire.AppendStatus(nil, uint32(s.Code()), s.Message(), uint64(after.Milliseconds())))
}

func (w *web) write(out http.ResponseWriter, code int, text []byte) {
	w.api.metrics.http.of(code).Inc()
	h := out.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	out.WriteHeader(code)
	_, _ = out.Write(append(text, '\n')) // who does not read it is gone
}

// httpStatus says the same with HTTP's numbers.
func httpStatus(s *status.Status) int {
	switch s.Code() {
	case codes.InvalidArgument:
		if isTooLarge(s) {
			return http.StatusRequestEntityTooLarge
		}
		return http.StatusBadRequest
	case codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func isTooLarge(s *status.Status) bool {
	for _, d := range s.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok && len(bad.FieldViolations) == 1 && bad.FieldViolations[0].Reason == reasonTooLarge {
			return true
		}
	}
	return false
}
