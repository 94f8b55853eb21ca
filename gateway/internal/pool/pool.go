// Package pool runs short jobs that burn CPU, token checks and the reading of requests,
// on a few goroutines, so that neither a loop nor the door does. The edge makes one,
// starts it, and closes it when nobody submits any more. Its queue is bounded: Submit
// says no rather than wait.
package pool

import "sync"

// Pool is a bounded queue of jobs and the goroutines that run them.
type Pool struct {
	jobs chan func()
	wg   sync.WaitGroup
}

// New makes a pool whose queue takes so many jobs. Nothing runs before Start.
func New(queue int) *Pool { return &Pool{jobs: make(chan func(), queue)} }

// Start starts the workers; Close ends them and waits.
func (p *Pool) Start(workers int) {
	for range workers {
		p.wg.Go(func() { // ends when jobs is closed; Close waits for it
			for job := range p.jobs {
				job()
			}
		})
	}
}

// Submit queues a job; false: the queue is full.
func (p *Pool) Submit(job func()) bool {
	select {
	case p.jobs <- job:
		return true
	default:
		return false
	}
}

// Close runs what is queued and ends. Nobody may submit any more.
func (p *Pool) Close() {
	close(p.jobs)
	p.wg.Wait()
}
