package api

import (
	"context"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// maxMessageBytes bounds what is read of one message before anything looks at it.
const maxMessageBytes = 4 << 20

func (s *Server) newGRPC(handover gatewayv1.HandoverServiceServer) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxConcurrentStreams(4096),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.ChainUnaryInterceptor(s.recoverUnary, s.gate.unary, s.deadline),
		grpc.ChainStreamInterceptor(s.recoverStream, s.gate.stream),
	}
	if s.cfg.Transport != nil {
		options = append(options, grpc.Creds(s.cfg.Transport))
	}
	if s.cfg.Trace {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	server := grpc.NewServer(append(options, s.cfg.Options...)...)
	routerv1.RegisterPublisherServiceServer(server, publisherService{Server: s})
	routerv1.RegisterHistoryServiceServer(server, historyService{Server: s})
	routerv1.RegisterAdminServiceServer(server, s.admin)
	gatewayv1.RegisterEdgeServiceServer(server, edgeService{Server: s})
	gatewayv1.RegisterHandoverServiceServer(server, handover)
	healthv1.RegisterHealthServer(server, s.health)
	if s.cfg.Reflection {
		reflection.Register(server)
	}
	return server
}

// Serving tells health checks whether this router takes work. One that does not sends
// callers over HTTP elsewhere with their next request.
func (s *Server) Serving(on bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if on {
		state = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
	for service := range needed {
		s.health.SetServingStatus(service, state)
	}
	if s.web != nil {
		s.web.server.SetKeepAlivesEnabled(on)
	}
}

// deadline bounds every call, whatever its handler does.
func (s *Server) deadline(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallDeadline)
	defer cancel()
	return handler(ctx, request)
}

func (s *Server) recoverUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() { err = s.recovered(recover(), info.FullMethod, err) }()
	return handler(ctx, request)
}

func (s *Server) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() { err = s.recovered(recover(), info.FullMethod, err) }()
	return handler(srv, stream)
}

func (s *Server) recovered(panicked any, method string, err error) error {
	if panicked == nil {
		return err
	}
	s.metrics.panics.Inc()
	s.log.Error("a call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "internal error")
}
