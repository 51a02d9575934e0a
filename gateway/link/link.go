// Package link keeps one ISO 8583 connection to a scheme and exchanges messages over it.
//
// A link is Go's net/rpc client with an ISO key: one socket has one reader, one write lock and one bounded map of pending calls.
//
// It promises three outcomes for every exchange, within the call's own deadline: an answer; certainly not sent (NotSent is true:
// no write was begun); or unknown (everything else: at least one byte may be on its way). It sends a request at most once, delivers
// an answer only to the call whose key it carries, and hands on every other message it received instead of dropping it. It dials
// for ever, signs on, finds a silent peer by echo, and gives up a socket as soon as it cannot be trusted: after a failed or partial
// write, after a frame whose length makes no sense, after unanswered echoes.
//
// It never sends again, never lets financial traffic out before sign-on, never judges an answer (that is the caller's, who decodes
// it), never holds a lock while it writes to a channel or waits, and never puts a message's content into an error, a log line or a
// metric. All its waiting is on monotonic time; the wall clock is read for DE 7, and can forbid a write but never delay or allow one.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
)

// maxBackoffDoublings keeps the doubling of the reconnect delay inside a time.Duration whatever the configuration says.
const maxBackoffDoublings = 20

// Options are a link's collaborators. Each may be left out.
type Options struct {
	Log *zap.Logger
	// Metrics are shared by all links of a process; see NewMetrics.
	Metrics *Metrics
	// OnUnmatched is given every message that answers no pending call, by the reader and in the order received. It must not block:
	// while it runs, the link receives nothing.
	OnUnmatched func(Unmatched)
	// Dial connects; nil is a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Link is one line to a scheme. Run keeps it up; Exchange may be called by any number of goroutines at any time.
type Link struct {
	name        string
	cfg         Config
	spec        *iso8583.Spec
	framing     *iso8583.Framing
	diagnosing  *iso8583.Framing // the same, looking for a wrong includes setting
	log         *zap.Logger
	onUnmatched func(Unmatched)
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	metrics     linkMetrics
	counts      counts
	lastSTAN    atomic.Uint32   // of our own 08xx messages
	accepted    map[string]bool // DE 70 codes of the peer's that are answered with RC 00

	mu       sync.Mutex // protects the following, and the pending calls of the socket
	status   Status
	socket   *socket // nil while there is none
	stopping bool    // Run's ctx is over; for good
}

// New checks the configuration and makes a link that is down until Run is called. Name is the link's own, as it stands in logs,
// metrics and messages handed on.
func New(name string, cfg Config, opts Options) (*Link, error) {
	var faults configs.Faults
	cfg.Validate("", &faults)
	spec, specErr := cfg.Spec.Build()
	framing, framingErr := cfg.Framing.Build()
	if err := errors.Join(faults.Err(), specErr, framingErr); err != nil {
		return nil, fmt.Errorf("configure link %s: %w", name, err)
	}
	l := &Link{
		name: name, cfg: cfg, spec: spec, framing: framing, diagnosing: framing.Diagnosing(spec),
		log: opts.Log, onUnmatched: opts.OnUnmatched, dial: opts.Dial,
		accepted: map[string]bool{"": true, cfg.Codes.SignOn: true, cfg.Codes.SignOff: true, cfg.Codes.Echo: true},
		status:   Status{Name: name, Address: cfg.Address, State: Down, Since: time.Now()},
	}
	for _, code := range cfg.Codes.Accept {
		l.accepted[code] = true
	}
	if l.log == nil {
		l.log = zap.NewNop()
	}
	l.log = l.log.With(zap.String("link", name))
	if l.dial == nil {
		l.dial = new(net.Dialer).DialContext
	}
	metrics := opts.Metrics
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	l.metrics = metrics.forLink(name)
	l.lastSTAN.Store(rand.Uint32N(maxSTAN))
	return l, nil
}

// Name gives the name the link was made with.
func (l *Link) Name() string { return l.name }

// Spec gives the link's message specification, to encode requests and decode answers with.
func (l *Link) Spec() *iso8583.Spec { return l.spec }

// Run keeps the link connected and signed on until ctx ends: it dials again for ever, with a growing, jittered delay. It is to be
// called once, and returns nil.
//
// When ctx ends nothing new is sent, every pending call is completed at once as unknown (*LinkLostError with DownShutdown), the
// link signs off within Config.SignOnTimeout and closes. So whoever owns the link stops its intake first, lets pending calls find
// their answers, and ends ctx last.
func (l *Link) Run(ctx context.Context) error {
	defer l.stop()
	for attempt := 0; ; attempt++ {
		if l.runOnce(ctx) {
			attempt = 0
		}
		if !sleep(ctx, l.reconnectDelay(attempt)) {
			return nil
		}
		l.counts.reconnects.Add(1)
		l.metrics.reconnects.Inc()
	}
}

// runOnce is one socket's life. It reports whether the link was signed on long enough to start the reconnect delay from its
// beginning; a peer that lets us in and hangs up at once must not be dialled at full speed.
func (l *Link) runOnce(ctx context.Context) (stable bool) {
	if ctx.Err() != nil {
		return false
	}
	l.become(Connecting)
	s, reason, err := l.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			reason = DownShutdown
		}
		l.mu.Lock()
		l.enterDown(reason, err)
		l.mu.Unlock()
		l.reportDown(reason, err)
		return false
	}
	s.run(ctx)
	return !s.signedOnAt.IsZero() && time.Since(s.signedOnAt) >= l.cfg.ReconnectMax.Std()
}

// connect dials; the dial function's context ends with the connect timeout.
func (l *Link) connect(ctx context.Context) (*socket, DownReason, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.ConnectTimeout.Std())
	defer cancel()
	nc, err := l.dial(ctx, "tcp", l.cfg.Address)
	if err != nil {
		reason := DownConnectFailed
		if ctx.Err() != nil {
			reason = DownConnectTimeout
		}
		return nil, reason, fmt.Errorf("dial: %w", err)
	}
	return newSocket(l, nc), "", nil
}

// reconnectDelay doubles with each attempt up to ReconnectMax; half of it is random, so that links which fell together do not come
// back together.
func (l *Link) reconnectDelay(attempt int) time.Duration {
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
