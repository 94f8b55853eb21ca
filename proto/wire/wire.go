// Package wire holds what everybody who speaks the client protocol agrees on:
// limits, channel names and their bus subjects, positions, close codes, error
// words, and the JSON form of the frames of spillway.client.v1; besides, the JSON
// form of the router's API over HTTP (api.go).
//
// Edges, routers and the Go SDK call it. Everything here is a pure function
// without state; decoders take bytes from strangers, allocate in proportion to
// them and never panic. PROTOCOL.md is the text that binds.
//
// Left out on purpose: WebSocket framing, sessions, and the binary encoding
// (generated code is enough for it).
package wire

// Subprotocols and limits of the client protocol, in bytes.
const (
	ProtocolJSON  = "spillway.v1.json"
	ProtocolProto = "spillway.v1.proto"
	TicketPrefix  = "spillway.ticket." // + 1..1,024 characters of unpadded base64url

	MaxHandshakeBytes     = 16 << 10
	MaxClientFrameBytes   = 64 << 10 // unless `connected` said more
	MaxServerMessageBytes = 64 << 10 // joined frames
	MaxFrameBytes         = 1 << 20  // any single frame
	MaxChannelBytes       = 255
	MaxKeyBytes           = 255
	MaxMetaBytes          = 4 << 10

	// MaxOffset is the largest integer that every JSON reader keeps exact.
	MaxOffset = 1<<53 - 1

	// UserNamespace is the built-in namespace: "user:<sub>" is every user's own.
	UserNamespace = "user"
)
