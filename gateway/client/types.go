package client

import "github.com/spillway-io/spillway/gateway/client/machine"

// What the protocol tells an application is declared where the protocol is, in package
// machine, and has its names here.
type (
	State       = machine.State
	StateChange = machine.StateChange
	Move        = machine.Move
	Stats       = machine.Stats
	Info        = machine.Info
	Position    = machine.Position
	Event       = machine.Event
	Subscribed  = machine.Subscribed
	Gap         = machine.Gap
	Error       = machine.Error
	CloseError  = machine.CloseError
)

// States of a client.
const (
	Disconnected = machine.Disconnected
	Connecting   = machine.Connecting
	Connected    = machine.Connected
	Reconnecting = machine.Reconnecting
)

// Errors of calls and of a client that has ended.
var (
	ErrClosed         = machine.ErrClosed
	ErrNotConnected   = machine.ErrNotConnected
	ErrNoToken        = machine.ErrNoToken
	ErrOutcomeUnknown = machine.ErrOutcomeUnknown
	ErrSubscribed     = machine.ErrSubscribed
	ErrUnsubscribed   = machine.ErrUnsubscribed
	ErrTooManyCalls   = machine.ErrTooManyCalls
)
