package router

import (
	"context"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// maxMessageBytes bounds what is read of one message before anything looks at it.
const maxMessageBytes = 4 << 20

func (r *Router) newServer() *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxConcurrentStreams(4096),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.ChainUnaryInterceptor(r.recoverUnary, r.gate.unary, r.deadline),
		grpc.ChainStreamInterceptor(r.recoverStream, r.gate.stream),
	}
	if r.cfg.Transport != nil {
		options = append(options, grpc.Creds(r.cfg.Transport))
	}
	if r.cfg.Trace {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	server := grpc.NewServer(append(options, r.cfg.Options...)...)
	routerv1.RegisterPublisherServiceServer(server, publisherService{Router: r})
	routerv1.RegisterHistoryServiceServer(server, historyService{Router: r})
	routerv1.RegisterAdminServiceServer(server, r.operations)
	gatewayv1.RegisterEdgeServiceServer(server, edgeService{Router: r})
	gatewayv1.RegisterHandoverServiceServer(server, handoverService{Router: r})
	r.health = health.NewServer()
	healthv1.RegisterHealthServer(server, r.health)
	if r.cfg.Reflection {
		reflection.Register(server)
	}
	r.serving(false)
	return server
}

func (r *Router) serving(on bool) {
	r.ready.Store(on)
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if on {
		state = healthv1.HealthCheckResponse_SERVING
	}
	r.health.SetServingStatus("", state)
	for service := range needed {
		r.health.SetServingStatus(service, state)
	}
}

// deadline bounds every call, whatever its handler does.
func (r *Router) deadline(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallDeadline)
	defer cancel()
	return handler(ctx, request)
}

func (r *Router) recoverUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() { err = r.recovered(recover(), info.FullMethod, err) }()
	return handler(ctx, request)
}

func (r *Router) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() { err = r.recovered(recover(), info.FullMethod, err) }()
	return handler(srv, stream)
}

func (r *Router) recovered(panicked any, method string, err error) error {
	if panicked == nil {
		return err
	}
	r.metrics.panics.Inc()
	r.log.Error("a call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "internal error")
}
