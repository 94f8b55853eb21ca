package control

import (
	"context"
	"math/rand/v2"
	"time"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	// keepEvery is about the time between two looks at what is due. It is drawn anew
	// each time, so that one member acts first and the others see that it is done.
	keepEvery = 5 * time.Second
	// chores bounds the writes of one look.
	chores = 200
)

// keep does what is due until ctx ends: it makes keys, writes back what a restored
// key-value store forgot, forgets, and, as keeper, deletes what is over.
func (c *Control) keep(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.ready:
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.poke:
			// Not all members at once; a store without a key is worth no wait.
			if len(*c.ring.Load()) > 0 {
				timer.Reset(rand.N(keepEvery / 2))
				continue
			}
		case <-timer.C:
		}
		c.chores(ctx)
		timer.Reset(keepEvery/2 + rand.N(keepEvery/2))
	}
}

func (c *Control) chores(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	for _, chore := range []func(context.Context) error{c.mend, c.makeKey, c.forget, c.tidy} {
		if err := chore(ctx); err != nil {
			c.log.Debug("key-value store: could not do what is due; trying on", "err", err)
			return
		}
	}
}

// makeKey makes the first key and its successors.
func (c *Control) makeKey(ctx context.Context) error {
	now, r := c.cfg.Now(), *c.ring.Load()
	if !r.due(now, c.cfg.RotateKeys) {
		return nil
	}
	key := newKey(r.next(), now)
	value, err := encode(key)
	if err != nil {
		return err
	}
	done, err := c.put(ctx, keyName(key.Id), value, If{})
	if done {
		c.log.Info("made a ticket key", "id", key.Id)
	}
	return err
}

// mend writes back what a restored key-value store forgot.
func (c *Control) mend(ctx context.Context) error {
	for range chores {
		name, value, cond, ok := c.nextDirty()
		if !ok {
			return nil
		}
		if value == nil {
			continue
		}
		done, err := c.put(ctx, name, value, cond)
		if err != nil {
			return err
		}
		if done {
			c.metrics.mended.Inc()
		}
		c.clean(name) // not done: another member was first, and the watch tells what it wrote
	}
	return nil
}

func (c *Control) nextDirty() (name string, value []byte, cond If, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.mirror.dirty {
		message := c.mirror.get(name)
		if message == nil {
			delete(c.mirror.dirty, name)
			return name, nil, If{}, true
		}
		value, err := encode(message)
		if err != nil {
			delete(c.mirror.dirty, name)
			return name, nil, If{}, true
		}
		return name, value, If{Revision: c.mirror.revisions[name]}, true
	}
	return "", nil, If{}, false
}

func (c *Control) clean(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mirror.dirty, name)
}

// forget removes from memory the revocations whose time is over, and as keeper
// from the key-value store.
func (c *Control) forget(ctx context.Context) error {
	for name, revision := range c.stale() {
		if !c.cfg.Keeper {
			return nil
		}
		if err := c.kv.Delete(ctx, name, revision); err != nil {
			return err
		}
	}
	return nil
}

// stale drops revocations that are over, and returns some that are still in the
// key-value store.
func (c *Control) stale() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mirror
	for _, id := range c.bad.over(c.cfg.Now()) {
		c.bad.drop(id)
		if name := FolderRevocations + "/" + id; m.revisions[name] != 0 {
			m.stale[name] = true
		}
	}
	c.metrics.revocations.Set(float64(c.bad.count.Load()))
	some := make(map[string]int64)
	for name := range m.stale {
		if some[name] = m.revisions[name]; len(some) == chores {
			break
		}
	}
	return some
}

// tidy is the keepers': it deletes keys and operations that are over, and ends
// operations that nobody ended.
func (c *Control) tidy(ctx context.Context) error {
	if !c.cfg.Keeper {
		return nil
	}
	now := c.cfg.Now()
	var names []string
	for _, id := range c.ring.Load().over(now, c.cfg.TicketLife) {
		names = append(names, keyName(id))
	}
	for _, id := range forgotten(c.Operations(), now) {
		names = append(names, FolderOperations+"/"+id)
	}
	for _, name := range names[:min(len(names), chores)] {
		if err := c.kv.Delete(ctx, name, c.revision(name)); err != nil {
			return err
		}
	}
	for _, op := range c.Operations() {
		if !abandoned(op, now) {
			continue
		}
		err := c.UpdateOperation(ctx, op.Id, func(op *gatewayv1.Operation) bool {
			if !abandoned(op, now) {
				return false
			}
			op.State, op.Message = gatewayv1.OperationState_OPERATION_STATE_FAILED, "nobody has ended it: whoever worked at it is gone"
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Control) revision(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mirror.revisions[name]
}
