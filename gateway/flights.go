package gateway

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// flights are the recorded authorisations this process is running. They only save repeats a poll: what counts is in the
// database. Bounded by Config.MaxInFlight.
type flights struct {
	mu   sync.Mutex // protects the following
	byID map[uuid.UUID]*flight
}

func (fs *flights) add(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byID == nil {
		fs.byID = make(map[uuid.UUID]*flight)
	}
	fs.byID[f.authorization.ID] = f
}

func (fs *flights) remove(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.byID, f.authorization.ID)
}

func (fs *flights) has(id uuid.UUID) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.byID[id] != nil
}

// hint tells a flight, when this process runs it, that its client asked for its reversal.
func (fs *flights) hint(id uuid.UUID) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byID[id]; f != nil {
		f.undo.Store(true)
	}
}

// done is closed when the flight lands; nil, which never is, when this process does not run it.
func (fs *flights) done(id uuid.UUID) <-chan struct{} {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byID[id]; f != nil {
		return f.done
	}
	return nil
}

// oldestSeconds is the age of the oldest flight, 0 when there is none.
func (fs *flights) oldestSeconds() float64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	oldest := 0.0
	for _, f := range fs.byID {
		oldest = max(oldest, time.Since(f.entered).Seconds())
	}
	return oldest
}

// admission counts what is in flight against a limit, and lets shutdown wait for it to drain.
type admission struct {
	limit int

	mu      sync.Mutex // protects the following
	n       int
	closed  bool
	drained chan struct{} // closed when closed and n is 0
}

// take reports whether one more may start, and whether it is for want of room that it may not.
func (a *admission) take() (ok, full bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return false, false
	case a.n >= a.limit:
		return false, true
	}
	a.n++
	return true, false
}

// Done ends what take started.
func (a *admission) Done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n--
	if a.closed && a.n == 0 {
		close(a.drained)
	}
}

// close lets nothing more start; the channel closes when nothing is left.
func (a *admission) close() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		if a.n == 0 {
			close(a.drained)
		}
	}
	return a.drained
}

func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}
