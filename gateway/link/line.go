package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// maxBackoffDoublings keeps the doubling of the reconnect delay inside a time.Duration whatever the configuration says.
const maxBackoffDoublings = 20

// Line is one of a link's lines: one address, one socket after the other. What is in flight belongs to the link, since a peer may
// answer on another line than it was asked on.
type Line struct {
	*profile
	link    *Link
	number  int // from 0
	address string
	log     *zap.Logger
	counts  counts

	// Guarded by Link.mu.
	status  LineStatus
	socket  *socket   // nil while there is none
	nextDue time.Time // of the outbound rate; see due
}

func newLine(l *Link, number int, address string) *Line {
	line := &Line{
		profile: &l.profile, link: l, number: number, address: address, log: l.log,
		status: LineStatus{Line: number, Address: address, State: Down, Since: time.Now()},
	}
	if l.cfg.lineCount() > 1 {
		line.log = l.log.With(zap.Int("line", number))
	}
	return line
}

// run keeps the line connected and signed on until ctx ends.
func (l *Line) run(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		if l.runOnce(ctx) {
			attempt = 0
		}
		if !sleep(ctx, l.reconnectDelay(attempt)) {
			return
		}
		l.counts.reconnects.Add(1)
		l.metrics.reconnects.Inc()
	}
}

// runOnce is one socket's life. It reports whether the line was signed on long enough to start the reconnect delay from its
// beginning; a peer that lets us in and hangs up at once must not be dialled at full speed.
func (l *Line) runOnce(ctx context.Context) (stable bool) {
	if ctx.Err() != nil {
		return false
	}
	l.become(Connecting)
	s, reason, err := l.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			reason = DownShutdown
		}
		l.link.mu.Lock()
		l.enterDown(reason, err)
		l.link.mu.Unlock()
		l.reportDown(reason, err)
		return false
	}
	s.run(ctx)
	return !s.signedOnAt.IsZero() && time.Since(s.signedOnAt) >= l.cfg.ReconnectMax.Std()
}

// connect dials, and does the TLS handshake where the profile has one; the dial function's context ends with the connect timeout.
func (l *Line) connect(ctx context.Context) (*socket, DownReason, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.ConnectTimeout.Std())
	defer cancel()
	nc, err := l.dial(ctx, "tcp", l.address)
	if err != nil {
		reason := DownConnectFailed
		if ctx.Err() != nil {
			reason = DownConnectTimeout
		}
		return nil, reason, fmt.Errorf("dial: %w", err)
	}
	if !l.cfg.TLS.Enabled {
		return newSocket(l, nc), "", nil
	}
	secured, err := l.secure(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, DownTLSFailed, err
	}
	return newSocket(l, secured), "", nil
}

// reconnectDelay doubles with each attempt up to ReconnectMax; half of it is random, so that lines which fell together do not come
// back together.
func (l *Line) reconnectDelay(attempt int) time.Duration {
	delay := l.cfg.ReconnectMin.Std() << min(attempt, maxBackoffDoublings)
	if delay <= 0 || delay > l.cfg.ReconnectMax.Std() {
		delay = l.cfg.ReconnectMax.Std()
	}
	return delay/2 + rand.N(delay/2+1)
}

// sleep waits for d and reports whether it did: false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
