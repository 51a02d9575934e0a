package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

const (
	// minReversalReserve and reversalReserveShare make reversalReserve.
	minReversalReserve   = 64
	reversalReserveShare = 4 // a quarter of Config.MaxPending
	// networkCallReserve is how many class 8 calls may be pending beyond everything else: a link full of waiting calls must still be
	// able to ask its peer whether it lives.
	networkCallReserve = 4
)

// reversalReserve is how many class 4 calls (reversals) may be pending beyond Config.MaxPending. A peer that answers no authorization
// fills the link, and each of them is owed a reversal: those must not wait for the ones they undo.
func (c *Config) reversalReserve() int {
	return max(minReversalReserve, c.MaxPending/reversalReserveShare)
}

// pendingLimit is how many calls may be pending before one of this class more.
func (c *Config) pendingLimit(class uint8) int {
	switch class {
	case 8:
		return c.MaxPending + c.reversalReserve() + networkCallReserve
	case 4:
		return c.MaxPending + c.reversalReserve()
	default:
		return c.MaxPending
	}
}

// Call is one request with its two times. Both are instants taken with time.Now and Add in this process: their monotonic reading
// counts, so that a step of the wall clock neither shortens nor lengthens a wait. It can keep a request from being sent; see SendBefore.
type Call struct {
	// Body is the encoded message without its frame. The link does not change or keep it; the caller does not change it before
	// Exchange returns.
	Body []byte
	// SendBefore is the instant before which the write must begin; zero means Deadline. It is checked under the write lock, right before
	// the write, by the monotonic clock and by the wall clock, and both must allow it: the monotonic clock stands still while the machine
	// is suspended, and meanwhile another process may have taken the request for lost and reversed it. A wall clock that was set forward
	// costs a request not sent, which harms nobody.
	SendBefore time.Time
	// Deadline is when Exchange returns at the latest. It is required.
	Deadline time.Time
}

// call is a Call on its way.
type call struct {
	Call
	mti     iso8583.MTI
	key     string
	confirm []confirmation
	frame   []byte
	begun   bool        // the write has begun; guarded by Link.mu
	reply   chan answer // with room for one; one send at most, by whoever took the call out of the pending map
}

// confirmation is the value that a response must repeat in an element, if it carries it. The value lies in the request's body.
type confirmation struct {
	element iso8583.Element
	value   []byte
}

type answer struct {
	body []byte
	err  error
}

// network reports whether the call is network management, which sign-on does not gate.
func (c *call) network() bool { return c.mti.Class() == 8 }

// Exchange sends a request and waits for its answer: the response's body, which is the caller's own and not decoded yet.
//
// The call is registered under its key before a byte leaves; a key that another call has in flight is refused. It returns at the
// call's Deadline at the latest, wherever it stands: waiting for the write lock, writing or waiting for the answer. A write that is
// still blocked then takes the socket with it, since half a frame may be out.
//
// Errors for which NotSent is true prove that nothing was sent. All others mean that the peer may have acted: ErrTimeout, a
// *LinkLostError, or ctx's error. An answer that comes afterwards goes to Options.OnUnmatched.
//
// Class 8 (network management) is not gated by sign-on; everything else is.
func (l *Link) Exchange(ctx context.Context, c Call) ([]byte, error) {
	pending, err := l.newCall(c)
	if err != nil {
		return nil, &notSentError{text: "prepare request", cause: err}
	}
	l.mu.Lock()
	s := l.socket
	stopping := l.stopping
	l.mu.Unlock()
	switch {
	case stopping:
		return nil, ErrShuttingDown
	case s == nil:
		return nil, ErrDown
	}
	return s.exchange(ctx, pending)
}

// newCall reads key and confirmations from the request's own bytes and frames it. What cannot be read or framed fails here and
// disturbs nobody.
func (l *Link) newCall(c Call) (*call, error) {
	if c.Deadline.IsZero() {
		return nil, errors.New("a call needs a deadline")
	}
	if c.SendBefore.IsZero() || c.SendBefore.After(c.Deadline) {
		c.SendBefore = c.Deadline
	}
	var peeked iso8583.Peeked
	if err := l.spec.Peek(c.Body, &peeked); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	mti := peeked.MTI()
	if !mti.IsRequest() {
		return nil, fmt.Errorf("an exchange starts with a request, not with MTI %s", mti)
	}
	key, err := iso8583.AppendKey(nil, &peeked, l.keyElements(mti))
	if err != nil {
		return nil, fmt.Errorf("make correlation key: %w", err)
	}
	frame, err := l.framing.Append(nil, c.Body)
	if err != nil {
		return nil, fmt.Errorf("frame body: %w", err)
	}
	var confirm []confirmation
	for _, e := range l.cfg.Confirm {
		if value := peeked.Value(e); value != nil {
			confirm = append(confirm, confirmation{element: e, value: value})
		}
	}
	return &call{Call: c, mti: mti, key: string(key), confirm: confirm, frame: frame, reply: make(chan answer, 1)}, nil
}

func (l *Link) keyElements(mti iso8583.MTI) []iso8583.Element {
	if mti.Class() == 8 {
		return l.cfg.CorrelationNetwork
	}
	return l.cfg.Correlation
}

// exchange is one call on one socket: register, get the write lock, write, wait.
func (s *socket) exchange(ctx context.Context, c *call) ([]byte, error) {
	if err := s.register(c); err != nil {
		return nil, err
	}
	s.link.metrics.pending.Inc()
	defer s.link.metrics.pending.Dec()
	if err := s.send(ctx, c); err != nil {
		s.unregister(c)
		return nil, err
	}
	timer := time.NewTimer(time.Until(c.Deadline))
	defer timer.Stop()
	var outcome error
	select {
	case a := <-c.reply:
		return a.body, a.err
	case <-timer.C:
		outcome = ErrTimeout
	case <-ctx.Done():
		outcome = fmt.Errorf("wait for answer: %w", context.Cause(ctx))
	}
	if s.unregister(c) {
		return nil, outcome
	}
	// Somebody took the call in this very moment and is about to complete it. What was taken as an answer is delivered as one.
	a := <-c.reply
	return a.body, a.err
}

// send writes the call's frame. An error means that no write was begun; a write that fails gives up the socket, which completes the
// call like every other one.
func (s *socket) send(ctx context.Context, c *call) error {
	if err := s.lockWrites(ctx, c.SendBefore); err != nil {
		return err
	}
	defer s.unlockWrites()
	if err := ctx.Err(); err != nil {
		return &notSentError{text: "wait for the write", cause: context.Cause(ctx)}
	}
	if err := s.begin(c); err != nil {
		return err
	}
	s.write(c.frame, c.mti, c.Deadline)
	return nil
}

// register puts a call into the pending map, if the link's state allows the call.
func (s *socket) register(c *call) error {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch _, inFlight := s.pending[c.key]; {
	case s.lost != "":
		return ErrDown
	case !c.network() && l.status.State != SignedOn:
		return ErrNotSignedOn
	case inFlight:
		return ErrKeyInFlight
	case len(s.pending) >= l.cfg.pendingLimit(c.mti.Class()):
		return ErrTooManyPending
	}
	s.pending[c.key] = c
	return nil
}

// HasRoom reports whether a financial request that is no reversal would be taken at this moment: the link is signed on and fewer
// calls are pending than Config.MaxPending. It is for refusing work before it is recorded; Exchange checks again.
func (l *Link) HasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket != nil && !l.stopping && l.status.State == SignedOn && len(l.socket.pending) < l.cfg.MaxPending
}

// unregister takes a call out of the pending map. It reports false when somebody else has taken it, who then completes it.
func (s *socket) unregister(c *call) bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.pending[c.key] != c {
		return false
	}
	delete(s.pending, c.key)
	return true
}

// begin is the last check before the write, and the point from which on the call's outcome is unknown until it is answered. An
// answer that arrives before it belongs to an earlier request with the same key.
func (s *socket) begin(c *call) error {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.pending[c.key] != c && l.stopping:
		return ErrShuttingDown
	case s.pending[c.key] != c:
		return ErrDown
	case !c.network() && l.status.State != SignedOn:
		return ErrNotSignedOn
	case c.expired(time.Now()):
		return ErrExpired
	}
	c.begun = true
	return nil
}

// expired reports whether either clock forbids the write.
func (c *call) expired(now time.Time) bool {
	return !now.Before(c.SendBefore) || !now.Round(0).Before(c.SendBefore.Round(0)) // Round(0) strips the monotonic reading
}

// take finds the call that a response answers and removes it from the pending map, in one critical section. Without a call it gives
// the kind of the unmatched response instead. p is the peeked response.
func (s *socket) take(key []byte, p *iso8583.Peeked, interim bool) (*call, UnmatchedKind) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	c := s.pending[string(key)]
	switch {
	case c == nil || !c.begun:
		return nil, Late
	case c.contradicts(p):
		return nil, ConfirmMismatch
	case interim:
		return nil, Interim
	}
	delete(s.pending, c.key)
	return c, ""
}

// contradicts reports whether a response differs from the request in an element that both carry.
func (c *call) contradicts(p *iso8583.Peeked) bool {
	for _, want := range c.confirm {
		if got := p.Value(want.element); got != nil && !bytes.Equal(got, want.value) {
			return true
		}
	}
	return false
}
