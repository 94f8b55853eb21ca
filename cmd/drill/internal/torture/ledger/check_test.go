package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const channel = "chat:a"

func at(offset uint64) Position { return Position{"e1", offset} }

func sec(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func strict(string) Rules { return Rules{Durable: true, Linear: true} }

// sound is a run in which everything was kept: three events, the second one published
// twice with its key, a third publish that nobody was told of, one refused.
func sound() *Notes {
	return &Notes{
		Publishes: []Publish{
			{By: "p1", Channel: channel, Value: "a", Call: sec(1), Return: sec(2), Outcome: Acked, At: at(1), Flow: "f", Turn: 1},
			{By: "p1", Channel: channel, Value: "b", Key: "k", Flow: "f", Turn: 2, Call: sec(3), Return: sec(4), Outcome: Acked, At: at(2)},
			{By: "p2", Channel: channel, Value: "b2", Key: "k", Call: sec(3), Return: sec(6), Outcome: Acked, At: at(2), Repeat: true},
			{By: "p2", Channel: channel, Value: "c", Call: sec(5), Return: sec(7), Outcome: Unknown, Why: "deadline"},
			{By: "p2", Channel: channel, Value: "d", Call: sec(5), Return: sec(7), Outcome: Refused, Why: "poison"},
			{By: "p2", Channel: channel, Value: "e", Call: sec(5), Return: sec(7), Outcome: Unknown, Why: "deadline"},
		},
		Reads: []Read{
			{By: "r1", Channel: channel, Call: sec(2.5), Return: sec(2.6), Epoch: "e1", Head: 1, First: 1, Events: []Event{{1, "a"}}},
			{By: "r1", Channel: channel, Call: sec(4.5), Return: sec(4.6), Epoch: "e1", Head: 2, First: 1, Events: []Event{{2, "b"}, {1, "a"}}, Reverse: true},
		},
		Streams: []Stream{
			{By: "w1", Channel: channel, Live: true, Steps: []Step{
				{Time: sec(0.5), Kind: Joined, At: at(0)}, {Time: sec(2), Kind: Received, At: at(1), Value: "a"},
				{Time: sec(4), Kind: Received, At: at(2), Value: "b"}, {Time: sec(5), Kind: Away},
				{Time: sec(6), Kind: Joined, At: at(2)}, {Time: sec(8), Kind: Received, At: at(3), Value: "c"},
			}},
			{By: "w2", Channel: channel, Steps: []Step{{Time: sec(3.5), Kind: Joined, At: at(1)}, {Time: sec(4), Kind: Received, At: at(2), Value: "b"}}},
		},
		Finals: []Read{{By: "end", Channel: channel, Call: sec(20), Return: sec(21), Epoch: "e1", Head: 3, First: 1,
			Events: []Event{{1, "a"}, {2, "b"}, {3, "c"}}}},
	}
}

// cut is sound, and in the end retention has emptied the channel and one client was
// away meanwhile.
func cut() *Notes {
	n := sound()
	n.Trims = []Trim{{channel, sec(10), sec(11), 4}}
	n.Finals[0].First, n.Finals[0].Events = 4, nil
	n.Streams[1].Live = true
	n.Streams[1].Steps = append(n.Streams[1].Steps, Step{Time: sec(15), Kind: Lost, From: at(2), At: at(3), Text: "history"})
	return n
}

func TestRunsThatKeepEverythingPass(t *testing.T) {
	for name, n := range map[string]*Notes{"plain": sound(), "retention": cut()} {
		for _, b := range Check(n, strict) {
			t.Errorf("%s: %v", name, &b)
		}
	}
}

func TestEachBrokenPromiseIsFound(t *testing.T) {
	for _, c := range []struct {
		name, rule string
		break_     func(*Notes)
	}{
		{"acked and not in the store", "ack", func(n *Notes) {
			n.Finals[0].Head, n.Finals[0].Events = 1, n.Finals[0].Events[:1]
		}},
		{"acked where another event is", "ack", func(n *Notes) { n.Publishes[2].Key = "other" }},
		{"two events acked at one place", "agreement", func(n *Notes) { n.Publishes[1].At = at(1) }},
		{"the store has something else", "agreement", func(n *Notes) { n.Finals[0].Events[0].Value = "c" }},
		{"a subscriber received something else", "agreement", func(n *Notes) { n.Streams[1].Steps[1].Value = "d" }},
		{"nobody published it", "nowhere", func(n *Notes) { n.Finals[0].Events[2].Value, n.Streams[0].Steps[5].Value = "x", "x" }},
		{"seen before it was published", "nowhere", func(n *Notes) { n.Publishes[0].Call, n.Publishes[0].Return = sec(2.7), sec(2.8) }},
		{"stored twice", "twice", func(n *Notes) { n.Finals[0].Events[2].Value, n.Streams[0].Steps[5].Value = "a", "a" }},
		{"a key is two events", "key", func(n *Notes) {
			n.Publishes[3].Key = "k"
		}},
		{"a repeat was published", "key", func(n *Notes) {
			n.Publishes[2].At, n.Publishes[2].Repeat = at(3), false
			n.Finals[0].Events[2].Value, n.Streams[0].Steps[5].Value = "b2", "b2"
		}},
		{"refused and stored", "refused", func(n *Notes) { n.Publishes[3].Outcome = Refused }},
		{"a batch in another order", "flow", func(n *Notes) {
			n.Publishes[0].Flow, n.Publishes[0].Turn, n.Publishes[1].Flow, n.Publishes[1].Turn = "f", 2, "f", 1
		}},
		{"a new epoch", "epoch", func(n *Notes) { n.Finals[0].Epoch = "e2" }},
		{"a hole in a page", "hole", func(n *Notes) {
			n.Finals[0].Events = slices.Delete(n.Finals[0].Events, 1, 2)
			n.Reads = append(n.Reads, n.Finals[0])
		}},
		{"history lost its beginning", "hole", func(n *Notes) { n.Finals[0].First = 2; n.Finals[0].Events = n.Finals[0].Events[1:] }},
		{"retention took more than it said", "hole", func(n *Notes) { *n = *cut(); n.Trims[0].First = 3 }},
		{"a page ends early", "hole", func(n *Notes) { n.Reads[0].Events = nil }},
		{"a reversed page ends early", "hole", func(n *Notes) { n.Reads[1].Events = n.Reads[1].Events[:1] }},
		{"a subscriber misses one without a word", "order", func(n *Notes) { n.Streams[0].Steps = slices.Delete(n.Streams[0].Steps, 2, 3) }},
		{"received twice", "order", func(n *Notes) { n.Streams[0].Steps = slices.Insert(n.Streams[0].Steps, 2, n.Streams[0].Steps[1]) }},
		{"received in the wrong order", "order", func(n *Notes) {
			s := n.Streams[0].Steps
			s[1].At, s[1].Value, s[2].At, s[2].Value = s[2].At, s[2].Value, s[1].At, s[1].Value
		}},
		{"goes on elsewhere after coming back", "order", func(n *Notes) { n.Streams[0].Steps[4].At = at(3) }},
		{"told of a loss where nothing is lost", "gap", func(n *Notes) {
			n.Streams[0].Steps[5] = Step{Time: sec(8), Kind: Lost, From: at(2), At: at(3), Text: "history"}
		}},
		{"told of a loss before retention cut it", "gap", func(n *Notes) { *n = *cut(); n.Streams[1].Steps[2].Time = sec(9) }},
		{"told of the loss of what it has", "order", func(n *Notes) { *n = *cut(); n.Streams[1].Steps[2].From = at(1) }},
		{"told of a loss that goes back", "order", func(n *Notes) { *n = *cut(); n.Streams[1].Steps[2].At = at(2) }},
		{"never caught up", "behind", func(n *Notes) { n.Streams[0].Steps = n.Streams[0].Steps[:5] }},
		{"never heard a verdict", "behind", func(n *Notes) { n.Streams[0].Steps = nil }},
		{"a read that misses an acked event", "linear", func(n *Notes) { n.Reads[1].Head, n.Reads[1].Events = 1, []Event{{1, "a"}} }},
		{"a read that goes back behind another", "linear", func(n *Notes) {
			n.Publishes[1].Return, n.Publishes[2].Return = sec(9), sec(9)
			n.Streams[0].Steps = []Step{{Time: sec(9), Kind: Joined, At: at(3)}}
			n.Streams[1].Steps = nil
			stale := n.Reads[0]
			stale.Call, stale.Return = sec(4.7), sec(4.8)
			n.Reads = append(n.Reads, stale)
		}},
		{"an ack that comes before its elder is published", "linear", func(n *Notes) {
			n.Publishes[2].Call, n.Publishes[2].Return = sec(2.1), sec(2.2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := sound()
			c.break_(n)
			found := Check(n, strict)
			if !slices.ContainsFunc(found, func(b Breach) bool { return b.Rule == c.rule && b.Channel == channel && len(b.History) > 0 }) {
				t.Errorf("found %v, want (%s)", found, c.rule)
			}
		})
	}
}

// Channels without a store may lose epochs with their owners, but only with a word.
func TestChannelsWithoutAStoreMayLoseWhatTheySay(t *testing.T) {
	run := func() *Notes {
		return &Notes{
			Publishes: []Publish{
				{By: "p", Channel: channel, Value: "a", Key: "k", Call: sec(1), Return: sec(2), Outcome: Acked, At: at(1)},
				{By: "p", Channel: channel, Value: "b", Call: sec(2), Return: sec(3), Outcome: Acked, At: at(2)},
				{By: "p", Channel: channel, Value: "c", Call: sec(5), Return: sec(6), Outcome: Acked, At: Position{"e2", 1}},
			},
			Streams: []Stream{{By: "w", Channel: channel, Live: true, Steps: []Step{
				{Time: sec(0), Kind: Joined, At: at(0)}, {Time: sec(2), Kind: Received, At: at(1), Value: "a"},
				{Time: sec(5), Kind: Lost, From: at(1), At: Position{"e2", 0}}, {Time: sec(6), Kind: Received, At: Position{"e2", 1}, Value: "c"},
			}}},
			Finals: []Read{{By: "end", Channel: channel, Call: sec(9), Return: sec(9), Epoch: "e2", Head: 1, First: 1, Events: []Event{{1, "c"}}}},
		}
	}
	rules := func(string) Rules { return Rules{} }
	if found := Check(run(), rules); len(found) > 0 {
		t.Error(found)
	}
	silent := run()
	silent.Streams[0].Steps = slices.Delete(silent.Streams[0].Steps, 2, 3)
	if found := Check(silent, rules); len(found) != 1 || found[0].Rule != "order" {
		t.Errorf("a new epoch without a word: %v", found)
	}
}

func TestABreachShowsWhatIsAroundIt(t *testing.T) {
	n := sound()
	n.Reads[1].Head, n.Reads[1].Events = 1, []Event{{1, "a"}}
	for range 100 {
		n.Streams[0].Steps = append(n.Streams[0].Steps, Step{Time: sec(30), Kind: Away})
	}
	for i := uint64(4); i < 100; i++ {
		n.Publishes = append(n.Publishes, Publish{By: "p9", Channel: channel, Value: "far", Call: sec(40), At: at(i)})
	}
	for _, b := range Check(n, strict) {
		if b.Rule != "linear" {
			continue
		}
		text := b.String()
		for _, want := range []string{"p1 publishes b key k", "r1 reads", "w1 received e1/2 b"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
		if strings.Contains(text, "far") || len(b.History) > mostLines {
			t.Errorf("too much:\n%s", text)
		}
		return
	}
	t.Error("nothing found")
}
