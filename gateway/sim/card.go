// Package sim plays the other side: a card scheme on a TCP socket, with an issuer behind it that keeps books of its own.
//
// It promises that what it does is written down: every message in and out and every connection has a line in its journal, with
// the rule that decided and with what the peer did that it must not; and that its books depend on nothing of the daemon's but the
// codec, so that a test can hold one against the other. What it does is scripted by rules, the first that matches decides, and the
// magic amounts of MagicTable stand behind them.
//
// The issuer judges: every request, completion and reversal has one effect however often it comes, a repeat that is not its first
// sending and a completion above what is held are violations in the journal, and Books gives what is held, posted, credited and taken
// back. It speaks the 1987 and the 1993 edition, whichever its dialect is of.
//
// It never shows a clear card number, holds nothing of a card but the masked number and a digest under a key that ends with the
// run, and never waits for a peer without a bound. It is no part of a production set-up.
package sim

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// acceptPause is how long the listener rests after an accept that failed, as it does when file handles run out.
const acceptPause = 50 * time.Millisecond

// Card is a card scheme. Its methods are safe for concurrent use.
type Card struct {
	cfg      CardConfig
	spec     *iso8583.Spec
	wire     *wire
	framing  *iso8583.Framing
	tls      *tls.Config // nil for plain TCP
	log      *zap.Logger
	listener net.Listener
	journal  *journal
	books    *books
	repeats  *repeats
	balance  int64         // that every account has, in minor units
	waiting  chan struct{} // one for each answer held back
	running  sync.WaitGroup

	mu          sync.Mutex // protects the following
	rules       ruleSet
	connections map[int]*connection
	accepted    int // number of the newest connection
	stan        int // of our own messages, the last one used
	dropAll     bool
	date        time.Time // the business date that the last cutover began
	financial   int       // requests that were no network management
	stopping    bool
}

// NewCard checks the configuration and listens; Run serves. Without a Run to come, the listener stays open.
func NewCard(cfg CardConfig, log *zap.Logger) (*Card, error) {
	var faults configs.Faults
	cfg.Validate("", &faults)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("make card scheme: %w", err)
	}
	c := &Card{cfg: cfg, log: log, waiting: make(chan struct{}, cfg.MaxWaitingAnswers), connections: map[int]*connection{},
		date: time.Now().UTC()}
	key := make([]byte, 32)
	rand.Read(key) // never fails: the process ends instead
	if err := c.prepare(key); err != nil {
		return nil, fmt.Errorf("make card scheme: %w", err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make card scheme: %w", err), c.journal.close())
	}
	c.listener = listener
	return c, nil
}

// prepare makes everything but the listener.
func (c *Card) prepare(key []byte) error {
	var err error
	if c.spec, err = c.cfg.Spec.Build(); err != nil {
		return err
	}
	if c.wire, err = newWire(c.spec, c.cfg.Network); err != nil {
		return err
	}
	framing, err := c.cfg.Framing.Build()
	if err != nil {
		return err
	}
	c.framing = framing.Peer()
	if c.rules, err = compileRules(c.cfg.allRules()); err != nil {
		return err
	}
	if c.tls, err = c.cfg.TLS.build(); err != nil {
		return err
	}
	if c.balance, err = parseAmount(c.cfg.Balance); err != nil {
		return fmt.Errorf("balance: %w", err)
	}
	c.books = newBooks(c.wire, key, c.cfg.MaxOriginals, bookRules{unknownOriginal: c.cfg.UnknownOriginalCode,
		nothingHeld: c.cfg.NothingHeldCode, alreadyReversed: c.cfg.AlreadyReversedCode,
		partialByAmount: c.cfg.PartialReversal == PartialByAmount, completionEndsHold: c.cfg.CompletionEndsHold})
	c.repeats = newRepeats(c.wire, c.cfg.MaxOriginals, c.cfg.RepeatsRefreshTime)
	c.journal, err = newJournal(key, c.cfg)
	return err
}

// Addr is where the scheme listens.
func (c *Card) Addr() net.Addr { return c.listener.Addr() }

// Run serves until ctx ends, then closes everything and waits for its goroutines. Answers still held back are not sent. The error
// is that of the journal's file.
func (c *Card) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.shut)()
	c.log.Info("card scheme listening", zap.Stringer("address", c.Addr()))
	for {
		conn, err := c.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			c.log.Warn("accept failed", zap.Error(err))
			pause(ctx.Done(), acceptPause)
			continue
		}
		c.admit(conn)
	}
	c.running.Wait()
	return c.journal.close()
}

// shut closes the listener and every connection.
func (c *Card) shut() {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.listener.Close()
	c.HangUpAll()
}

// admit serves a new connection, unless there are too many.
func (c *Card) admit(nc net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted++
	if c.stopping || len(c.connections) >= c.cfg.MaxConnections {
		c.journal.event(c.accepted, "connection refused: too many", "")
		nc.Close()
		return
	}
	conn := &connection{card: c, number: c.accepted, conn: nc, peer: nc.RemoteAddr().String(), closed: make(chan struct{}),
		asked: map[string]question{}, log: c.log.With(zap.Int("connection", c.accepted))}
	if c.tls != nil {
		conn.conn = tls.Server(nc, c.tls)
	}
	c.connections[conn.number] = conn
	c.journal.event(conn.number, "connected", "")
	conn.log.Info("connection accepted", zap.Stringer("peer", nc.RemoteAddr()))
	c.running.Go(conn.serve)
	if c.cfg.EchoInterval > 0 {
		c.running.Go(conn.echoForEver)
	}
	if c.cfg.KeepAliveInterval > 0 {
		c.running.Go(conn.keepAliveForEver)
	}
	if c.cfg.HangUpAfter > 0 {
		c.running.Go(conn.hangUpInTime)
	}
}

func (c *Card) remove(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.connections, conn.number)
}

// SetRules replaces the rules of the configuration while the scheme runs; the magic amounts stay as they were. All counts start anew.
func (c *Card) SetRules(rules []Rule) error {
	cfg := c.cfg
	cfg.Rules = rules
	compiled, err := compileRules(cfg.allRules())
	if err != nil {
		return fmt.Errorf("set rules: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules = compiled
	return nil
}

// DropAll makes the scheme a black hole, or ends that: connections are accepted and stay, everything that comes is read, noted and
// thrown away, and nothing is sent but answers that were already on their way.
func (c *Card) DropAll(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropAll = on
}

func (c *Card) dropsAll() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropAll
}

// Counts gives how often things happened since the start.
func (c *Card) Counts() Counts {
	counts := c.journal.countsCopy()
	counts.Forgotten = c.books.forgottenCount()
	return counts
}

// Connections tells how many peers are connected.
func (c *Card) Connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.connections)
}

func (c *Card) nextSTAN() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stan = c.stan%999_999 + 1
	return fmt.Sprintf("%06d", c.stan)
}

// later runs f on a goroutine of its own after the delay, unless the connection ends before; false when too many are waiting.
func (c *Card) later(conn *connection, delay time.Duration, f func()) bool {
	select {
	case c.waiting <- struct{}{}:
	default:
		return false
	}
	c.running.Go(func() {
		defer func() { <-c.waiting }()
		if pause(conn.closed, delay) {
			f()
		}
	})
	return true
}

// pause waits; false when it was ended before its time.
func pause(end <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-end:
		return false
	}
}
