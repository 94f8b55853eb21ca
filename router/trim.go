package router

import (
	"context"
	"time"
)

// trimChannel is no channel (names have no control characters): its owner is the
// one router that runs retention.
const trimChannel = "\x00retention"

// retention deletes what namespaces do not keep, until ctx ends: in small bites,
// with a breath after each as long as it took.
func (r *Router) retention(ctx context.Context) error {
	if r.cfg.TrimEvery == 0 {
		return nil
	}
	for pause(ctx, r.cfg.TrimEvery) {
		if !r.own.owned(trimChannel) {
			continue
		}
		if err := r.trimAll(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("retention stopped early", "error", err)
		}
	}
	return nil
}

func (r *Router) trimAll(ctx context.Context) error {
	rules := r.namespaces.retention()
	for {
		began := time.Now()
		bite, cancel := context.WithTimeout(ctx, 10*r.cfg.StoreTimeout)
		r.metrics.storeCalls.trim.Inc()
		n, err := r.store.Trim(bite, rules, r.cfg.KeyWindow, r.cfg.TrimLimit)
		cancel()
		r.metrics.trimmed.Add(float64(n))
		if err != nil || n < r.cfg.TrimLimit {
			return err
		}
		if !pause(ctx, time.Since(began)) {
			return nil
		}
	}
}
