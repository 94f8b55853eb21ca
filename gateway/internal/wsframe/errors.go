package wsframe

import "fmt"

// Close codes that this package asks for (RFC 6455 7.4.1).
const (
	CodeNone     uint16 = 1005 // never sent: a close frame without a code
	CodeProtocol uint16 = 1002
	CodeInvalid  uint16 = 1007 // not UTF-8
	CodeTooBig   uint16 = 1009
)

// Error is a frame that ends the conn: send a close frame with Code.
type Error struct {
	Code   uint16
	Reason string // fits a close frame
}

func (e *Error) Error() string { return fmt.Sprintf("websocket: %s (%d)", e.Reason, e.Code) }

// HTTPError is a request that is answered with Status, and the conn then closed.
type HTTPError struct {
	Status int
	Reason string
}

func (e *HTTPError) Error() string { return fmt.Sprintf("http: %s (%d)", e.Reason, e.Status) }
