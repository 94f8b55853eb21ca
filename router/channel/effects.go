package channel

import (
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

// Effects is what a Channel wants done. The shard that made the call carries it out or
// lists it; nothing calls back into the Channel before the call has returned.
type Effects interface {
	// Ready lists the channel: it has publications for Take.
	Ready()
	// Fan sends an envelope on the bus.
	Fan(*gatewayv1.Envelope)
	// Finish answers a publication and gives back its place in the queue.
	Finish(*Publication, Result)
	// Drop gives back the place of a publication whose caller has given up.
	Drop(*Publication)
	// Pass sends publications on to the router that owns the channel.
	Pass(to string, pubs []*Publication)
	// Read asks the store; Read of the Channel is called with the result.
	Read(*ReadQuery)
	// Seek asks the other routers for the channel. Accept or Nobody follows, or nothing.
	Seek()
	// Watch lists the channel for Tick, until nothing is watched of it.
	Watch()
	// Offer lists the channel to be handed over: Give is called. first: before others.
	Offer(to string, first bool)
	// Repeat lists the channel, so that its head is repeated when it has been quiet.
	Repeat()
	// InUse notes that the store is to be told that the channel is in use; false: no room.
	InUse() bool
	// NewEpoch numbers an epoch of a channel without a store, above another.
	NewEpoch(above uint64) uint64
	// Jitter is a random part of a duration.
	Jitter(time.Duration) time.Duration
	// Count counts n of something that happened.
	Count(c Counter, n int)
}

// Counter is something that channels count.
type Counter uint8

// The counters.
const (
	PublicationsTurned Counter = iota // told to come again, since their channel was moving
	PublicationsPassed                // sent on to the channel's owner
	AsksFromTail                      // answered from memory
	AsksFromStore                     // answered after a read of the store
	AsksUnavailable                   // told to come again
	ClaimsRefused                     // epochs that an edge claimed to have seen too soon after another
	RacesLost                         // runs that the store's fence refused
	OutcomesUnknown                   // runs of which the store did not say whether it has them
	HandoversArrived                  // channels that came while this router waited for them
	HandoversTaken                    // channels that came
	HandoversRefused                  // channels that came late, or are known already
	HandoversLate                     // waits that ended without a hand-over
	HandoversNobody                   // waits that ended because nobody has the channel
	HandoversBusy                     // channels that could not be handed over, since a run was under way
	counters
)

// Counters is how many there are.
const Counters = int(counters)
