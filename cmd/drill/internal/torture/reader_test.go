package torture

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/torture/ledger"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

const (
	readTick  = 30 * time.Millisecond
	pageMost  = 20
	finalTime = 60 * time.Second
)

// reader reads pages of history by random routers until its trial stops.
type reader struct {
	tr   *trial
	name string
	rng  *rand.Rand
}

func (r *reader) run(ctx context.Context) {
	tick := time.NewTicker(readTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		channel := r.tr.channel(r.rng)
		if namespace(channel) == loose {
			continue // no store, nothing to be linear with
		}
		router := r.tr.routers[r.rng.IntN(r.tr.members)]
		r.tr.read(r.name, router, channel, r.rng)
	}
}

// read notes one page; a router that does not answer says nothing.
func (tr *trial) read(by string, router *router, channel string, rng *rand.Rand) {
	page := ledger.Read{By: by, Via: router.ID, Channel: channel, Call: tr.rec.now()}
	request := &routerv1.ReadHistoryRequest{Channel: channel, Limit: uint32(1 + rng.IntN(pageMost))}
	if page.Reverse = rng.IntN(2) == 0; page.Reverse {
		request.Reverse = true
	} else {
		page.After = tr.near(channel, rng)
		request.Offset = &page.After
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	resp, err := routerv1.NewHistoryServiceClient(router.conn).ReadHistory(ctx, request)
	if err != nil {
		return
	}
	page.Return = tr.rec.now()
	fill(&page, resp)
	tr.heads.note(channel, page.Head)
	tr.rec.read(page)
}

func fill(page *ledger.Read, resp *routerv1.ReadHistoryResponse) {
	page.Epoch, page.Head, page.First, page.More = resp.Epoch, resp.Head, resp.First, resp.More
	for _, e := range resp.Events {
		page.Events = append(page.Events, ledger.Event{Offset: e.Offset, Value: valueOf([]byte(e.GetJson()))})
	}
}

// whole reads all of a channel's history, page by page, until it answers.
func (tr *trial) whole(ctx context.Context, router *router, channel string) (ledger.Read, error) {
	client := routerv1.NewHistoryServiceClient(router.conn)
	all := ledger.Read{By: "the end", Via: router.ID, Channel: channel, Call: tr.rec.now()}
	after := uint64(0)
	for {
		resp, err := client.ReadHistory(ctx, &routerv1.ReadHistoryRequest{Channel: channel, Limit: 1000, Offset: &after})
		if err != nil {
			return all, err
		}
		fill(&all, resp)
		if all.Return = tr.rec.now(); !resp.More || len(resp.Events) == 0 {
			return all, nil
		}
		after = resp.Events[len(resp.Events)-1].Offset
	}
}
