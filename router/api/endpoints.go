package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
)

// endpoint is one call over HTTP: the generated handler of its gRPC form, between
// a decoder and an encoder.
type endpoint struct {
	verb   string // of HTTP
	method grpc.MethodDesc
	name   string // /service/method
	on     any    // the service
	decode func(query url.Values, body []byte, into any) error
	encode func(answer any) ([]byte, error)
}

// newEndpoint serves the unary call of a service that is named so. Q and A are its
// messages.
func newEndpoint[Q, A proto.Message](verb string, service *grpc.ServiceDesc, name string, on any,
	decode func(url.Values, []byte, Q) error, encode func([]byte, A) []byte,
) *endpoint {
	i := slices.IndexFunc(service.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	return &endpoint{
		verb: verb, method: service.Methods[i], name: "/" + service.ServiceName + "/" + name, on: on,
		decode: func(query url.Values, body []byte, into any) error { return decode(query, body, into.(Q)) },
		encode: func(answer any) ([]byte, error) { return encode(nil, answer.(A)), nil },
	}
}

func (w *web) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/publish", w.call(newEndpoint(http.MethodPost, &routerv1.PublisherService_ServiceDesc, "Publish", publisherService{Server: w.api},
		func(_ url.Values, body []byte, q *routerv1.PublishRequest) error { return wire.DecodePublish(body, q) },
		func(dst []byte, a *routerv1.PublishResponse) []byte { return wire.AppendPlaced(dst, a.Placed) },
	)))
	mux.HandleFunc("/v1/publish/batch", w.call(newEndpoint(http.MethodPost, &routerv1.PublisherService_ServiceDesc, "PublishBatch", publisherService{Server: w.api},
		func(_ url.Values, body []byte, q *routerv1.PublishBatchRequest) error {
			return wire.DecodePublishBatch(body, maxBatch, q)
		},
		func(dst []byte, a *routerv1.PublishBatchResponse) []byte {
			return wire.AppendPublishResults(dst, a.Results)
		},
	)))
	mux.HandleFunc("/v1/broadcast", w.call(newEndpoint(http.MethodPost, &routerv1.PublisherService_ServiceDesc, "Broadcast", publisherService{Server: w.api},
		func(_ url.Values, body []byte, q *routerv1.BroadcastRequest) error {
			return wire.DecodeBroadcast(body, maxBatch, q)
		},
		func(dst []byte, a *routerv1.BroadcastResponse) []byte {
			return wire.AppendPublishResults(dst, a.Results)
		},
	)))
	mux.HandleFunc("/v1/history", w.call(newEndpoint(http.MethodGet, &routerv1.HistoryService_ServiceDesc, "ReadHistory", historyService{Server: w.api},
		func(query url.Values, _ []byte, q *routerv1.ReadHistoryRequest) error { return decodeHistory(query, q) },
		wire.AppendHistory,
	)))
	admin := &routerv1.AdminService_ServiceDesc
	for _, m := range admin.Methods {
		mux.HandleFunc("/v1/admin/"+m.MethodName, w.call(&endpoint{
			http.MethodPost, m, "/" + admin.ServiceName + "/" + m.MethodName, w.api.admin, decodeProto, encodeProto,
		}))
	}
	mux.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) {
		w.refuse(out, http.StatusNotFound, status.New(codes.NotFound, "no such path: see /v1/publish, /v1/publish/batch, /v1/broadcast, /v1/history"))
	})
	return w.guard(mux)
}

// guard keeps out what a browser is made to send by a page of somebody else, and,
// where no key is asked for, names that such a page had resolved to this machine.
func (w *web) guard(next http.Handler) http.Handler {
	local := http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if in.Body != http.NoBody { // also of a request that is refused unread
			_ = http.NewResponseController(out).SetReadDeadline(time.Now().Add(w.api.cfg.CallDeadline))
		}
		host, _, err := net.SplitHostPort(in.Host)
		if err != nil {
			host = in.Host
		}
		if len(w.api.cfg.Keys) == 0 && !loopback(host) {
			w.refuse(out, http.StatusForbidden, status.New(codes.PermissionDenied, "without API keys the router answers to localhost and 127.0.0.1 only"))
			return
		}
		next.ServeHTTP(out, in)
	})
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		w.refuse(out, http.StatusForbidden, status.New(codes.PermissionDenied, "pages of other origins may not call the router"))
	}))
	return cross.Handler(local)
}

// decodeHistory reads channel, epoch, offset, limit and reverse, each once.
func decodeHistory(query url.Values, into *routerv1.ReadHistoryRequest) error {
	for name, values := range query {
		if len(values) != 1 {
			return fmt.Errorf("%.40s: given %d times", name, len(values))
		}
		var err error
		switch value := values[0]; name {
		case "channel":
			into.Channel = value
		case "epoch":
			into.Epoch = value
		case "offset":
			var offset uint64
			if offset, err = strconv.ParseUint(value, 10, 53); err != nil {
				return errors.New("offset: a whole number below 2^53 is expected")
			}
			into.Offset = &offset
		case "limit":
			var limit uint64
			if limit, err = strconv.ParseUint(value, 10, 32); err != nil || limit == 0 {
				return errors.New("limit: a number from 1 to 1000 is expected")
			}
			into.Limit = uint32(limit)
		case "reverse":
			if into.Reverse, err = strconv.ParseBool(value); err != nil {
				return errors.New("reverse: true or false is expected")
			}
		default:
			return fmt.Errorf("%.40s: unknown parameter", name)
		}
	}
	return nil
}

// decodeProto reads protobuf's JSON form; nothing is an empty message.
func decodeProto(_ url.Values, body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	return protojson.Unmarshal(body, into.(proto.Message))
}

func encodeProto(answer any) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer.(proto.Message))
	if err != nil {
		return nil, err
	}
	return wire.CompactJSON(text) // protojson's white space differs from build to build
}

// invoke decodes, calls and encodes.
func (w *web) invoke(ctx context.Context, e *endpoint, query url.Values, body []byte) ([]byte, error) {
	decode := func(into any) error {
		if err := e.decode(query, body, into); err != nil {
			return statusOf(invalid(err.Error()))
		}
		return nil
	}
	answer, err := e.method.Handler(e.on, ctx, decode, w.api.bounded)
	if err != nil {
		return nil, err
	}
	return e.encode(answer)
}

// bounded does for a call what the gRPC server does once the key is known.
func (s *Server) bounded(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return s.recoverUnary(ctx, request, info, func(ctx context.Context, request any) (any, error) {
		return s.deadline(ctx, request, info, handler)
	})
}
