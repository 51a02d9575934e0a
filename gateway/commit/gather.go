package commit

import (
	"sync"
	"time"
)

// gatherLimit bounds how long a batch gathers beside a transaction in flight: about as long as a transaction takes. Past it the
// transaction is a slow one, and nobody waits for it.
const gatherLimit = 5 * time.Millisecond

// flying counts the steps of the transactions in flight.
type flying struct {
	mu      sync.Mutex // protects the following
	steps   int
	changed chan struct{} // closed, and replaced, when a transaction ends
}

func (f *flying) look() (steps int, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps, f.changed
}

func (f *flying) start(steps int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps += steps
}

func (f *flying) land(steps int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps -= steps
	close(f.changed)
	f.changed = make(chan struct{})
}

// gather completes a batch that has its first step. While no other transaction is in flight it leaves with what is queued, so a
// lone step never waits. Beside one in flight it gathers until it is as large, or until that one ends: the fixed cost of a
// transaction is paid less often, and the steps would have waited for the same cores.
func (c *Committer) gather(batch []*request) []*request {
	var limit <-chan time.Time
	for {
		batch = c.drain(batch)
		others, changed := c.flying.look()
		if len(batch) >= min(others, c.cfg.MaxBatch) {
			break
		}
		if limit == nil {
			timer := time.NewTimer(gatherLimit)
			defer timer.Stop()
			limit = timer.C
		}
		select {
		case r := <-c.queue:
			batch = appendTaken(batch, r)
			continue
		case <-changed:
			continue
		case <-limit:
		case <-c.draining:
		}
		break
	}
	c.flying.start(len(batch))
	return batch
}

// drain adds what is queued now, up to MaxBatch.
func (c *Committer) drain(batch []*request) []*request {
	for len(batch) < c.cfg.MaxBatch {
		select {
		case r := <-c.queue:
			batch = appendTaken(batch, r)
		default:
			return batch
		}
	}
	return batch
}
