package link

import (
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
	case networkClass:
		return c.MaxPending + c.reversalReserve() + networkCallReserve
	case reversalClass:
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
	// costs a request not sent, which harms nobody. Nothing is sent in the last minAnswerTime before Deadline either.
	SendBefore time.Time
	// Deadline is when Exchange returns at the latest, unless an interim answer ("still working") extends the wait. It is required.
	Deadline time.Time
	// Latest is up to when interim answers may extend the wait, each by Config.InterimExtension; zero is not beyond Deadline.
	Latest time.Time
	// Affinity names what belongs together, one card's messages for instance; 0 is nothing. Calls with the same affinity are written in
	// the order they were handed over, and while one is in flight the next goes over the same line, as long as that line is usable.
	Affinity uint64
}

// call is a Call on its way. Its place (due, turn, queued, tried, and the writing of socket) is its own goroutine's alone.
type call struct {
	Call
	mti      iso8583.MTI
	key      string
	exchange iso8583.MTI    // the request's type without its repeat bit
	known    []elementValue // of the key, where a response may lack an element of it
	fallback []string       // keys by Config.CorrelationFallback
	confirm  []elementValue // what the response must repeat
	until    time.Time      // when the wait ends: Deadline, moved by interim answers; guarded by Link.mu
	frame    []byte
	pinned   *socket       // the only socket it may go over; nil for any line
	signOn   bool          // our sign-on
	after    *call         // handed over before it with the same affinity, and to be written first; nil once it has passed
	passed   chan struct{} // closed when the call was written or never will be; nil without affinity
	due      time.Time     // the outbound rate allows no write before
	turn     turn          // in socket.writes
	queued   bool          // it has entered there; what is not due yet has not
	tried    uint64        // a bit for each line it was placed on
	begun    bool          // the write has begun; guarded by Link.mu
	socket   *socket       // that it is placed on; nil while it waits for its predecessor; guarded by Link.mu
	reply    chan answer   // with room for one; one send at most, by whoever took the call out of the pending map
}

type answer struct {
	body []byte
	err  error
}

// network reports whether the call is network management, which sign-on does not gate.
func (c *call) network() bool { return c.mti.Class() == networkClass }

// Exchange sends a request and waits for its answer: the response's body, which is the caller's own and not decoded yet.
//
// The call is registered under its key before a byte leaves; a key that another call has in flight is refused. It returns at the
// call's Deadline at the latest, wherever it stands: waiting for the write lock, writing or waiting for the answer; or at its Latest,
// where the peer has said that it is still working. A write that is still blocked at the Deadline takes the socket with it, since half
// a frame may be out.
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
	body, err := l.exchange(ctx, pending)
	if err == ErrNotSignedOn && l.plannedOff() {
		err = ErrSignedOff
	}
	return body, err
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
	if c.Latest.Before(c.Deadline) {
		c.Latest = c.Deadline
	}
	var peeked iso8583.Peeked
	if err := l.spec.Peek(c.Body, &peeked); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	mti := peeked.MTI()
	if !isRequest(l.spec, mti) {
		return nil, fmt.Errorf("an exchange starts with a request, not with MTI %s", mti)
	}
	exchange := l.spec.Exchange(mti)
	key, err := iso8583.AppendKey(nil, &peeked, l.cfg.keyElements(exchange))
	if err != nil {
		return nil, fmt.Errorf("make correlation key: %w", err)
	}
	frame, err := l.framing.Append(nil, c.Body)
	if err != nil {
		return nil, fmt.Errorf("frame body: %w", err)
	}
	pending := &call{
		Call: c, mti: mti, exchange: exchange, key: string(key), frame: frame, until: c.Deadline, reply: make(chan answer, 1),
		confirm: valuesOf(&peeked, l.cfg.confirmElements(exchange)), fallback: fallbackKeys(&peeked, l.cfg.CorrelationFallback),
	}
	if pending.network() || len(pending.fallback) > 0 {
		pending.known = valuesOf(&peeked, l.cfg.keyElements(exchange))
	}
	return pending, nil
}

// exchange is one call on this socket and no other.
func (s *socket) exchange(ctx context.Context, c *call) ([]byte, error) {
	c.pinned = s
	return s.line.link.exchange(ctx, c)
}

// exchange is one call: register, get the turn to write, write, wait.
func (l *Link) exchange(ctx context.Context, c *call) ([]byte, error) {
	if err := l.register(c); err != nil {
		return nil, err
	}
	l.metrics.pending.Inc()
	defer l.metrics.pending.Dec()
	if err := l.send(ctx, c); err != nil {
		l.unregister(c)
		return nil, err
	}
	return l.await(ctx, c)
}

// await waits for the answer to a call that was sent, for as long as interim answers extend the wait.
func (l *Link) await(ctx context.Context, c *call) ([]byte, error) {
	timer := time.NewTimer(time.Until(c.Deadline))
	defer timer.Stop()
	mine := false
	var outcome error
	for outcome == nil {
		select {
		case a := <-c.reply:
			return a.body, a.err
		case <-timer.C:
			var left time.Duration
			if left, mine = l.expire(c); left > 0 {
				timer.Reset(left)
				continue
			}
			outcome = ErrTimeout
		case <-ctx.Done():
			mine = l.unregister(c)
			outcome = &waitError{cause: context.Cause(ctx)}
		}
	}
	if mine {
		return nil, outcome
	}
	// Somebody took the call in this very moment and is about to complete it. What was taken as an answer is delivered as one.
	a := <-c.reply
	return a.body, a.err
}

// expire takes out a call whose wait is over, or gives the time that interim answers have left it. It reports false when somebody else
// has taken the call, who then completes it.
func (l *Link) expire(c *call) (left time.Duration, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[c.key] != c {
		return 0, false
	}
	if left = time.Until(c.until); left > 0 {
		return left, true
	}
	l.remove(c)
	return 0, true
}

// send writes the call's frame. An error means that no write was begun; a write that fails gives up the socket, which completes the
// call like every other one.
func (s *socket) send(ctx context.Context, c *call) error {
	if err := s.awaitDue(ctx, c.due, c.SendBefore); err != nil {
		return err
	}
	if !c.queued {
		s.writes.enter(&c.turn, false)
	}
	defer s.writes.leave(&c.turn)
	if err := s.awaitTurn(ctx, &c.turn, c.SendBefore); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &notSentError{text: "wait for the write", cause: context.Cause(ctx)}
	}
	if err := s.begin(c); err != nil {
		return err
	}
	s.write(c.frame, c.mti, c.Deadline)
	return nil
}

// begin is the last check before the write, and the point from which on the call's outcome is unknown until it is answered. An
// answer that arrives before it belongs to an earlier request with the same key.
func (s *socket) begin(c *call) error {
	l := s.line.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.pending[c.key] != c:
		return ErrShuttingDown // abandoned; nothing else takes out a call that was not begun
	case s.lost != "":
		return ErrDown
	case !s.usable(c):
		return ErrNotSignedOn
	case c.expired(time.Now()):
		return ErrExpired
	}
	c.begun = true
	return nil
}

// expired reports whether either clock forbids the write, or no time is left for an answer.
func (c *call) expired(now time.Time) bool {
	return !now.Before(c.SendBefore) || !now.Round(0).Before(c.SendBefore.Round(0)) || // Round(0) strips the monotonic reading
		c.Deadline.Sub(now) < minAnswerTime
}
