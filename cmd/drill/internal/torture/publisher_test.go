package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	callTime    = 3 * time.Second
	patience    = 15 * time.Second // a publish with a key is repeated for so long
	retryPause  = 50 * time.Millisecond
	sharedKeys  = 40 // of each channel, for all publishers
	batchMost   = 12
	poison      = "poison" // the database refuses it
	publishTick = 25 * time.Millisecond
)

// payload is what an event carries. Values are of one publish each.
type payload struct {
	Value string `json:"v"`
	Bad   string `json:"bad,omitempty"`
}

func valueOf(data []byte) string {
	var p payload
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Sprintf("not ours: %q", data)
	}
	return p.Value
}

// publisher publishes on random channels by random routers until its trial stops.
// Owned by its goroutine.
type publisher struct {
	tr     *trial
	name   string
	rng    *rand.Rand
	web    bool // over HTTP
	number int
	calls  int
}

// draft is an event on its way.
type draft struct {
	ledger.Publish
	bad     bool
	tries   int
	unsure  bool // an attempt had an unknown outcome
	settled bool
}

func (p *publisher) run(ctx context.Context) {
	tick := time.NewTicker(publishTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := 1
		if p.rng.IntN(3) == 0 {
			n = 1 + p.rng.IntN(batchMost)
		}
		channel := p.tr.channel(p.rng)
		batch := make([]*draft, n)
		for i := range batch {
			if p.rng.IntN(3) == 0 {
				channel = p.tr.channel(p.rng)
			}
			batch[i] = p.draft(channel)
		}
		if n > 1 && p.rng.IntN(4) == 0 { // one key twice in one batch
			batch[n-1].Channel, batch[n-1].Key = batch[0].Channel, batch[0].Key
			batch[n-1].bad = false
		}
		p.send(ctx, batch)
	}
}

func (p *publisher) draft(channel string) *draft {
	p.number++
	d := &draft{Publish: ledger.Publish{By: p.name, Channel: channel, Value: fmt.Sprintf("%s-%d", p.name, p.number)}}
	switch p.rng.IntN(10) {
	case 0: // without a key it is sent once
	case 1, 2:
		d.Key = fmt.Sprint("shared-", p.rng.IntN(sharedKeys))
	case 3:
		d.bad = p.tr.poisoned && rules(channel).Durable
		fallthrough
	default:
		d.Key = d.Value
	}
	return d
}

// send publishes drafts, and again what has a key until it is acked, refused, or patience
// ends.
func (p *publisher) send(ctx context.Context, batch []*draft) {
	for _, d := range batch {
		d.Call = p.tr.rec.now()
	}
	p.repeat(ctx, batch)
}

// repeat sends drafts until they are settled.
func (p *publisher) repeat(ctx context.Context, batch []*draft) {
	begun := p.tr.rec.now()
	open := batch
	for len(open) > 0 {
		p.attempt(open)
		var again []*draft
		for _, d := range open {
			if !d.settled {
				again = append(again, d)
			}
		}
		open = again
		if len(open) == 0 || p.tr.rec.now()-begun > patience || ctx.Err() != nil && p.tr.rec.now()-begun > callTime {
			break
		}
		wait := time.NewTimer(retryPause)
		<-wait.C
	}
	for _, d := range batch {
		d.Return = p.tr.rec.now()
		if !d.settled {
			d.Outcome = ledger.Unknown
		}
		p.tr.rec.published(d.Publish)
	}
}

// attempt sends drafts in one call. The router is drawn anew each time.
func (p *publisher) attempt(open []*draft) {
	to := p.tr.router(p.rng, open)
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	p.calls++
	flow := fmt.Sprintf("call %d of %s", p.calls, p.name)
	if p.web {
		p.post(ctx, to, flow, open)
		return
	}
	client := routerv1.NewPublisherServiceClient(to.conn)
	all := make([]*routerv1.Publication, len(open))
	for i, d := range open {
		all[i] = d.publication(to, flow, i)
	}
	if len(all) == 1 {
		resp, err := client.Publish(ctx, &routerv1.PublishRequest{Publication: all[0]})
		if err != nil {
			open[0].failed(status.Code(err), status.Convert(err).Message())
			return
		}
		open[0].placed(p.tr.rec.now(), resp.Placed)
		return
	}
	resp, err := client.PublishBatch(ctx, &routerv1.PublishBatchRequest{Publications: all})
	answered(p.tr.rec.now(), open, resp.GetResults(), err)
}

// answered gives each draft of a call its result.
func answered(now time.Duration, open []*draft, results []*routerv1.PublishResult, err error) {
	for i, d := range open {
		switch {
		case err != nil:
			d.failed(status.Code(err), status.Convert(err).Message())
		case i >= len(results):
			d.failed(codes.Internal, "no result")
		case results[i].GetFailure() != nil:
			f := results[i].GetFailure()
			d.failed(codes.Code(f.Code), f.Message)
		default:
			d.placed(now, results[i].GetPlaced())
		}
	}
}

// publication is the draft for one attempt, in its place of a flow.
func (d *draft) publication(to *router, flow string, turn int) *routerv1.Publication {
	d.Via, d.Flow, d.Turn = to.ID, flow, turn
	if d.tries++; d.tries > 1 {
		d.Flow = "" // an earlier attempt may be what is acked
	}
	text := payload{Value: d.Value}
	if d.bad {
		text.Bad = poison
	}
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings only
	}
	return &routerv1.Publication{Channel: d.Channel, Key: d.Key, Data: &routerv1.Publication_Json{Json: string(data)}}
}

func (d *draft) placed(now time.Duration, at *routerv1.Placed) {
	d.settled, d.Outcome, d.Return = true, ledger.Acked, now
	d.At, d.Repeat = ledger.Position{Epoch: at.Epoch, Offset: at.Offset}, at.Repeat
}

// failed: what an answer says about this attempt. "not stored" is a router's word that
// it has not, and will not, store what it was sent.
func (d *draft) failed(code codes.Code, why string) {
	d.Why = fmt.Sprintf("%v: %s", code, why)
	sure := code == codes.InvalidArgument || code == codes.ResourceExhausted || code == codes.NotFound ||
		code == codes.Unavailable && strings.HasPrefix(why, "not stored")
	d.unsure = d.unsure || !sure
	if code == codes.InvalidArgument || d.Key == "" {
		d.settled = true
		d.Outcome = ledger.Refused
		if d.unsure {
			d.Outcome = ledger.Unknown
		}
	}
}
