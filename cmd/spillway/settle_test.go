package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

func TestSparklines(t *testing.T) {
	values := []uint32{0, 1, 50, 100, 0}
	if got := sparkline(values, true); got != " ▁▄█ " {
		t.Errorf("got %q", got)
	}
	if got := sparkline(values, false); got != " _-# " {
		t.Errorf("got %q", got)
	}
	if got := sparkline([]uint32{0, 0}, true); got != "  " {
		t.Errorf("got %q", got)
	}
	if got := sparkline([]uint32{4_000_000_000, 1}, true); got != "█▁" {
		t.Errorf("got %q", got)
	}
}

func TestSettleReportIsATableOrLines(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	report := &settleReport{
		incidents: []*routerv1.Incident{{
			Region: "eu", StartMs: 1_000_000, SettledMs: 1_021_400, Admitted: 50, PeakPerSecond: 30, P50Ms: 800, P95Ms: 9_000, P99Ms: 20_000,
			Causes: []*routerv1.IncidentCause{
				{Kind: "lost", Id: "edge-2", Displaced: 40, Back: 40, CaughtUp: 39},
				{Kind: "operation", Id: "op-1", Displaced: 10, Back: 9, NeverBack: 1},
			},
		}, {Region: "eu", StartMs: 1, Causes: []*routerv1.IncidentCause{{Kind: "unknown"}}}},
		curves: []curve{newCurve("eu", []*routerv1.ArrivalWindow{
			{StartMs: uint64(now.UnixMilli()) - 4_000, Moved: 1, Resumed: 2, Fresh: 3, Refused: 4, Reset_: 5},
			{StartMs: uint64(now.UnixMilli()) - 3_800, Fresh: 1}, {StartMs: uint64(now.UnixMilli()) - 900_000, Fresh: 1},
		}, now)},
	}
	var b strings.Builder
	if err := (&settleCmd{Watch: true}).print(&b, report, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#  new/s: now 7, most 7; refused/s: now 9, most 9", "21.4s", "not yet", "lost edge-2", "operation op-1", "unknown"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\033") {
		t.Error("escapes without a terminal")
	}
	b.Reset()
	if err := (&settleCmd{JSON: true}).print(&b, report, true); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	var line struct {
		Type      string
		SettledMS uint64 `json:"settled_ms"`
		Causes    []struct{ ID string }
	}
	if len(lines) != 3 || json.Unmarshal([]byte(lines[1]), &line) != nil || line.Type != "incident" || line.SettledMS != 1_021_400 || line.Causes[1].ID != "op-1" {
		t.Errorf("got %s", b.String())
	}
}
