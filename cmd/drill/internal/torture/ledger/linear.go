package ledger

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearTime bounds porcupine's search of one channel. The model has one next state
// for each operation, so it needs milliseconds for thousands.
const linearTime = 20 * time.Second

// opKind of what porcupine orders.
type opKind uint8

const (
	appendOp opKind = iota // the head moves to offset
	repeatOp               // the head is at offset or beyond
	readOp                 // the head is at offset
)

type op struct {
	kind        opKind
	offset      uint64
	call, ret   time.Duration
	description string
}

// model is a log of one channel: its state is the head. What stands at an offset is the
// business of the other rules.
var model = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, _ any) (bool, any) {
		head, o := state.(uint64), input.(*op)
		switch o.kind {
		case appendOp:
			return o.offset == head+1, o.offset
		case repeatOp:
			return o.offset <= head, head
		}
		return o.offset == head, head
	},
	DescribeOperation: func(input, _ any) string { return input.(*op).description },
}

// linear asks porcupine for an order of all publishes and reads, and if there is none
// says of which two that is.
func (a *audit) linear() {
	ops := a.operations()
	history := make([]porcupine.Operation, len(ops))
	for i := range ops {
		history[i] = porcupine.Operation{ClientId: i, Input: &ops[i], Call: int64(ops[i].call), Return: int64(ops[i].ret)}
	}
	switch porcupine.CheckOperationsTimeout(model, history, linearTime) {
	case porcupine.Ok:
		return
	case porcupine.Unknown:
		a.breach("linear", nil, "porcupine found no answer in %v for %d operations", linearTime, len(ops))
		return
	}
	first, second := conflict(ops)
	if first == nil {
		a.breach("linear", nil, "no order of the %d operations explains them", len(ops))
		return
	}
	epoch := ""
	if a.final != nil {
		epoch = a.final.Epoch
	}
	a.breach("linear", []Position{{epoch, first.offset}, {epoch, second.offset}}, "no order explains that [%.3f to %.3f: %s] was over before [%.3f to %.3f: %s]",
		first.call.Seconds(), first.ret.Seconds(), first.description, second.call.Seconds(), second.ret.Seconds(), second.description)
}

// operations are what moved the head or saw it. A publish of unknown outcome that was
// seen is an append that was over when it was first seen; one that nobody saw did not
// happen. Offsets of which nobody knows the event were appended at some time.
func (a *audit) operations() []op {
	var ops []op
	top := uint64(0)
	for at := range a.seen {
		top = max(top, at.Offset)
	}
	appends := make([]op, top+1)
	for offset := range appends {
		appends[offset] = op{offset: uint64(offset), ret: math.MaxInt64, description: fmt.Sprintf("somebody publishes %d", offset)}
	}
	for at, when := range a.seen {
		appends[at.Offset].ret = min(appends[at.Offset].ret, when)
	}
	for at, value := range a.truth {
		if p := a.values[value]; p != nil {
			appends[at.Offset].call, appends[at.Offset].description = p.Call, fmt.Sprintf("%v is published: %v", at, p)
		}
	}
	for i := range appends[1:] {
		o := appends[i+1]
		o.ret = max(o.ret, o.call) // (nowhere) has told of it
		ops = append(ops, o)
	}
	for _, p := range a.publishes {
		if p.Outcome == Acked && a.truth[p.At] != p.Value {
			ops = append(ops, op{kind: repeatOp, offset: p.At.Offset, call: p.Call, ret: p.Return, description: p.String()})
		}
	}
	for _, r := range a.pages() {
		ops = append(ops, op{kind: readOp, offset: r.Head, call: r.Call, ret: r.Return, description: r.String()})
	}
	return ops
}

// conflict finds two operations of which one was over before the other began, and
// which would have to be the other way round: each forces the head up to or beyond
// its offset when it is over, and second says that it was lower still.
func conflict(ops []op) (first, second *op) {
	for i := range ops {
		for j := range ops {
			x, y := &ops[i], &ops[j]
			if x.ret >= y.call || i == j {
				continue
			}
			below := y.offset < x.offset
			if y.kind == appendOp {
				below = y.offset <= x.offset
			}
			if y.kind != repeatOp && below && (first == nil || x.ret < first.ret) {
				first, second = x, y
			}
		}
	}
	return first, second
}
