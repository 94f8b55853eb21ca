package drill

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/payload"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	payloadBytes = 128
	publishEvery = 20 * time.Millisecond
	publishMost  = 500 // events of one call
	publishTime  = 5 * time.Second
)

// publisher publishes numbered events on channels in turn, each with a key and again
// until it is acked: what it counts is in the store once.
type publisher struct {
	to       routerv1.PublisherServiceClient
	channels []string
	rate     int
	name     string        // of this run: its keys are its own
	done     chan struct{} // closed when run has ended

	mu    sync.Mutex // guards all below
	turns int        // channels that are published to, from the first on
	acked []uint64   // events of each channel
	total uint64
	fails uint64 // calls or events that had to be repeated
	last  error
}

func newPublisher(to routerv1.PublisherServiceClient, channels []string, rate int) *publisher {
	return &publisher{to: to, channels: channels, rate: rate, name: rand.Text()[:8] + "-", turns: len(channels), acked: make([]uint64, len(channels)), done: make(chan struct{})}
}

// run publishes until ctx ends, and then until the last batch is acked or a grace over.
func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	start, sent, next := time.Now(), 0, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := min(int(time.Since(start).Seconds()*float64(p.rate))-sent, publishMost)
		if n <= 0 {
			continue
		}
		sent += n
		batch, turns := make([]int, n), p.reach(0)
		for i := range batch {
			batch[i] = next % turns
			next = batch[i] + 1
		}
		p.publish(ctx, batch)
		if behind := time.Since(start).Seconds()*float64(p.rate) - float64(sent); behind > float64(p.rate) {
			start, sent = time.Now(), 0 // the store was away: no burst of what was not published
		}
	}
}

// reach tells how many channels are published to; n > 0 sets it.
func (p *publisher) reach(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 {
		p.turns = n
	}
	return p.turns
}

// publish sends one event on each of the channels, which may repeat.
func (p *publisher) publish(ctx context.Context, batch []int) {
	seqs := make(map[int]uint64, len(batch))
	all := make([]*routerv1.Publication, len(batch))
	p.mu.Lock()
	for i, ch := range batch {
		if seqs[ch] == 0 {
			seqs[ch] = p.acked[ch]
		}
		seqs[ch]++
		name := p.channels[ch]
		data := payload.Append(nil, name, seqs[ch], time.Now(), payloadBytes)
		all[i] = &routerv1.Publication{Channel: name, Data: &routerv1.Publication_Json{Json: string(data)}, Key: p.name + fmt.Sprint(seqs[ch])}
	}
	p.mu.Unlock()
	open := batch
	for len(open) > 0 {
		if !p.once(ctx, &open, &all) && ctx.Err() != nil {
			return
		}
	}
}

// once makes one call and keeps what it did not ack.
func (p *publisher) once(ctx context.Context, open *[]int, all *[]*routerv1.Publication) bool {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
	resp, err := p.to.PublishBatch(call, &routerv1.PublishBatchRequest{Publications: *all})
	cancel()
	if err == nil && len(resp.Results) != len(*all) {
		err = fmt.Errorf("%d results for %d events", len(resp.Results), len(*all))
	}
	var again []int
	var rest []*routerv1.Publication
	p.mu.Lock()
	for i, ch := range *open {
		if err == nil && resp.Results[i].GetFailure() == nil {
			p.acked[ch]++
			p.total++
			continue
		}
		if err == nil {
			p.last = fmt.Errorf("%s", resp.Results[i].GetFailure().Message)
		}
		p.fails++
		again, rest = append(again, ch), append(rest, (*all)[i])
	}
	if err != nil {
		p.last = err
	}
	p.mu.Unlock()
	*open, *all = again, rest
	if len(again) == 0 {
		return true
	}
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// expected is how many deliveries acked events make, with members clients in a channel.
func (p *publisher) expected(members func(channel int) int) (deliveries, events uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ch, n := range p.acked {
		deliveries += n * uint64(members(ch))
	}
	return deliveries, p.total
}
