// Package feed knows, for one edge, where each channel that it carries stands:
// which events were delivered in order, which are missing, and who waits for
// what. It turns the bus (at most once, any order) and the routers' answers into
// one ordered flow for each channel.
//
// The edge's event loops call Table; Table calls back through Sink, the bus
// through Bus and the routers through Asker. Table.Run owns two goroutines a
// shard: one moves messages of the bus, the other owns the shard's channels.
// Every channel is a pure state machine (type feed) without I/O or clock; the
// shard around it owns those. Methods of Table never block.
//
// Invariants, for every channel that a table carries:
//
//	delivered <= seen                        (both in epoch)
//	held[0].Offset > delivered + 1           (else it would have been delivered)
//	recent ends at delivered, without holes
//	the calls Live and Gap of one sink tile the offsets of an epoch: each begins
//	where the last one ended
//
// Limits: messages of the bus that wait for a shard are bounded in bytes; what finds
// no room is dropped, counted, and looked for like what the bus lost. What is held
// behind holes is bounded in bytes for a channel and for the table; what goes over
// is let go and pulled from the router. Asks are bounded by
// subscriptions (a flight for each range), repairs by a budget of channels a
// second and of bytes in flight, checks of heads by a pace. A quiet channel costs
// about 240 B here, its name included, besides its subscription on the bus.
//
// Left out on purpose: sockets, send queues and subscriptions (package gateway),
// permission (the router and the claims decide), the encoding of events
// (Config.Encode).
package feed
