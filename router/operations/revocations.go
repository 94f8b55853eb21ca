package operations

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Disconnect closes the live connections of a user or of a session.
func (s *Service) Disconnect(ctx context.Context, request *routerv1.DisconnectRequest) (*routerv1.DisconnectResponse, error) {
	switch {
	case s.control == nil:
		return nil, errNoControl
	case (request.User == "") == (request.Session == ""):
		return nil, invalid("user, session", "exactly one must be given")
	case request.Session != "" && !isSession(request.Session):
		return nil, invalid("session", "must be the 22 characters that clients are told")
	}
	err := s.control.PutRevocation(ctx, &gatewayv1.Revocation{
		User: request.User, Session: request.Session, DisconnectUser: request.User != "", CloseCode: request.CloseCode, Reason: request.Reason,
	})
	if err != nil {
		return nil, controlError(err)
	}
	return &routerv1.DisconnectResponse{}, nil
}

// isSession says whether a text can name a session: one that cannot would be told to
// all edges, and nobody would be disconnected.
func isSession(name string) bool {
	id, err := base64.RawURLEncoding.Strict().DecodeString(name)
	return err == nil && len(id) == 16 && len(name) == 22
}

// maxRevokeAhead is what the clocks of a backend and of a router may differ by.
const maxRevokeAhead = time.Minute

// Revoke makes tokens of a user bad, with the tickets made from them.
func (s *Service) Revoke(ctx context.Context, request *routerv1.RevokeRequest) (*routerv1.RevokeResponse, error) {
	switch {
	case s.control == nil:
		return nil, errNoControl
	case request.User == "":
		return nil, invalid("user", "must be given")
	case request.TokenId != "" && request.IssuedBeforeMs != 0:
		return nil, invalid("token_id, issued_before_ms", "at most one can be given")
	}
	r := &gatewayv1.Revocation{User: request.User, TokenId: request.TokenId, IssuedBeforeMs: request.IssuedBeforeMs, Reason: request.Reason}
	now := s.cfg.Now()
	if r.TokenId == "" && r.IssuedBeforeMs == 0 {
		r.IssuedBeforeMs = uint64(now.UnixMilli())
	}
	if most := now.Add(maxRevokeAhead); r.IssuedBeforeMs > uint64(most.UnixMilli()) {
		return nil, invalid("issued_before_ms", fmt.Sprintf("%d: is over a minute ahead; it could not be lifted", r.IssuedBeforeMs))
	}
	if err := s.control.PutRevocation(ctx, r); err != nil {
		return nil, controlError(err)
	}
	return &routerv1.RevokeResponse{IssuedBeforeMs: r.IssuedBeforeMs}, nil
}
