package router

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
	"github.com/spillway-io/spillway/proto/wire"
	"github.com/spillway-io/spillway/router/history"
	"github.com/spillway-io/spillway/router/history/memory"
	"github.com/spillway-io/spillway/router/namespace"
)

// stretch is what a channel has: offsets floor..head of one epoch.
type stretch struct {
	name        string
	epoch       uint64
	floor, head uint64
	cold        bool // memory may be made to forget it
}

// after are the offsets behind a position, before those in front of one, newest first.
func (s *stretch) after(offset uint64) (out []uint64) {
	for at := s.floor; at <= s.head; at++ {
		if at > offset {
			out = append(out, at)
		}
	}
	return out
}

func (s *stretch) before(offset uint64) (out []uint64) {
	for at := s.head; at >= s.floor; at-- {
		if at < offset {
			out = append(out, at)
		}
	}
	return out
}

// stretches are channels of each durability, and one that has lost its oldest events.
func stretches(n *node) []*stretch {
	all := []*stretch{
		{name: "chat:a", floor: 1, head: 12, cold: true}, {name: "short:a", floor: 7, head: 10, cold: true}, {name: "chat:one", floor: 1, head: 1, cold: true},
		{name: "brief:a", floor: 1, head: 12},
	}
	for _, s := range all {
		s.epoch = n.fill(s.name, int(s.head))
	}
	if err := n.retention.Round(testContext(n.t)); err != nil {
		n.t.Fatal(err)
	}
	return all
}

// oddOffsets are those that have broken somebody's arithmetic, and some that have not.
func oddOffsets(s *stretch, most uint64) []uint64 {
	odd := []uint64{0, 1, 2, s.floor - 1, s.floor, s.floor + 1, s.head - 1, s.head, s.head + 1, 1<<31 - 1, 1 << 31, 1 << 32, wire.MaxOffset, 1 << 53,
		1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1}
	if s.floor > 1 {
		odd = append(odd, s.floor-2)
	}
	return slices.DeleteFunc(odd, func(o uint64) bool { return o > most })
}

func drawOffset(t *rapid.T, s *stretch, most uint64) uint64 {
	return rapid.OneOf(rapid.SampledFrom(oddOffsets(s, most)), rapid.Uint64Range(0, s.head+3), rapid.Uint64Range(0, most)).Draw(t, "offset")
}

// judge is testing.T or rapid.T.
type judge interface{ Fatalf(string, ...any) }

// A position may be anything, at each entry: what is answered is what a list would say.
func TestAnyPositionIsAnsweredAsByAList(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) { anywhere(t, store) })
	}
}

func anywhere(t *testing.T, store history.Store) {
	n := start(t, store, func(c *Config) {
		withHTTP(c)
		c.ReadPace = 1 // nobody else asks the store
		c.Namespaces["short"] = namespace.Namespace{HistorySize: 4, Recover: true, Subscribe: namespace.Everyone}
	})
	all, edge := stretches(n), n.sync()
	for _, s := range all { // the odd ones all
		for _, offset := range oddOffsets(s, 1<<64-1) {
			for _, epoch := range []uint64{s.epoch, 0, s.epoch + 1, 1<<64 - 1} {
				n.cool(s)
				checkAsk(t, s, edge, epoch, offset) // cold, and then warm
				checkAsk(t, s, edge, epoch, offset)
			}
			for i := range 8 {
				q := &routerv1.ReadHistoryRequest{Channel: s.name, Offset: &offset, Reverse: i&1 > 0, Limit: []uint32{2, 1000}[i>>1&1]}
				if i < 4 {
					n.cool(s)
				}
				checkHistory(t, s, q, n.history)
				if offset <= wire.MaxOffset {
					checkHistory(t, s, q, n.historyHTTP)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) { // and any
		s := rapid.SampledFrom(all).Draw(t, "channel")
		if rapid.Bool().Draw(t, "cold") {
			n.cool(s)
		}
		switch rapid.IntRange(0, 2).Draw(t, "entry") {
		case 0:
			anyHistory(t, s, 1<<64-1, n.history)
		case 1:
			anyHistory(t, s, wire.MaxOffset, n.historyHTTP)
		default:
			anyAsk(t, s, edge)
		}
	})
}

func (n *node) cool(s *stretch) {
	if s.cold {
		n.forget(s.name)
	}
}

// page is what an entry answers.
type page struct {
	head, first uint64
	offsets     []uint64
	more        bool
	wrongEpoch  bool
}

func anyHistory(t *rapid.T, s *stretch, most uint64, read func(judge, *routerv1.ReadHistoryRequest) page) {
	q := &routerv1.ReadHistoryRequest{Channel: s.name, Reverse: rapid.Bool().Draw(t, "reverse"), Limit: rapid.SampledFrom([]uint32{1, 2, 5, 100, 1000}).Draw(t, "limit")}
	if rapid.IntRange(0, 4).Draw(t, "with offset") > 0 {
		offset := drawOffset(t, s, most)
		q.Offset = &offset
	}
	if epoch := rapid.SampledFrom([]uint64{0, s.epoch, s.epoch + 1, 1<<64 - 1}).Draw(t, "epoch"); epoch > 0 {
		q.Epoch = wire.FormatEpoch(epoch)
	}
	checkHistory(t, s, q, read)
}

func checkHistory(t judge, s *stretch, q *routerv1.ReadHistoryRequest, read func(judge, *routerv1.ReadHistoryRequest) page) {
	got := read(t, q)
	if wrong := q.Epoch != "" && q.Epoch != wire.FormatEpoch(s.epoch); wrong || got.wrongEpoch {
		if wrong != got.wrongEpoch {
			t.Fatalf("%v: of another epoch: %v", q, got.wrongEpoch)
		}
		return
	}
	want := s.after(q.GetOffset())
	if q.Reverse {
		want = s.before(1<<64 - 1)
		if q.Offset != nil {
			want = s.before(*q.Offset)
		}
	}
	more := len(want) > int(q.Limit)
	if more {
		want = want[:q.Limit]
	}
	if !slices.Equal(got.offsets, want) || got.more != more || got.head != s.head || got.first != s.floor {
		t.Fatalf("%v: %+v, want %v, more %v of %d to %d", q, got, want, more, s.floor, s.head)
	}
}

func (n *node) history(t judge, q *routerv1.ReadHistoryRequest) page {
	a, err := n.hist.ReadHistory(testContext(n.t), q)
	if status.Code(err) == codes.FailedPrecondition {
		return page{wrongEpoch: true}
	}
	if err != nil {
		t.Fatalf("%v: %v", q, err)
	}
	p := page{head: a.Head, first: a.First, more: a.More}
	for _, e := range a.Events {
		p.offsets = append(p.offsets, e.Offset)
	}
	return p
}

func (n *node) historyHTTP(t judge, q *routerv1.ReadHistoryRequest) page {
	values := url.Values{"channel": {q.Channel}, "limit": {fmt.Sprint(q.Limit)}, "reverse": {strconv.FormatBool(q.Reverse)}}
	if q.Offset != nil {
		values.Set("offset", fmt.Sprint(*q.Offset))
	}
	if q.Epoch != "" {
		values.Set("epoch", q.Epoch)
	}
	code, _, text := n.curl("GET", "/v1/history?"+values.Encode(), "")
	if code == 409 {
		return page{wrongEpoch: true}
	}
	var a struct {
		Head, First uint64
		Events      []struct{ Offset uint64 }
		More        bool
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil || code != 200 {
		t.Fatalf("%v: %d %s %v", q, code, text, err)
	}
	p := page{head: a.Head, first: a.First, more: a.More}
	for _, e := range a.Events {
		p.offsets = append(p.offsets, e.Offset)
	}
	return p
}

func anyAsk(t *rapid.T, s *stretch, edge *edgeClient) {
	if last := rapid.SampledFrom([]uint32{0, 0, 1, 3, 50, 1<<32 - 1}).Draw(t, "last"); last > 0 {
		a := edge.ask(&gatewayv1.Ask{Channel: s.name, Last: last})
		want := s.before(1<<64 - 1)
		want = want[:min(int(last), len(want))]
		slices.Reverse(want)
		if offsetsOf(a.Events) != fmt.Sprint(want) || a.Head != s.head || a.From != want[0]-1 {
			t.Fatalf("%s, last %d: %v", s.name, last, a)
		}
		return
	}
	checkAsk(t, s, edge, rapid.SampledFrom([]uint64{s.epoch, s.epoch, 0, s.epoch + 1, 1 << 63}).Draw(t, "epoch"), drawOffset(t, s, 1<<64-1))
}

func checkAsk(t judge, s *stretch, edge *edgeClient, epoch, offset uint64) {
	a := edge.ask(position(s.name, epoch, offset))
	recovered := epoch == s.epoch && offset <= s.head && offset+1 >= s.floor
	want := "[]"
	if recovered {
		want = fmt.Sprint(s.after(offset))
	}
	if a.Status != gatewayv1.Status_STATUS_OK || a.Recovered != recovered || offsetsOf(a.Events) != want || a.Head != s.head || a.Epoch != s.epoch || a.More {
		t.Fatalf("%s at %d:%d: %v, want %v %s", s.name, epoch, offset, a, recovered, want)
	}
}

// What is not a position at all is a mistake that names its field, over HTTP too.
func TestWhatIsNoPositionIsAMistake(t *testing.T) {
	n := start(t, memory.New(memory.Default()), withHTTP)
	n.fill("chat:a", 3)
	for _, offset := range []string{"-1", "1e3", "0x10", " 1", "1.0", "9007199254740992", "18446744073709551615", "18446744073709551616", "1_000", "٣", ""} {
		code, _, text := n.curl("GET", "/v1/history?channel=chat:a&offset="+url.QueryEscape(offset), "")
		var a struct{ Code, Message string }
		if err := json.Unmarshal([]byte(text), &a); err != nil || code != 400 || a.Message != "offset: a whole number below 2^53 is expected" {
			t.Errorf("offset %q: %d %s", offset, code, text)
		}
	}
	for _, limit := range []string{"0", "-1", "1001", "4294967296"} {
		if code, _, text := n.curl("GET", "/v1/history?channel=chat:a&limit="+limit, ""); code != 400 {
			t.Errorf("limit %s: %d %s", limit, code, text)
		}
	}
}
