package channel_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

func (w *world) steps() {
	for range rapid.IntRange(1, 300).Draw(w.t, "steps") {
		w.step()
	}
}

// One router with a store that loses races, does not answer, answers late and refuses
// events: each publication ends once, as it was told; nothing is stored twice; answers are
// as new as their questions.
func TestOneRouterAndABadStore(t *testing.T) {
	inWorlds(t, namespace.Committed, false, func(w *world) {
		w.steps()
		w.rest()
		w.once()
	})
}

// The same with memory alone.
func TestOneRouterAndItsMemory(t *testing.T) {
	inWorlds(t, namespace.None, false, func(w *world) {
		w.steps()
		w.rest()
		w.once()
	})
}

// Routers that come and go in order, with a bad store.
func TestOrderlyChangesWithAStore(t *testing.T) {
	inWorlds(t, namespace.Committed, false, func(w *world) {
		w.next = 2
		w.add("r2")
		w.steps()
		w.rest()
		w.once()
	})
}

// Whatever is killed, lost, doubled or late, the store is the fence.
func TestNothingIsStoredTwiceWhateverFails(t *testing.T) {
	inWorlds(t, namespace.Committed, true, func(w *world) {
		w.next = 2
		w.add("r2")
		w.steps()
		w.rest()
		w.once()
	})
}

// Whatever is killed, lost, doubled or late: no offset of an epoch is given twice.
func TestNoOffsetIsGivenTwiceWhateverFails(t *testing.T) {
	inWorlds(t, namespace.None, true, func(w *world) {
		w.next = 2
		w.add("r2")
		w.steps()
		w.rest()
	})
}

// Routers that join and leave in order, in any number and whatever they have seen
// of each other, keep a channel without a store in its epoch, and lose nothing of it.
func TestOrderlyChangesKeepTheEpoch(t *testing.T) {
	inWorlds(t, namespace.None, false, func(w *world) {
		w.publish(w.nodes["r1"])
		w.take(w.nodes["r1"])
		w.next = 2
		w.add("r2")
		w.steps()
		w.rest()
		w.once()
		if len(w.epochs) != 1 {
			w.t.Fatalf("%d epochs", len(w.epochs))
		}
		for epoch := range w.epochs {
			for i := range len(w.fanned) {
				if w.fanned[channel.Position{Epoch: epoch, Offset: uint64(i + 1)}] == "" {
					w.t.Fatalf("offset %d of %d is missing", i+1, len(w.fanned))
				}
			}
		}
	})
}
