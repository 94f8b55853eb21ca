// Package client is the Go SDK of Spillway: it holds one session with a cluster,
// keeps the subscriptions of the application alive while edges leave and are lost,
// and hands every event over once and in order, or says that some are lost.
//
//	c, err := client.New("ws://localhost:8400/v1/ws", client.WithToken(provider))
//	sub, err := c.Subscribe("chat:room-7", client.Handler{
//		OnEvent: func(e client.Event) { fmt.Println(e.Offset, string(e.Data)) },
//	})
//	err = c.Connect(ctx)
//	pos, err := c.Publish(ctx, "chat:room-7", []byte(`{"text":"hi"}`), client.Key("m-1"))
//	err = c.Close()
//
// Applications, the spillway command and the tests of every tier call it; it
// imports package machine, the proto tier and gobwas/ws only.
//
// Life and goroutines: New does no I/O. Connect starts; Close ends, once and for
// all. A connection has two goroutines, one that opens and reads it and one that
// writes; another runs callbacks while there are any to run; another the token
// provider while it is asked. All of them step the machine under one mutex: package
// machine is the whole protocol as a pure function of what happens and when, the client
// only carries its actions out.
//
// An edge that leaves says so (`reconnect`), and the client moves: it opens a second
// connection beside the first and closes that when the second has taken over every
// channel. The application stays CONNECTED and hears nothing of
// it, unless it asks by WithOnMove. Whoever comes back shows a ticket, held in memory
// only, and needs no new token.
//
// Callbacks run one at a time, in order, on a goroutine of their own, and may call
// anything of this package. One that panics is logged, the protocol goes on. One
// that is slow stops the reading of the socket when 4 MiB wait for it, never the
// heartbeat; the server then holds events back and repairs what it had to drop.
//
// Invariants: per channel and epoch, delivered offsets rise; a position never
// goes back except to a new epoch; at most one attempt is in flight, and beside it at
// most one connection; tickets are in no log, error or URL.
//
// Limits: 1 MiB a frame from the server (checked before allocation), 10,000 calls
// at a time, 4 MiB (and one message) of events that wait for callbacks, 4 MiB that
// wait for the other connection during a move.
//
// Left out on purpose: GET /v1/connect, which is for clients that cannot read the
// answer to a refused handshake; presence.
package client
