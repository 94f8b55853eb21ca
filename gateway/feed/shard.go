package feed

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// beat is how often paced work (checks of heads, repairs) goes on.
	beat = 25 * time.Millisecond
	// idleBeat is the same for a shard without channels.
	idleBeat = time.Second
	// batch is the most messages taken from the bus at once.
	batch = 256
	// channelBytes is what a quiet channel costs beside its name.
	channelBytes = 224
)

// shard owns the channels that hash to it. One goroutine runs it; everybody else
// posts to the inbox.
type shard struct {
	// immutable after newShard
	id      int
	cfg     *Config
	bus     Bus
	asker   Asker
	sinks   []Sink
	log     *slog.Logger
	metrics *metrics

	// from any goroutine
	inbox   inbox
	backlog backlog

	// owned by the shard's goroutine
	byName   map[string]*feed
	feeds    []*feed // the same, to walk over
	timers   timers
	step     step
	envelope envelope
	flights  map[uint64]flight
	lastID   uint64
	repairs  repairs
	heads    heads
	lingers  int
	names    int // bytes of the names in byName
	spare    []command
	messages [][]byte // taken from the backlog; capacity batch
	told     counted  // what the gauges have of this shard
}

// counted is a shard's share of the gauges.
type counted struct{ channels, names, held, waiting, turns, repairs int }

func newShard(id int, t *Table, bus Bus, asker Asker) *shard {
	n := t.cfg.ShardCount()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	s := &shard{
		id: id, cfg: &t.cfg, bus: bus, asker: asker, sinks: t.sinks, log: t.cfg.Log, metrics: t.metrics,
		inbox:   newInbox(),
		backlog: newBacklog(t.cfg.QueueBytes / n),
		byName:  make(map[string]*feed),
		flights: make(map[uint64]flight),
		repairs: newRepairs(&t.cfg, n),
		heads:   newHeads(&t.cfg, n),
	}
	s.messages = make([][]byte, 0, batch)
	s.step = step{
		cfg: &t.cfg, budget: max(t.cfg.HeldBytes/n, t.cfg.HoldBytes),
		jitter: func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(max(d, 1)))) },
	}
	return s
}

// move brings messages of the bus to the backlog. It never waits for the shard.
func (s *shard) move(ctx context.Context) error {
	into := make([][]byte, 0, batch)
	for {
		messages, err := s.bus.Receive(ctx, s.id, into[:0])
		if err != nil {
			return nil // ctx ended
		}
		s.backlog.put(messages)
		clear(messages)
	}
}

// run serves until ctx ends.
func (s *shard) run(ctx context.Context) error {
	defer s.dropAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.inbox.wake:
			s.step.now = time.Now()
			s.commands()
		case <-s.backlog.wake:
			s.step.now = time.Now()
			messages := s.backlog.take(s.messages)
			for i, m := range messages {
				s.message(m)
				messages[i] = nil
			}
		case <-timer.C:
			s.step.now = time.Now()
			next = time.Time{}
		}
		s.ring()
		if !s.step.now.Before(s.heads.next) {
			s.beat()
		}
		if at := s.wakeAt(); !at.Equal(next) {
			next = at
			timer.Reset(time.Until(at))
		}
		s.tell()
	}
}

func (s *shard) wakeAt() time.Time {
	at := s.timers.next()
	if at.IsZero() || s.heads.next.Before(at) {
		return s.heads.next
	}
	return at
}

// ring serves the feeds whose time has come.
func (s *shard) ring() {
	for {
		at := s.timers.next()
		if at.IsZero() || s.step.now.Before(at) {
			return
		}
		f := s.timers[0]
		f.tick(&s.step)
		s.finish(f)
	}
}

func (s *shard) commands() {
	queue := s.inbox.take(s.spare)
	for i := range queue {
		c := &queue[i]
		switch c.kind {
		case cmdPull:
			f := s.open(c.pull.Channel)
			f.pull(&s.step, &c.pull)
			s.finish(f)
		case cmdCancel:
			if f := s.byName[c.pull.Channel]; f != nil {
				f.cancel(&s.step, func(w waiter) bool {
					return w.sink == c.pull.Sink && w.conn == c.pull.Conn && w.sub == c.pull.Sub
				})
				s.finish(f)
			}
		case cmdLeave:
			s.leave(c.pull.Channel, c.pull.Sink)
		case cmdAnswer:
			s.answered(c.answer)
		}
	}
	s.spare = queue
}

// open finds or makes a feed; a new one begins its interest.
func (s *shard) open(channel string) *feed {
	if f := s.byName[channel]; f != nil {
		if f.sinks.empty() {
			s.lingers--
		}
		return f
	}
	f := &feed{channel: channel, index: int32(len(s.feeds))}
	s.byName[channel] = f
	s.feeds = append(s.feeds, f)
	s.names += len(channel)
	if err := s.bus.Interest(channel, s.id); err != nil {
		s.log.Warn("interest of a channel", "channel", channel, "err", err)
		f.deaf = true
	}
	s.heads.fresh(f, s.step.now)
	if soon := s.step.now.Add(beat); soon.Before(s.heads.next) {
		s.heads.next = soon // it was idle
	}
	return f
}

func (s *shard) leave(channel string, sink int) {
	f := s.byName[channel]
	if f == nil || !f.sinks.has(sink) {
		return
	}
	f.leave(&s.step, sink)
	if f.sinks.empty() {
		if s.lingers++; s.lingers > s.cfg.MaxLinger {
			s.step.do(action{kind: actDrop})
		}
	}
	s.finish(f)
}

// message takes one message of the bus.
func (s *shard) message(b []byte) {
	e := &s.envelope
	if err := e.decode(b); err != nil {
		s.metrics.badBus.Inc()
		return
	}
	f := s.byName[string(e.channel)]
	if f == nil {
		s.metrics.noFeed.Inc()
		return
	}
	f.envelope(&s.step, e)
	s.finish(f)
}

func (s *shard) answered(a *gatewayv1.Answer) {
	fl, ok := s.flights[a.Id]
	if !ok {
		return
	}
	delete(s.flights, a.Id)
	switch fl.kind {
	case askPull:
		fl.f.pulled(&s.step, fl, a)
	case askRepair:
		fl.f.repaired(&s.step, fl, a)
	case askHead:
		fl.f.doubtful = false
		if a.Status == gatewayv1.Status_STATUS_UNAVAILABLE {
			s.heads.failures++
		} else {
			s.heads.answers++
		}
		fl.f.checked(&s.step, a)
	}
	s.finish(fl.f)
}

// Answer is called by the Asker; it posts.
func (s *shard) Answer(a *gatewayv1.Answer) { s.inbox.post(command{kind: cmdAnswer, answer: a}) }

// finish carries out what the last call to f asked for. Carrying out one action
// may add more, of the same feed.
func (s *shard) finish(f *feed) {
	for i := 0; i < len(s.step.out); i++ {
		a := &s.step.out[i]
		switch a.kind {
		case actLive:
			epoch, frames, history := a.epoch, a.frames, a.history
			f.sinks.each(func(i int) { s.sinks[i].Live(f.channel, epoch, frames, history) })
		case actGap:
			g := Gap{Channel: f.channel, Epoch: a.epoch, From: a.from, Offset: a.offset, Reason: a.reason}
			s.metrics.gaps[g.Reason].Inc()
			f.sinks.each(func(i int) { s.sinks[i].Gap(g) })
		case actPiece:
			if a.piece.Status == Pending {
				s.metrics.pending.Inc()
			}
			s.sinks[a.sink].Piece(*a.piece)
		case actAsk:
			s.ask(a.ask, a.flight)
		case actTurn:
			s.wantTurn(f)
		case actDone:
			s.repairs.done()
		case actRenew:
			s.renew(f)
		case actCheck:
			s.heads.again(f, s.step.now, a.after)
		case actDrop:
			s.drop(f)
		}
	}
	clear(s.step.out)
	s.step.out = s.step.out[:0]
	s.timers.set(f, f.due())
	f.rest()
}

func (s *shard) ask(a *gatewayv1.Ask, fl flight) {
	s.lastID++
	a.Id = s.lastID
	s.flights[a.Id] = fl
	s.metrics.asks[fl.kind].Inc()
	s.asker.Ask(a, s)
}

func (s *shard) renew(f *feed) {
	s.metrics.renewals.Inc()
	err := s.bus.Renew(f.channel, s.id)
	if err != nil && !f.deaf {
		s.log.Warn("renew interest of a channel", "channel", f.channel, "err", err)
	}
	f.deaf = err != nil
}

// drop forgets a feed that nobody is interested in.
func (s *shard) drop(f *feed) {
	if f.gone || !f.sinks.empty() {
		return
	}
	f.gone = true
	s.lingers--
	s.bus.Drop(f.channel, s.id)
	delete(s.byName, f.channel)
	s.names -= len(f.channel)
	last := len(s.feeds) - 1
	moved := s.feeds[last]
	s.feeds[f.index] = moved
	s.feeds[last] = nil
	s.feeds = s.feeds[:last]
	if moved != f {
		s.heads.moved(moved, int(f.index), s.step.now)
		moved.index = f.index
	}
	if f.work != nil {
		f.work.lingerAt = time.Time{}
	}
}

func (s *shard) dropAll() {
	for _, f := range s.feeds {
		s.bus.Drop(f.channel, s.id)
	}
	s.byName, s.feeds, s.names, s.timers, s.step.held = nil, nil, 0, nil, 0
	clear(s.flights)
	s.repairs.queue, s.repairs.running = nil, 0
	s.tell()
}

// tell brings the metrics up to date.
func (s *shard) tell() {
	for i := range s.step.count {
		if n := s.step.count[i]; n != 0 {
			s.step.count[i] = 0
			s.metrics.counts[i].Add(float64(n))
		}
	}
	now := counted{
		channels: len(s.feeds), names: s.names, held: s.step.held, waiting: len(s.flights),
		turns: len(s.repairs.queue), repairs: s.repairs.running,
	}
	if now == s.told {
		return
	}
	s.metrics.channels.Add(float64(now.channels - s.told.channels))
	s.metrics.carried.Add(int64(now.channels - s.told.channels))
	s.metrics.table.Add(float64((now.channels-s.told.channels)*channelBytes + now.names - s.told.names))
	s.metrics.held.Add(float64(now.held - s.told.held))
	s.metrics.waiting.Add(float64(now.waiting - s.told.waiting))
	s.metrics.turns.Add(float64(now.turns - s.told.turns))
	s.metrics.repairBytes.Add(float64((now.repairs - s.told.repairs) * s.cfg.ChunkBytes))
	s.told = now
}
