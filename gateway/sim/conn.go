package sim

import (
	"bufio"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/iso8583"
)

const (
	// readBufferBytes is the reader's buffer; longer frames need more reads, not more buffer.
	readBufferBytes = 4096
	// maxEchoes bounds our own echoes without an answer on one connection, but for those of a storm.
	maxEchoes = 16
	// maxStorm bounds the echoes and keep-alives of one storm.
	maxStorm = 1000
	// maxStall bounds how long a connection does not read.
	maxStall = 10 * time.Minute
	// drainWait is how long a connection that hung up after its answer still reads, so that no reset overtakes the answer.
	drainWait = time.Second
)

// connection is one peer: one reader, one write lock.
type connection struct {
	card   *Card
	number int
	conn   net.Conn
	peer   string // address
	log    *zap.Logger

	ending sync.Once
	closed chan struct{} // closed with the connection

	stalledUntil atomic.Int64 // nanoseconds since 1970: nothing is read before

	mu        sync.Mutex // protects the following
	signOn    signOnState
	draining  bool                // hung up after an answer: what comes is thrown away
	asked     map[string]question // our requests without an answer, by STAN
	heard     int                 // requests that came
	held      []heldAnswer        // answers that wait to be sent in reverse order
	heldRound int                 // how many times they were

	wmu   sync.Mutex // one write at a time; protects the following
	glued []byte     // a frame that waits for the next one
}

// serve reads until the connection ends.
func (conn *connection) serve() {
	defer conn.card.remove(conn)
	if err := conn.shakeHands(); err != nil {
		conn.close("no TLS: " + err.Error())
		return
	}
	r := bufio.NewReaderSize(conn.conn, readBufferBytes)
	var buf, header []byte
	for {
		body, received, err := conn.card.framing.ReadWithHeader(r, buf, header)
		if err != nil {
			conn.close(whyEnded(err))
			return
		}
		header = received
		if !conn.awaitStall() {
			return
		}
		if len(body) == 0 {
			conn.card.journal.count(func(c *Counts) { c.KeepAlives++ })
			continue
		}
		conn.handle(body, header)
		buf = body[:0]
	}
}

// stall makes the connection's reader rest: what comes stays in the socket's buffers, but for the one message that is being read.
func (conn *connection) stall(d time.Duration) {
	conn.stalledUntil.Store(time.Now().Add(min(d, maxStall)).UnixNano())
}

// awaitStall waits while the reader rests; false when the connection ended.
func (conn *connection) awaitStall() bool {
	for {
		left := time.Until(time.Unix(0, conn.stalledUntil.Load()))
		if left <= 0 {
			return true
		}
		if !pause(conn.closed, left) {
			return false
		}
	}
}

func whyEnded(err error) string {
	var frame *iso8583.FrameError
	switch {
	case errors.Is(err, io.EOF):
		return "closed by the peer"
	case errors.As(err, &frame):
		return "bad frame: " + frame.Error()
	}
	return "connection lost: " + err.Error()
}

// close closes the connection once; the first reason is noted.
func (conn *connection) close(reason string) {
	conn.ending.Do(func() {
		close(conn.closed)
		conn.conn.Close()
		conn.card.journal.event(conn.number, reason, "")
		conn.log.Info("connection closed", zap.String("reason", reason))
	})
}

// hangUpAfterAnswer sends the end of the stream behind the answer and leaves the reader to find the peer's end, or to give up.
func (conn *connection) hangUpAfterAnswer() {
	conn.mu.Lock()
	conn.draining = true
	conn.mu.Unlock()
	half, ok := conn.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || conn.conn.SetReadDeadline(time.Now().Add(drainWait)) != nil {
		conn.close("closed by the scheme")
	}
}

func (conn *connection) isDraining() bool {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	return conn.draining
}

// handle takes one message: decides, notes, answers, and does what comes besides.
func (conn *connection) handle(body, header []byte) {
	c := conn.card
	m, err := c.spec.Decode(body)
	if err != nil {
		c.journal.count(func(c *Counts) { c.Malformed++ })
		c.journal.event(conn.number, "message not read", "malformed message: "+err.Error())
		return
	}
	if c.spec.IsResponse(m.MTI()) || !m.MTI().IsRequest() {
		conn.heardAnswer(m, body)
		return
	}
	ruling := conn.decide(m)
	ruling.header = slices.Clone(header)
	c.journal.message(In, conn, m, body, ruling.rule, ruling.verdict)
	if ruling.answered || ruling.action.Interim > 0 {
		conn.answer(m, ruling)
	}
	conn.besides(m, ruling)
}

// after runs f now, or on a goroutine of its own after a delay.
func (conn *connection) after(delay time.Duration, f func()) {
	if delay <= 0 {
		f()
		return
	}
	if !conn.card.later(conn, delay, f) {
		conn.card.journal.event(conn.number, "answer dropped: too many are held back", "")
	}
}

// pace is how fast a frame is written: at once, or byte by byte, with a pause in the middle.
type pace struct{ gap, pause time.Duration }

// write sends a frame, behind one that waits for it. A write that fails closes the connection, since half a frame may be out.
func (conn *connection) write(frame []byte, p pace) {
	conn.wmu.Lock()
	defer conn.wmu.Unlock()
	data := append(conn.glued, frame...)
	conn.glued = nil
	conn.send(data, p)
}

// glue holds a frame until the next one; one that waits already goes together with it.
func (conn *connection) glue(frame []byte) {
	conn.wmu.Lock()
	defer conn.wmu.Unlock()
	if conn.glued != nil {
		data := append(conn.glued, frame...)
		conn.glued = nil
		conn.send(data, pace{})
		return
	}
	conn.glued = frame
	held := &frame[0]
	conn.card.later(conn, conn.card.cfg.GlueWait.Std(), func() { conn.unglue(held) })
}

// unglue sends the frame that was held, if it still is.
func (conn *connection) unglue(held *byte) {
	conn.wmu.Lock()
	defer conn.wmu.Unlock()
	if conn.glued == nil || &conn.glued[0] != held {
		return
	}
	data := conn.glued
	conn.glued = nil
	conn.send(data, pace{})
}

// send writes under wmu.
func (conn *connection) send(data []byte, p pace) {
	step, half := len(data), -1
	if p.gap > 0 {
		step, half = 1, len(data)/2
	}
	for len(data) > 0 {
		err := conn.conn.SetWriteDeadline(time.Now().Add(conn.card.cfg.WriteTimeout.Std()))
		if err == nil {
			_, err = conn.conn.Write(data[:step])
		}
		if err != nil {
			conn.close("connection lost: " + err.Error())
			return
		}
		data = data[step:]
		wait := p.gap
		if len(data) == half {
			wait += p.pause
		}
		if p.gap > 0 && !pause(conn.closed, wait) {
			return
		}
	}
}
