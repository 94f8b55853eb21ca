package router

import (
	"context"
	"time"
)

// trimChannel is no channel (names have no control characters): its owner is the
// one router that runs retention.
const trimChannel = "\x00retention"

// retention deletes what namespaces do not keep, and then the rows of channels that
// nobody uses, until ctx ends: in small bites, with a breath after each as long as it took.
func (r *Router) retention(ctx context.Context) error {
	if r.cfg.TrimEvery == 0 {
		return nil
	}
	for pause(ctx, r.cfg.TrimEvery) {
		if !r.own.owned(trimChannel) {
			continue
		}
		err := r.trimAll(ctx)
		if err == nil && r.cfg.ForgetAfter > 0 {
			err = r.forgetAll(ctx)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("retention stopped early", "error", err)
		}
	}
	return nil
}

func (r *Router) trimAll(ctx context.Context) error {
	rules := r.namespaces.Retention()
	return r.bites(ctx, func(bite context.Context) (int, error) {
		r.metrics.storeCalls.trim.Inc()
		n, err := r.store.Trim(bite, rules, r.cfg.KeyWindow, r.cfg.TrimLimit)
		r.metrics.trimmed.Add(float64(n))
		return n, err
	})
}

// forgetAll removes the rows of channels that nobody uses any more.
func (r *Router) forgetAll(ctx context.Context) error {
	return r.bites(ctx, func(bite context.Context) (int, error) {
		r.metrics.storeCalls.forget.Inc()
		n, err := r.store.Forget(bite, r.cfg.ForgetAfter, r.cfg.TrimLimit)
		r.metrics.forgotten.Add(float64(n))
		return n, err
	})
}

// bites calls take until it takes less than it may.
func (r *Router) bites(ctx context.Context, take func(context.Context) (int, error)) error {
	for {
		began := time.Now()
		bite, cancel := context.WithTimeout(ctx, 10*r.cfg.StoreTimeout)
		n, err := take(bite)
		cancel()
		if err != nil || n < r.cfg.TrimLimit {
			return err
		}
		if !pause(ctx, time.Since(began)) {
			return nil
		}
	}
}
