package drill

import (
	"context"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
	routerv1 "github.com/spillway-io/spillway/proto/spillway/router/v1"
)

// Lanes of windows.
const (
	laneMoved = iota
	laneResumed
	laneFresh
	lanes
)

// admitted are arrivals by lane, as the edges themselves told them, in buckets of 200 ms
// from the start of the incident. They do not depend on how busy the generators are.
// ok=false: the cluster does not say.
func (w *world) admitted() (series [lanes][]uint32, ok bool) {
	regions := []string{""}
	if w.o.Scenario == "evacuate" {
		regions = []string{"east", "west"}
	}
	for _, region := range regions {
		ctx, cancel := context.WithTimeout(w.ctx, callTime)
		resp, err := w.admin.GetArrivals(ctx, &routerv1.GetArrivalsRequest{Region: region, SinceMs: uint64(w.t0.UnixMilli())})
		cancel()
		if err != nil {
			return series, false
		}
		for _, win := range resp.Windows {
			i := int(time.UnixMilli(int64(win.StartMs)).Sub(w.t0) / loadgen.Bucket)
			if i < 0 {
				continue
			}
			for lane, n := range []uint32{win.Moved, win.Resumed, win.Fresh} {
				for len(series[lane]) <= i {
					series[lane] = append(series[lane], 0)
				}
				series[lane][i] += n
			}
		}
	}
	return series, true
}
