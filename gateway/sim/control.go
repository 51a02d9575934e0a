package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// ErrNoConnection is what is said when nobody is connected, or not under that number.
var ErrNoConnection = errors.New("no connection")

// everyone gives the connections of the moment, the oldest first.
func (c *Card) everyone() []*connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*connection
	for _, number := range slices.Sorted(maps.Keys(c.connections)) {
		list = append(list, c.connections[number])
	}
	return list
}

// connectionOf finds a connection by its number in the journal; 0 is the newest one.
func (c *Card) connectionOf(number int) (*connection, error) {
	all := c.everyone()
	if number == 0 && len(all) > 0 {
		return all[len(all)-1], nil
	}
	for _, conn := range all {
		if conn.number == number {
			return conn, nil
		}
	}
	return nil, ErrNoConnection
}

// HangUpAll closes every connection. New ones are accepted.
func (c *Card) HangUpAll() {
	for _, conn := range c.everyone() {
		conn.close("closed by the scheme")
	}
}

// TriggerHangUp is HangUpAll.
func (c *Card) TriggerHangUp() { c.HangUpAll() }

// StallReading stops reading on every connection for a while, at most 10 minutes: what the peers send stays in the sockets' buffers.
// One message that is being read is kept back too.
func (c *Card) StallReading(d time.Duration) {
	for _, conn := range c.everyone() {
		c.journal.event(conn.number, "stops reading for "+d.String(), "")
		conn.stall(d)
	}
}

// SendEcho sends an echo test on the newest connection and waits for its answer until ctx ends.
func (c *Card) SendEcho(ctx context.Context) error {
	conn, err := c.connectionOf(0)
	if err != nil {
		return fmt.Errorf("send echo: %w", err)
	}
	stan, answer, err := conn.askEcho(maxEchoes)
	if err == nil {
		_, err = conn.await(ctx, answer)
		conn.forget(stan)
	}
	if err != nil {
		return fmt.Errorf("send echo: %w", err)
	}
	return nil
}

// await waits for DE 39 of an answer.
func (conn *connection) await(ctx context.Context, answer <-chan string) (string, error) {
	select {
	case code := <-answer:
		return code, nil
	case <-conn.closed:
		return "", errors.New("connection lost")
	case <-ctx.Done():
		return "", fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// SignOffPeers asks the peer on every connection to sign off, and waits for the answers until ctx ends. From its answer on a peer's
// financial traffic is refused with NotSignedOnCode, or ignored, until it signs on again or SignOnPeers is called. The error joins those
// of the connections, a refusal included.
func (c *Card) SignOffPeers(ctx context.Context) error {
	return c.askEveryone(ctx, "sign off", (*connection).askSignOff)
}

// SignOnPeers asks the peer on every connection to sign on, takes its financial traffic from then on, and waits for the answers until
// ctx ends. The error is as that of SignOffPeers.
func (c *Card) SignOnPeers(ctx context.Context) error {
	return c.askEveryone(ctx, "sign on", (*connection).askSignOn)
}

// Cutover tells the peer on every connection of a new business date, and waits for the answers until ctx ends. Cutovers by rule and by
// count go on from that date. The error is as that of SignOffPeers.
func (c *Card) Cutover(ctx context.Context, date time.Time) error {
	c.mu.Lock()
	c.date = date
	c.mu.Unlock()
	return c.askEveryone(ctx, "cut over", func(conn *connection) (string, <-chan string, error) {
		return conn.askCutover(date)
	})
}

// askEveryone asks on every connection first and then waits for all answers.
func (c *Card) askEveryone(ctx context.Context, what string, ask func(*connection) (string, <-chan string, error)) error {
	all := c.everyone()
	if len(all) == 0 {
		return fmt.Errorf("%s: %w", what, ErrNoConnection)
	}
	stans, answers, errs := make([]string, len(all)), make([]<-chan string, len(all)), make([]error, len(all))
	for i, conn := range all {
		stans[i], answers[i], errs[i] = ask(conn)
	}
	for i, conn := range all {
		code := ""
		if errs[i] == nil {
			code, errs[i] = conn.await(ctx, answers[i])
			conn.forget(stans[i])
		}
		if errs[i] == nil && !c.wire.approves(code) {
			errs[i] = fmt.Errorf("refused with DE 39 = %q", code)
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: connection %d: %w", what, conn.number, errs[i])
		}
	}
	return errors.Join(errs...)
}

// SendRaw writes bytes as they are on a connection (0: the newest), in turn with its answers. Nothing is said of them in the journal
// but how many there are.
func (c *Card) SendRaw(connection int, data []byte) error {
	conn, err := c.connectionOf(connection)
	if err != nil {
		return fmt.Errorf("send raw bytes: %w", err)
	}
	c.journal.event(conn.number, fmt.Sprintf("%d raw bytes sent", len(data)), "")
	conn.write(data, pace{})
	return nil
}

// Inject sends a message of the caller's on a connection (0: the newest); it is in the journal as every other one. What comes back to
// a request is noted as an answer to nothing we asked, since the issuer did not ask.
func (c *Card) Inject(connection int, m *iso8583.Message) error {
	conn, err := c.connectionOf(connection)
	if err != nil {
		return fmt.Errorf("inject message: %w", err)
	}
	body, frame, err := c.frame(m)
	if err != nil {
		return fmt.Errorf("inject message: %w", err)
	}
	c.journal.message(Out, conn, m, body, "", verdict{note: "injected"})
	conn.write(frame, pace{})
	return nil
}

// NewMessage begins a message in the scheme's dialect, for Inject.
func (c *Card) NewMessage(mti iso8583.MTI) *iso8583.Message { return c.spec.NewMessage(mti) }

// Books gives the issuer's books at this moment.
func (c *Card) Books() Books { return c.books.snapshot() }

// Holds gives the requests of the books: every original it knows but completions.
func (c *Card) Holds() map[HoldKey]Hold { return c.books.snapshot().Holds }

// Journal gives the records in memory, the oldest first.
func (c *Card) Journal() []Record { return c.journal.snapshot() }

// Query says which records of the journal are wanted; what is left out is any.
type Query struct {
	Direction  string  // In, Out or Event
	MTI        string  // like "0421"
	STAN       string  // DE 11
	RRN        string  // DE 37
	Connection int     // from 1
	Original   HoldKey // a message of that name, a repeat or answer of it, or a message that names it in DE 90 (in 1993 DE 56)
	Violations bool    // only those with one
}

// Find gives the records in memory that a query wants, the oldest first.
func (c *Card) Find(q Query) []Record {
	return slices.DeleteFunc(c.journal.snapshot(), func(r Record) bool { return !q.wants(r) })
}

func (q Query) wants(r Record) bool {
	switch {
	case q.Direction != "" && q.Direction != r.Direction:
	case q.MTI != "" && q.MTI != r.MTI:
	case q.STAN != "" && q.STAN != r.STAN:
	case q.RRN != "" && q.RRN != r.RRN:
	case q.Connection != 0 && q.Connection != r.Connection:
	case q.Original != HoldKey{} && q.Original != r.Key && q.Original != r.Original:
	case q.Violations && r.Violation == "":
	default:
		return true
	}
	return false
}
