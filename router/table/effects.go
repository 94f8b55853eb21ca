package table

import (
	"math/rand/v2"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
	"github.com/spillway-io/spillway/router/channel"
	"github.com/spillway-io/spillway/router/namespace"
)

// effects carries out what the shard's current channel wants done.
type effects shard

var _ channel.Effects = (*effects)(nil)

func (f *effects) Ready() {
	e := f.current
	switch {
	case e.listed:
		return
	case e.Namespace().Durability == namespace.None:
		f.memory.push(e)
	default:
		f.stored.push(e)
		f.ready.Add(1)
	}
	e.listed = true
}

func (f *effects) Fan(env *gatewayv1.Envelope) {
	f.table.deps.Bus.Publish(env)
	f.table.metrics.fanned.Add(float64(len(env.Events)))
}

// Finish may be called from any goroutine.
func (f *effects) Finish(p *channel.Publication, res channel.Result) {
	f.table.Release(p)
	f.table.metrics.publishes.of(&res).Inc()
	p.Finish(res)
}

func (f *effects) Drop(p *channel.Publication) {
	f.table.Release(p)
	f.table.metrics.abandoned.Inc()
}

func (f *effects) Pass(to string, pubs []*channel.Publication) { f.table.deps.Pass(to, pubs) }

func (f *effects) Read(q *channel.ReadQuery) { f.table.deps.Read(q) }

func (f *effects) Seek() { f.table.deps.Seek(f.current.Name()) }

func (f *effects) Watch() {
	if e := f.current; !e.watched {
		e.watched = true
		f.watched = append(f.watched, e)
	}
}

func (f *effects) Offer(to string, first bool) {
	e, o := f.current, f.offers[to]
	if o == nil {
		o = &offers{}
		f.offers[to] = o
	}
	if first {
		o.first.push(e)
	} else {
		o.rest.push(e)
	}
	f.table.deps.Offers(to)
}

func (f *effects) Repeat() {
	if e := f.current; !e.quiet {
		e.quiet = true
		f.quiet.add(e, f.step.Now)
	}
}

func (f *effects) InUse() bool { return f.table.deps.InUse(f.current.Name()) }

// epochShift leaves room below the revision of the membership for the epochs that memory
// numbers within one revision.
const epochShift = 20

func (f *effects) NewEpoch(above uint64) uint64 {
	t := f.table
	view := f.step.Look.Revision() << epochShift
	for {
		generation := t.generation.Load()
		epoch := max(view+generation, above+1)
		ahead := epoch - view
		if ahead <= generation || ahead >= 1<<epochShift || t.generation.CompareAndSwap(generation, ahead) {
			return epoch
		}
	}
}

func (f *effects) Jitter(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

func (f *effects) Count(c channel.Counter, n int) { f.table.metrics.counted[c].Add(float64(n)) }
