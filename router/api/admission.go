package api

import (
	"google.golang.org/grpc/codes"

	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// admit checks a publication against names, limits, the namespace's rules and its rate; one
// that fails is finished at once.
func (s *Server) admit(p *channel.Publication) {
	res := s.check(p)
	if res.Code == codes.OK {
		res = s.limit(p) // last, so that mistakes cost nothing of the rate
	}
	if res.Code != codes.OK {
		p.Finish(res)
	}
}

func unknownNamespace(of string) channel.Result {
	name := wire.Namespace(of)
	if name == "" {
		return channel.Result{Code: codes.NotFound, Message: `channel: no colon, and there is no namespace "` + namespace.Bare + `"`}
	}
	return channel.Result{Code: codes.NotFound, Message: "channel: unknown namespace " + name}
}

func (s *Server) check(p *channel.Publication) channel.Result {
	e := &p.Event
	if err := wire.CheckChannel(p.Channel); err != nil {
		return invalid(err.Error())
	}
	if err := wire.CheckKey(e.Key); err != nil {
		return invalid(err.Error())
	}
	if p.Namespace = s.namespaces.Of(p.Channel); p.Namespace == nil {
		return unknownNamespace(p.Channel)
	}
	if p.ByClient && (p.Namespace.Publish == namespace.Nobody || p.OpenOnly && p.Namespace.Publish != namespace.Everyone) {
		return channel.Result{Code: codes.PermissionDenied, Message: "channel: clients may not publish here without a grant"}
	}
	if !e.Binary && !p.Forwarded { // the router that forwards has looked
		if len(e.Data) == 0 {
			return invalid("data: json or binary must be given")
		}
		compact, err := wire.CompactJSON(e.Data)
		if err != nil {
			return invalid(err.Error())
		}
		e.Data = compact
	}
	switch {
	case len(e.Data) > s.cfg.MaxEventBytes:
		return tooLarge("data", len(e.Data), s.cfg.MaxEventBytes)
	case len(e.Meta) > wire.MaxMetaBytes:
		return tooLarge("meta", len(e.Meta), wire.MaxMetaBytes)
	}
	if e.Key == "" {
		return channel.Result{}
	}
	e.Scope = "b"
	if e.From != "" {
		e.Scope = "u:" + e.From
	}
	return channel.Result{}
}
