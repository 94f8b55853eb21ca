package machine

// State of a client.
//
//	              Connect                 connected
//	DISCONNECTED ─────────▶ CONNECTING ───────────────▶ CONNECTED ◀─┐
//	     ▲                      │                          │ lost   │ connected
//	     │                      │                          ▼        │
//	     └──────────────────────┴──────────────────── RECONNECTING ─┘
//	       Close, close 4200, a provider without token
type State uint8

const (
	Disconnected State = iota
	Connecting         // never connected since Connect
	Connected
	Reconnecting // was connected, will be again
)

func (s State) String() string {
	return [...]string{"DISCONNECTED", "CONNECTING", "CONNECTED", "RECONNECTING"}[s&3]
}

// StateChange tells of a step from one state to another, or (From == To) of a
// failed attempt.
type StateChange struct {
	From, To State
	Err      error // why, if something went wrong
}
