// Package client is the Go SDK of Spillway: it holds one session with a cluster,
// keeps the subscriptions of the application alive across the loss of edges, and
// hands every event over once and in order, or says that some are lost.
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
// imports the proto tier and gobwas/ws only.
//
// Life and goroutines: New does no I/O. Connect starts; Close ends, once and for
// all. A connection has two goroutines, one that opens and reads it and one that
// writes; a third runs callbacks while there are any to run; a fourth the token
// provider while it is asked. All of them step the machine under one mutex: the
// machine (machine.go) is the whole protocol as a pure function of what happens
// and when, the client only carries its actions out.
//
// Callbacks run one at a time, in order, on a goroutine of their own, and may call
// anything of this package. One that panics is logged, the protocol goes on. One
// that is slow stops the reading of the socket when 4 MiB wait for it, never the
// heartbeat; the server then holds events back and repairs what it had to drop.
//
// Invariants: per channel and epoch, offsets handed over rise; a position never
// goes back except to a new epoch; at most one attempt is in flight.
//
// Limits: 1 MiB a frame from the server (checked before allocation), 10,000 calls
// at a time, 4 MiB (and one message) of events that wait for callbacks.
//
// Left out so far: moving to another edge before the old connection ends and
// tickets. The client therefore sends no `attempt`, and is closed with 4001 when
// its edge leaves.
package client
