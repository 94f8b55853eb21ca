package operations

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/spillway-io/spillway/proto/spillway/gateway/v1"
)

const (
	topicProgress = "progress"
	// maxProgress bounds the figures that are kept, one for each edge and operation.
	maxProgress = 4_096
	// maxProgressBytes bounds one message of them.
	maxProgressBytes = 16 << 10
)

// progressKey is an edge's part in an operation, until that edge is restarted.
type progressKey struct {
	operation, edge string
	incarnation     uint64
}

// progressTable has the newest figures that edges told on the bus. Past its bound
// the oldest one goes: its edge will tell again.
type progressTable struct {
	mu     sync.Mutex // guards below
	newest map[progressKey]*gatewayv1.Progress
}

func newProgressTable() *progressTable {
	return &progressTable{newest: make(map[progressKey]*gatewayv1.Progress)}
}

func (t *progressTable) hear(message []byte) {
	p := new(gatewayv1.Progress)
	if len(message) > maxProgressBytes || proto.Unmarshal(message, p) != nil || p.Operation == "" || p.Edge == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := progressKey{p.Operation, p.Edge, p.Incarnation}
	if old := t.newest[key]; old != nil && old.AtMs > p.AtMs {
		return
	}
	t.newest[key] = p
	if len(t.newest) > maxProgress {
		t.evictLocked()
	}
}

func (t *progressTable) evictLocked() {
	var oldest progressKey
	var at uint64
	for key, p := range t.newest {
		if oldest.operation == "" || p.AtMs < at {
			oldest, at = key, p.AtMs
		}
	}
	delete(t.newest, oldest)
}

// forget drops the figures of operations that are not live.
func (t *progressTable) forget(live func(operation string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.newest, func(key progressKey, _ *gatewayv1.Progress) bool { return !live(key.operation) })
}

// parts is what every edge last told of an operation, on the bus or in its record; by
// edge and incarnation, not to be changed.
func (t *progressTable) parts(op *gatewayv1.Operation) []*gatewayv1.Progress {
	all := make(map[progressKey]*gatewayv1.Progress)
	for _, p := range op.Progress {
		all[progressKey{op.Id, p.Edge, p.Incarnation}] = p
	}
	t.mu.Lock()
	for key, p := range t.newest {
		if old := all[key]; key.operation == op.Id && (old == nil || old.AtMs < p.AtMs && !old.Ended) {
			all[key] = p
		}
	}
	t.mu.Unlock()
	return slices.SortedFunc(maps.Values(all), func(a, b *gatewayv1.Progress) int {
		return cmp.Or(strings.Compare(a.Edge, b.Edge), cmp.Compare(a.Incarnation, b.Incarnation))
	})
}

// of is parts with those of one edge added up.
func (t *progressTable) of(op *gatewayv1.Operation) []*gatewayv1.Progress {
	var edges []*gatewayv1.Progress
	for _, p := range t.parts(op) {
		if last := len(edges) - 1; last >= 0 && edges[last].Edge == p.Edge {
			edges[last] = after(edges[last], p)
		} else {
			edges = append(edges, p)
		}
	}
	return edges
}

// after adds what an edge did before it was restarted to what it did since. Who was
// connected to it when it died is gone.
func after(before, since *gatewayv1.Progress) *gatewayv1.Progress {
	p := proto.CloneOf(since)
	p.Total += before.Total
	p.Moved += before.Moved
	p.Closed += before.Closed
	p.Stragglers += before.Stragglers
	p.Gone += before.Gone + before.Remaining
	p.Granted += before.Granted
	return p
}
