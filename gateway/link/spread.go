package link

import (
	"context"
	"errors"
	"slices"
	"time"
)

// maxAffinityCalls bounds the calls of one affinity that are in flight or wait for their turn to be.
const maxAffinityCalls = 4096

// affinity is what is in flight for one Call.Affinity.
type affinity struct {
	calls  int     // pending
	last   *call   // handed over last
	socket *socket // the one the last call that has one is on
}

// register takes a call in: its key is taken on all lines from here on. A call that has no predecessor of its affinity to wait for is
// placed on a line as well, in the same critical section, so that equal times of handing over cannot change places.
func (l *Link) register(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, inFlight := l.pending[c.key]; inFlight {
		return ErrKeyInFlight
	}
	a := l.affinities[c.Affinity]
	if c.Affinity != 0 {
		c.passed = make(chan struct{})
		if a != nil && !a.last.hasPassed() {
			if a.calls >= maxAffinityCalls || len(l.pending) >= len(l.lines)*l.cfg.pendingLimit(c.mti.Class()) {
				return ErrTooManyPending
			}
			c.after = a.last
		}
	}
	if c.after == nil {
		if err := l.place(c); err != nil {
			return err
		}
	}
	if c.Affinity != 0 {
		if a == nil {
			a = &affinity{}
			l.affinities[c.Affinity] = a
		}
		a.calls++
		a.last = c
		if c.socket != nil {
			a.socket = c.socket
		}
	}
	l.pending[c.key] = c
	for _, key := range c.fallback {
		l.fallbacks[key] = append(l.fallbacks[key], c)
	}
	return nil
}

// remove takes a call out; the caller holds mu and has found it in the pending map.
func (l *Link) remove(c *call) {
	delete(l.pending, c.key)
	for _, key := range c.fallback {
		if calls := l.fallbacks[key]; len(calls) > 1 {
			at := slices.Index(calls, c)
			l.fallbacks[key] = slices.Delete(calls, at, at+1)
		} else {
			delete(l.fallbacks, key)
		}
	}
	if c.socket != nil {
		c.socket.pending--
	}
	if a := l.affinities[c.Affinity]; a != nil {
		if a.calls--; a.calls == 0 {
			delete(l.affinities, c.Affinity)
		}
	}
	l.noteSettled()
}

// unregister takes a call out. It reports false when somebody else has taken it, who then completes it.
func (l *Link) unregister(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[c.key] != c {
		return false
	}
	l.remove(c)
	return true
}

// place finds a line for a call and gives it a place in the queue of writes there, if it is due; the caller holds mu.
func (l *Link) place(c *call) error {
	if l.stopping && c.pinned == nil {
		return ErrShuttingDown
	}
	now := time.Now()
	s, due, err := l.pick(c, now)
	if err != nil {
		return err
	}
	line := s.line
	c.socket, c.due, c.turn = s, due, turn{}
	c.tried |= 1 << line.number
	s.pending++
	if rate := l.cfg.Budgets.MaxRate; rate > 0 {
		line.nextDue = laterOf(line.nextDue, now).Add(time.Second / time.Duration(rate))
	}
	// What is not due yet enters when it is: with the turn in its hands it would hold up network management, which does not wait for the rate.
	if c.queued = !due.After(now); c.queued {
		s.writes.enter(&c.turn, c.network())
	}
	l.next = (line.number + 1) % len(l.lines)
	return nil
}

// pick chooses the socket for a call: the only one it may take, else the one its affinity is on, else the one with the fewest calls
// of those not tried yet; equal ones take turns. Without one it gives the reason of the line that came nearest.
func (l *Link) pick(c *call, now time.Time) (*socket, time.Time, error) {
	if c.pinned != nil {
		due, err := c.pinned.admit(c, now)
		return c.pinned, due, err
	}
	if a := l.affinities[c.Affinity]; a != nil && a.socket != nil && a.socket.usable(c) && c.tried&(1<<a.socket.line.number) == 0 {
		due, err := a.socket.admit(c, now)
		return a.socket, due, err
	}
	var best *socket
	var bestDue time.Time
	refusal := ErrDown
	for i := range l.lines {
		line := l.lines[(l.next+i)%len(l.lines)]
		if line.socket == nil || c.tried&(1<<line.number) != 0 {
			continue
		}
		due, err := line.socket.admit(c, now)
		switch {
		case err != nil && nearness(err) > nearness(refusal):
			refusal = err
		case err == nil && (best == nil || line.socket.pending < best.pending):
			best, bestDue = line.socket, due
		}
	}
	if best == nil {
		return nil, time.Time{}, refusal
	}
	return best, bestDue, nil
}

// nearness orders the reasons for which lines refuse a call by how near they came to taking it.
func nearness(err error) int {
	switch err {
	case ErrNotSignedOn:
		return 1
	case ErrTooManyPending:
		return 2
	case ErrRateLimited:
		return 3
	default:
		return 0
	}
}

// usable reports whether a socket carries calls of this class; the caller holds Link.mu.
func (s *socket) usable(c *call) bool {
	return s.lost == "" && (c.network() || s.line.status.State == SignedOn)
}

// admit reports when the call may be written on this socket, or why it may not; the caller holds Link.mu.
func (s *socket) admit(c *call, now time.Time) (due time.Time, err error) {
	cfg := &s.line.cfg
	switch {
	case s.lost != "":
		return due, ErrDown
	case !s.usable(c):
		return due, ErrNotSignedOn
	case s.pending >= cfg.pendingLimit(c.mti.Class()):
		return due, ErrTooManyPending
	case cfg.Budgets.MaxRate == 0 || c.network():
		return due, nil
	}
	due = s.line.nextDue.Add(-rateTolerance)
	if due.After(now) && !due.Before(c.SendBefore) {
		return due, ErrRateLimited
	}
	return due, nil
}

// rateTolerance is by how much writes may come before their due time, so that a few at once are no reason to wait.
const rateTolerance = 100 * time.Millisecond

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// send writes the call's frame, on another line when one fails it before the write was begun. An error means that no write was begun;
// a write that fails gives up the socket, which completes the call like every other one.
func (l *Link) send(ctx context.Context, c *call) error {
	defer c.pass()
	if err := l.awaitPredecessor(ctx, c); err != nil {
		return err
	}
	for {
		err := c.socket.send(ctx, c)
		if err == nil || c.pinned != nil || !errors.Is(err, ErrDown) && !errors.Is(err, ErrNotSignedOn) {
			return err
		}
		if l.moveOn(c) != nil {
			return err
		}
	}
}

// moveOn places a call on another line after its own one failed it.
func (l *Link) moveOn(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[c.key] != c {
		return ErrShuttingDown
	}
	c.socket.pending--
	c.socket = nil
	return l.placeAgain(c)
}

// placeAgain places a call that is registered already; the caller holds mu.
func (l *Link) placeAgain(c *call) error {
	if err := l.place(c); err != nil {
		return err
	}
	if a := l.affinities[c.Affinity]; a != nil {
		a.socket = c.socket
	}
	return nil
}

// awaitPredecessor keeps the order of one affinity: a call gets its line only when what was handed over before it has been written or
// will never be. So the order is kept over all lines, and also when one of them is lost meanwhile.
func (l *Link) awaitPredecessor(ctx context.Context, c *call) error {
	if c.after == nil {
		return nil
	}
	for c.after != nil {
		if err := await(ctx, c.after.passed, nil, c.SendBefore); err != nil {
			return err // c.after stays: our successor waits for it as well
		}
		c.after = c.after.after
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[c.key] != c {
		return ErrShuttingDown
	}
	return l.placeAgain(c)
}

// pass lets the next call of the affinity go.
func (c *call) pass() {
	if c.passed != nil {
		close(c.passed)
	}
}

// hasPassed reports whether the call, and all before it, need not be waited for.
func (c *call) hasPassed() bool {
	select {
	case <-c.passed:
		return c.after == nil
	default:
		return false
	}
}

// HasRoom reports whether a financial request that is no reversal would be taken at this moment: a line is signed on and has fewer
// calls pending than Config.MaxPending. It is for refusing work before it is recorded; Exchange checks again.
func (l *Link) HasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping {
		return false
	}
	for _, line := range l.lines {
		if line.socket != nil && line.status.State == SignedOn && line.socket.pending < l.cfg.MaxPending {
			return true
		}
	}
	return false
}
