package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

type operationsCmd struct {
	remote
	JSON bool `help:"Print one JSON object a line." name:"json"`
}

// Run lists drains, evacuations and rebalances of the last day.
func (c *operationsCmd) Run(e *env) error {
	return c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		answer, err := client.ListOperations(ctx, &routerv1.ListOperationsRequest{})
		if err != nil {
			return err
		}
		return c.print(os.Stdout, answer.GetOperations(), time.Now())
	})
}

// operationLine is one operation in --json.
type operationLine struct {
	ID         string          `json:"id"`
	Kind       string          `json:"kind"`
	State      string          `json:"state"`
	Node       string          `json:"node,omitempty"`
	Region     string          `json:"region,omitempty"`
	Cause      string          `json:"cause"`
	StartedMS  uint64          `json:"started_ms"`
	EndedMS    uint64          `json:"ended_ms,omitempty"`
	DeadlineMS uint32          `json:"deadline_ms,omitempty"`
	Total      uint32          `json:"total"`
	Moved      uint32          `json:"moved"`
	Closed     uint32          `json:"closed"`
	Stragglers uint32          `json:"stragglers"`
	Gone       uint32          `json:"gone"`
	Remaining  uint32          `json:"remaining"`
	Told       uint32          `json:"told"`
	Granted    uint32          `json:"granted"`
	Missing    uint32          `json:"missing"`
	PlannedMS  uint32          `json:"planned_ms,omitempty"`
	PerSecond  float64         `json:"granted_per_second,omitempty"`
	Message    string          `json:"message,omitempty"`
	Hooks      []string        `json:"hooks,omitempty"`
	Settlement *settlementLine `json:"settlement,omitempty"`
	Edges      []edgeLine      `json:"edges,omitempty"`
}

// settlementLine is how regions came to rest after it.
type settlementLine struct {
	Settled       bool    `json:"settled"`
	SettleMS      uint64  `json:"settle_ms,omitempty"` // absent: not yet
	PeakPerSecond float64 `json:"peak_per_second"`
	Displaced     uint64  `json:"displaced"`
	Back          uint64  `json:"back"`
	CaughtUp      uint64  `json:"caught_up"`
	NeverBack     uint64  `json:"never_back"`
}

// edgeLine is an edge's part in it.
type edgeLine struct {
	Edge       string `json:"edge"`
	Total      uint32 `json:"total"`
	Moved      uint32 `json:"moved"`
	Closed     uint32 `json:"closed"`
	Stragglers uint32 `json:"stragglers"`
	Gone       uint32 `json:"gone"`
	Remaining  uint32 `json:"remaining"`
	Ended      bool   `json:"ended"`
	Message    string `json:"message,omitempty"`
}

func lineOf(o *routerv1.Operation) operationLine {
	line := operationLine{
		ID: o.GetId(), Kind: o.GetKind(), State: o.GetState(), Node: o.GetNode(), Region: o.GetRegion(), Cause: o.GetCause(),
		StartedMS: o.GetStartedMs(), EndedMS: o.GetEndedMs(), DeadlineMS: o.GetDeadlineMs(),
		Total: o.GetTotal(), Moved: o.GetMoved(), Closed: o.GetClosed(), Stragglers: o.GetStragglers(), Gone: o.GetGone(), Remaining: o.GetRemaining(),
		Told: o.GetTold(), Granted: o.GetGranted(), Missing: o.GetMissing(), PlannedMS: o.GetPlannedMs(), PerSecond: o.GetGrantedPerSecond(),
		Message: o.GetMessage(), Hooks: o.GetHooks(),
	}
	if m := o.GetSettlement(); m != nil {
		line.Settlement = &settlementLine{
			m.GetSettled(), m.GetSettleMs(), m.GetPeakPerSecond(), m.GetDisplaced(), m.GetBack(), m.GetCaughtUp(), m.GetNeverBack(),
		}
	}
	for _, e := range o.GetEdges() {
		line.Edges = append(line.Edges, edgeLine{
			e.GetEdge(), e.GetTotal(), e.GetMoved(), e.GetClosed(), e.GetStragglers(), e.GetGone(), e.GetRemaining(), e.GetEnded(), e.GetMessage(),
		})
	}
	return line
}

func (c *operationsCmd) print(to io.Writer, all []*routerv1.Operation, now time.Time) error {
	if c.JSON {
		enc := json.NewEncoder(to)
		for _, o := range all {
			if err := enc.Encode(lineOf(o)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "OPERATION\tKIND\tWHERE\tSTATE\tBEGAN\tTOOK\tTOTAL\tMOVED\tCLOSED\tSTRAGGLERS\tTO GO\tPEAK/s\tSETTLED\tMESSAGE")
	for _, o := range all {
		began := time.UnixMilli(int64(o.GetStartedMs()))
		end := now
		if o.GetEndedMs() != 0 {
			end = time.UnixMilli(int64(o.GetEndedMs()))
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v ago\t%v\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", o.GetId(), o.GetKind(), where(o), o.GetState(),
			max(0, now.Sub(began)).Round(time.Second), max(0, end.Sub(began)).Round(100*time.Millisecond),
			o.GetTotal(), o.GetMoved(), o.GetClosed(), o.GetStragglers(), o.GetRemaining(), settled(o), o.GetMessage())
	}
	return w.Flush()
}

// settled is the peak of new connections and the settle time, two cells.
func settled(o *routerv1.Operation) string {
	m := o.GetSettlement()
	switch {
	case m == nil:
		return "\t"
	case !m.GetSettled():
		return fmt.Sprintf("%.0f\tnot yet", m.GetPeakPerSecond())
	}
	return fmt.Sprintf("%.0f\t%s", m.GetPeakPerSecond(), settleTime(m.GetSettleMs()))
}

type abortCmd struct {
	remote
	Operation string `arg:"" help:"Operation (spillway operations lists them)."`
	JSON      bool   `help:"Print one JSON object." name:"json"`
}

// abortLine is what was done, in --json.
type abortLine struct {
	Operation string `json:"operation"`
}

// Run stops an operation; clients that were told to move still do.
func (c *abortCmd) Run(e *env) error {
	err := c.admin(e, func(ctx context.Context, client routerv1.AdminServiceClient) error {
		_, err := client.AbortOperation(ctx, &routerv1.AbortOperationRequest{Operation: c.Operation})
		return err
	})
	if err != nil {
		return err
	}
	return told(c.JSON, abortLine{c.Operation}, "operation %s is aborted", c.Operation)
}
