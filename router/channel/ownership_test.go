package channel

import (
	"testing"
	"time"

	"github.com/spillway-io/spillway/router/views"
)

// Each row: who has the channel, what is seen, and what follows.
func TestOwnership(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const wait, grace = time.Second, 3 * time.Second
	mine := sight{self: "a", owner: "a", revision: 32, now: views.Trust{Seq: 2}, since: t0, known: true}
	others := sight{self: "a", owner: "b", revision: 48, now: views.Trust{Seq: 3}, since: t0, known: true}
	doubtful := mine
	doubtful.doubt = true
	nobody := sight{self: "a", now: views.Trust{Seq: 1}, since: t0}
	held := ownership{state: ownHeld, held: views.Trust{Seq: 2}}
	handed := ownership{state: ownHeld, held: views.Trust{Seq: 2}, to: "a", revision: 64} // by one who sees more
	given := ownership{state: ownGiven, to: "c", revision: 64}
	awaiting := ownership{state: ownAwaiting, until: t0.Add(wait)}
	for name, c := range map[string]struct {
		own   ownership
		sight sight
		after time.Duration
		turn  Turn
		state ownerState
	}{
		"ours, nobody can have it":           {ownership{}, mine, 0, Serve, ownHeld},
		"ours, somebody may have it":         {ownership{}, doubtful, 0, Wait, ownAwaiting},
		"ours, still waiting":                {awaiting, doubtful, wait - 1, Wait, ownAwaiting},
		"ours, waited in vain":               {awaiting, doubtful, wait, Serve, ownHeld},
		"held":                               {held, mine, time.Hour, Serve, ownHeld},
		"held, but away meanwhile":           {held, doubtful, 0, Wait, ownAwaiting},
		"lost, nobody to give it to yet":     {held, others, grace - 1, Serve, ownLeaving},
		"lost for long":                      {held, others, grace, Pass, ownLeaving},
		"never ours":                         {ownership{}, others, 0, Pass, ownNone},
		"waiting, and then another's":        {awaiting, others, 0, Pass, ownNone},
		"handed by one who sees more":        {handed, others, time.Hour, Serve, ownHeld},
		"given to one who sees more":         {given, mine, 0, Pass, ownGiven},
		"given, and ours by a newer view":    {given, sight{self: "a", owner: "a", revision: 64, now: views.Trust{Seq: 4}}, 0, Serve, ownHeld},
		"no view yet":                        {ownership{}, nobody, 0, Wait, ownAwaiting},
		"no view, waited in vain":            {awaiting, nobody, wait, Pass, ownNone},
		"no router serves, but this held it": {held, nobody, time.Hour, Serve, ownHeld},
	} {
		got := c.own
		if turn := got.use(&c.sight, t0.Add(c.after), wait, grace); turn != c.turn || got.state != c.state {
			t.Errorf("%s: turn %d, %v; want %d, %v", name, turn, got.state, c.turn, c.state)
		}
	}
}

// A hand-over that is late, or comes twice, brings nothing back.
func TestLateHandoverIsRefused(t *testing.T) {
	v := sight{self: "a", owner: "a", revision: 32, now: views.Trust{Seq: 2}}
	at := func(epoch, head, moves uint64) standing {
		return standing{Position: Position{epoch, head}, moves: moves}
	}
	stored := func(epoch, head, moves uint64) standing {
		p := at(epoch, head, moves)
		p.stored = true
		return p
	}
	var n ownership
	if !n.accept(&v, 32, at(7, 5, 1), false) || n.state != ownHeld {
		t.Fatal("the first was refused")
	}
	if got := n.give("b", 48, at(7, 9, 0), time.Now()); got.moves != 2 {
		t.Errorf("given with %d moves", got.moves)
	}
	for _, p := range []standing{at(7, 5, 1), at(7, 9, 2), at(6, 100, 9)} {
		if n.accept(&v, 64, p, false) {
			t.Errorf("%+v was taken", p)
		}
	}
	if n.accept(&v, 80, at(7, 9, 3), true) {
		t.Error("taken over what is here")
	}
	if !n.accept(&v, 64, at(7, 9, 3), false) {
		t.Error("what came back was refused")
	}
	fenced := ownership{newest: stored(7, 9, 5)}
	if fenced.accept(&v, 64, stored(7, 8, 9), false) {
		t.Error("an older position of a stored channel was taken")
	}
	if !fenced.accept(&v, 64, stored(7, 9, 1), false) {
		t.Error("a stored channel was refused by its count of moves")
	}
}
