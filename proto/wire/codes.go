package wire

import (
	"strconv"

	clientv1 "github.com/spillway-io/spillway/proto/spillway/client/v1"
)

// CloseCode is a WebSocket close code. 4000-4099: the client comes back, 4100-4199:
// with new credentials, 4200-4299: it does not.
type CloseCode uint16

const (
	CloseNormal      CloseCode = 1000
	CloseGoingAway   CloseCode = 1001
	CloseProtocol    CloseCode = 1002
	CloseUnsupported CloseCode = 1003
	CloseInvalidData CloseCode = 1007
	CloseTooBig      CloseCode = 1009

	CloseComeBack     CloseCode = 4000
	CloseShutdown     CloseCode = 4001
	ClosePingTimeout  CloseCode = 4004
	CloseSlowConsumer CloseCode = 4005
	CloseSuperseded   CloseCode = 4006
	CloseBusy         CloseCode = 4010
	CloseCredentials  CloseCode = 4100
	CloseStop         CloseCode = 4200
)

// CloseRule is one row of the table of close codes.
type CloseRule struct {
	Code CloseCode
	Name string
	Then string // what the client does next
}

// CloseRules is the one table of Spillway's own close codes: metric labels, SDKs
// and PROTOCOL.md are made from it or tested against it.
var CloseRules = [...]CloseRule{
	{CloseComeBack, "come_back", "backs off"},
	{CloseShutdown, "shutdown", "comes back at its slot if it heard `reconnect`, else as after any loss"},
	{ClosePingTimeout, "ping_timeout", "backs off"},
	{CloseSlowConsumer, "slow_consumer", "backs off; the counter then needs 60 s up"},
	{CloseSuperseded, "superseded", "nothing if another connection of this client is up or opening; else forgets ticket and session, keeps positions, backs off"},
	{CloseBusy, "busy", "comes back after retry_after_ms, at url if given, with its pass"},
	{CloseCredentials, "credentials", "asks the token provider once, then backs off"},
	{CloseStop, "stop", "stops and tells the application"},
}

func (c CloseCode) String() string { return strconv.Itoa(int(c)) + " " + c.Name() }

// Name is the word for a close code in logs, metrics and the table.
func (c CloseCode) Name() string {
	for _, r := range CloseRules {
		if r.Code == c {
			return r.Name
		}
	}
	switch c {
	case CloseNormal:
		return "normal"
	case CloseGoingAway:
		return "going_away"
	case CloseProtocol:
		return "protocol_error"
	case CloseUnsupported:
		return "unsupported_data"
	case CloseInvalidData:
		return "invalid_data"
	case CloseTooBig:
		return "too_big"
	}
	return "other"
}

// Reaction is what a client does after a close, by the range of its code.
type Reaction uint8

const (
	BackOff        Reaction = iota // every code without a rule of its own
	BackOffFromCap                 // 1002, 1007, 1009: the next try will not be better soon
	NewCredentials                 // 4100-4199
	Stop                           // 4200-4299
)

func (r Reaction) String() string {
	return [...]string{"back_off", "back_off_from_cap", "new_credentials", "stop"}[min(r, Stop)]
}

// Reaction of a client that read no frame saying more.
func (c CloseCode) Reaction() Reaction {
	switch {
	case c == CloseProtocol || c == CloseInvalidData || c == CloseTooBig:
		return BackOffFromCap
	case c >= 4100 && c <= 4199:
		return NewCredentials
	case c >= 4200 && c <= 4299:
		return Stop
	}
	return BackOff
}

var errorWords = map[clientv1.ErrorCode]string{
	clientv1.ErrorCode_ERROR_CODE_BAD_REQUEST:  "bad_request",
	clientv1.ErrorCode_ERROR_CODE_UNAUTHORIZED: "unauthorized",
	clientv1.ErrorCode_ERROR_CODE_EXPIRED:      "expired",
	clientv1.ErrorCode_ERROR_CODE_REVOKED:      "revoked",
	clientv1.ErrorCode_ERROR_CODE_FORBIDDEN:    "forbidden",
	clientv1.ErrorCode_ERROR_CODE_NOT_FOUND:    "not_found",
	clientv1.ErrorCode_ERROR_CODE_TOO_LARGE:    "too_large",
	clientv1.ErrorCode_ERROR_CODE_RATE_LIMITED: "rate_limited",
	clientv1.ErrorCode_ERROR_CODE_UNAVAILABLE:  "unavailable",
	clientv1.ErrorCode_ERROR_CODE_INTERNAL:     "internal",
}

// ErrorWord is the JSON word of an error code.
func ErrorWord(code clientv1.ErrorCode) string {
	if w, ok := errorWords[code]; ok {
		return w
	}
	return "internal"
}

// ParseErrorWord reads it back; an unknown word is an internal error.
func ParseErrorWord(word string) clientv1.ErrorCode {
	for code, w := range errorWords {
		if w == word {
			return code
		}
	}
	return clientv1.ErrorCode_ERROR_CODE_INTERNAL
}
