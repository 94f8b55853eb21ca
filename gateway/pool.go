package gateway

import "sync"

// pool runs short jobs that burn CPU (token checks, upgrades) on a few goroutines,
// so that no loop does. Its queue is bounded: submit says no rather than wait.
type pool struct {
	jobs chan func()
	wg   sync.WaitGroup
}

// newPool starts workers; close ends them and waits.
func newPool(workers, queue int) *pool {
	p := &pool{jobs: make(chan func(), queue)}
	for range workers {
		p.wg.Go(func() { // ends when jobs is closed; close waits for it
			for job := range p.jobs {
				job()
			}
		})
	}
	return p
}

// submit queues a job; false: the queue is full.
func (p *pool) submit(job func()) bool {
	select {
	case p.jobs <- job:
		return true
	default:
		return false
	}
}

// close runs what is queued and ends. Nobody may submit any more.
func (p *pool) close() {
	close(p.jobs)
	p.wg.Wait()
}
