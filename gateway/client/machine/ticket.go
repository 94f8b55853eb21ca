package machine

import "github.com/spillway-io/spillway/proto/wire"

const maxTicket = 1024 // characters

// ticketOK: what a server calls a ticket goes into a header line of the next
// handshake, so nothing but unpadded base64url may stand in it.
func ticketOK(t string) bool {
	if t == "" || len(t) > maxTicket {
		return false
	}
	for _, c := range []byte(t) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// keepTicket takes a newer ticket of this session.
func (m *Machine) keepTicket(t string) {
	if ticketOK(t) && m.cfg.Foreign == nil {
		m.ticket = t
	}
}

// pass gives a ticket for one slot, if it is one.
func pass(t string) string {
	if ticketOK(t) {
		return t
	}
	return ""
}

// Offers are the subprotocols of a handshake.
func Offers(ticket string) []string {
	if ticket == "" {
		return []string{wire.ProtocolJSON}
	}
	return []string{wire.ProtocolJSON, wire.TicketPrefix + ticket}
}
