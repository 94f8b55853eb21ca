package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// gatekeeper lets calls pass whose API key has the right for their service.
type gatekeeper struct {
	keys []gateKey // empty: everything passes (loopback only)
}

type gateKey struct {
	sum    [sha256.Size]byte
	rights map[Right]bool
}

// needed is the right for a service; services that are not here (health,
// reflection) need none.
var needed = map[string]Right{
	"spillway.router.v1.PublisherService": RightPublish,
	"spillway.router.v1.HistoryService":   RightRead,
	"spillway.router.v1.AdminService":     RightAdmin,
	"spillway.gateway.v1.EdgeService":     RightEdge,
	"spillway.gateway.v1.HandoverService": RightEdge,
}

func newGatekeeper(keys []Key) *gatekeeper {
	g := &gatekeeper{}
	for _, k := range keys {
		rights := make(map[Right]bool, len(k.Rights))
		for _, right := range k.Rights {
			rights[right] = true
		}
		g.keys = append(g.keys, gateKey{sha256.Sum256([]byte(k.Secret)), rights})
	}
	return g
}

func (g *gatekeeper) check(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	return g.allow(md.Get("authorization"), method)
}

// allow looks at the values of the authorization header.
func (g *gatekeeper) allow(values []string, method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	right, guarded := needed[service]
	if !guarded || len(g.keys) == 0 {
		return nil
	}
	if len(values) != 1 || len(values[0]) < 7 || !strings.EqualFold(values[0][:7], "Bearer ") {
		return status.Error(codes.Unauthenticated, "an API key is needed: authorization: Bearer KEY")
	}
	// Every key is compared, and sums rather than secrets: time tells nothing.
	sum := sha256.Sum256([]byte(values[0][7:]))
	var found *gateKey
	for i := range g.keys {
		if subtle.ConstantTimeCompare(g.keys[i].sum[:], sum[:]) == 1 {
			found = &g.keys[i]
		}
	}
	switch {
	case found == nil:
		return status.Error(codes.Unauthenticated, "the API key is not known")
	case !found.rights[right]:
		return status.Errorf(codes.PermissionDenied, "the API key does not have the right %q", right)
	}
	return nil
}

func (g *gatekeeper) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := g.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (g *gatekeeper) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := g.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
