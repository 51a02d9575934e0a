// Package link keeps the connections to one ISO 8583 scheme and exchanges messages over them.
//
// A link has one or more lines with the same profile. A line is Go's net/rpc client with an ISO key: one socket has one reader and one
// write lock; the bounded map of pending calls is the link's, so that a key is in flight once on all lines, and an answer finds its
// call whatever line it comes on.
//
// It promises three outcomes for every exchange, within the call's own deadline: an answer; certainly not sent (NotSent is true:
// no write was begun); or unknown (everything else: at least one byte may be on its way). It sends a request at most once: another
// line is tried only while no write was begun. It delivers an answer only to the call whose key it carries, and hands on every other
// message it received instead of dropping it. Each line dials for ever, signs on, finds a silent peer by echo, and gives up a socket as
// soon as it cannot be trusted: after a failed or partial write, after a frame whose length makes no sense, after unanswered echoes. A
// lost line fails its own calls and no others. Calls with the same Affinity are written in the order they were handed over.
//
// It never sends again, never lets financial traffic out before sign-on or after a sign-off, never judges an answer (that is the
// caller's, who decodes it), never holds a lock while it writes to a channel or waits, and never puts a message's content into an error,
// a log line or a metric. All its waiting is on monotonic time; the wall clock is read for DE 7, and can forbid a write but never delay
// or allow one.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
)

// Options are a link's collaborators. Each may be left out.
type Options struct {
	Log *zap.Logger
	// Metrics are shared by all links of a process; see NewMetrics.
	Metrics *Metrics
	// OnUnmatched is given every message that answers no pending call, by the readers and in the order received on each line. It must
	// not block: while it runs, the line receives nothing. Several lines call it at the same time.
	OnUnmatched func(Unmatched)
	// OnCutover is given the business date of the peer's cutover notice, once for each new date, by the reader. It must not block either.
	OnCutover func(date string)
	// Dial connects; nil is a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// profile is what the lines of a link share; nothing in it changes after New.
type profile struct {
	name        string
	cfg         Config
	spec        *iso8583.Spec
	framing     *iso8583.Framing
	diagnosing  *iso8583.Framing // the same, looking for a wrong includes setting
	onUnmatched func(Unmatched)
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	metrics     linkMetrics
	table       networkTable
	onCutover   func(date string)
}

// Link is all lines to one scheme. Run keeps them up; Exchange may be called by any number of goroutines at any time.
type Link struct {
	profile
	log      *zap.Logger
	lines    []*Line
	lastSTAN atomic.Uint32 // of our own 08xx messages

	mu         sync.Mutex           // protects the following, and what the lines and sockets say it does
	pending    map[string]*call     // by correlation key, over all lines
	fallbacks  map[string][]*call   // the same by the keys of Config.CorrelationFallback
	affinities map[uint64]*affinity // of the pending calls
	next       int                  // the line that is looked at first: equally full lines take turns
	planned    bool                 // signed off by SignOff
	settled    chan struct{}        // closed when no financial call is pending any more; nil while nobody waits for that
	date       string               // of the last cutover
	stopping   bool                 // Run's ctx is over; for good
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
		profile: profile{
			name: name, cfg: cfg, spec: spec, framing: framing, diagnosing: framing.Diagnosing(spec),
			onUnmatched: opts.OnUnmatched, dial: opts.Dial,
			table: cfg.networkTable(spec), onCutover: opts.OnCutover,
		},
		log: opts.Log, pending: make(map[string]*call), fallbacks: make(map[string][]*call), affinities: make(map[uint64]*affinity),
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
	for number := range cfg.lineCount() {
		l.lines = append(l.lines, newLine(l, number, cfg.lineAddress(number)))
	}
	return l, nil
}

// Name gives the name the link was made with.
func (l *Link) Name() string { return l.name }

// Spec gives the link's message specification, to encode requests and decode answers with.
func (l *Link) Spec() *iso8583.Spec { return l.spec }

// Run keeps the lines connected and signed on until ctx ends: each is dialled again for ever, with a growing, jittered delay. It is to
// be called once, and returns nil.
//
// When ctx ends nothing new is sent, every pending call is completed at once as unknown (*LinkLostError with DownShutdown), the
// lines sign off within Config.SignOnTimeout and close. So whoever owns the link stops its intake first, lets pending calls find
// their answers, and ends ctx last.
func (l *Link) Run(ctx context.Context) error {
	defer l.stop()
	var lines sync.WaitGroup
	for _, line := range l.lines {
		lines.Go(func() { line.run(ctx) })
	}
	lines.Wait()
	return nil
}

// stop makes the link refuse whatever is new, for good.
func (l *Link) stop() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()
}
