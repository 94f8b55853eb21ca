// Package gateway is the edge: it holds the clients' sockets. Its root keeps the loops and
// what they own, conns, sessions and subscriptions, and joins the rooms of the edge:
//
//	door       accept to 101 or refusal, the gate          -> root, through door.Loop
//	leave      drains, evacuations, rebalances, max age    -> root, through leave.Edge, Conns, Conn
//	feed       the channel table: order, repair, backfill  -> root, through feed.Sink
//	admission  who may come in, and when (pure)            used by door
//	settings   what an operator can set                    used by door, leave and the root
//	targets    where clients can be sent                   used by door, leave and the root
//	load       windows of the load figure                  used by door, leave and the root
//
// cmd makes an Edge and runs it. The edge calls a feed.Table (bus, routers), an Upstream
// (publishes and reads), a Verifier (tokens) and the membership view.
//
// In the root a line belongs to one of these:
//
//	edge.go, config.go, hot_reload.go       the whole: made, run, its settings
//	loop.go, clock.go, heartbeat.go         a loop and its turn; what it does once a second
//	conn.go, slow_consumer.go, closing.go   a conn's bytes, its queue, its end
//	commands.go, connect.go, calls.go       what a client asks, and its answers
//	session.go, session_index.go            sessions, and which conn has which
//	credentials.go, resume.go, revoke.go    tickets, tokens, revocations
//	subscription.go, requests.go            subscriptions and their answers
//	encode.go, live.go                      an event as a frame, and on its way to subscribers (feed.Sink)
//	takeover.go, superseded.go              which conn of a session counts, here and elsewhere
//	counts.go, catchup.go, metrics.go       what is counted
//	reload_slots.go                         when clients may reload what they missed
//	leaving.go                              the edge as package leave sees it
//
// Life and goroutines: the door (one) accepts and reads requests; the pool (a few) checks
// requests and tokens; the loops (one a core) own the conns; the callers (bounded) wait for
// routers; the table's shards order events; the governor of leave is Run's own goroutine.
// An idle conn has no goroutine, buffer or timer. Run starts them all and waits for all.
// When its context ends, the edge refuses newcomers, moves its clients to other edges
// within drain.deadline, and then stops the parts.
//
// What is owned by a loop (conns, sessions, subscriptions, its part of a departure) is
// touched by its goroutine only; everybody else posts a message to its inbox. A loop never
// blocks but in Wait.
//
// Invariants (ARCHITECTURE.md has all): I2 a client sees offsets in order, each at most once; I3 what it missed is
// delivered or announced; I5 who comes in is within lanes and confirmed grants (package
// admission); I6 conns do not fall because others arrive; I7 queues are bounded in bytes;
// I11 a refusal is one write that says when to come back.
//
// Left out on purpose: the order and repair of channels (feed), the plan of a drain
// (presence/drain), which sockets become conns (door).
package gateway
