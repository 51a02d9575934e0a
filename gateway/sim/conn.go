package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/iso8583"
)

const (
	// readBufferBytes is the reader's buffer; longer frames need more reads, not more buffer.
	readBufferBytes = 4096
	// maxEchoes bounds our own echoes without an answer on one connection.
	maxEchoes = 16
	// drainWait is how long a connection that hung up after its answer still reads, so that no reset overtakes the answer.
	drainWait = time.Second
)

// connection is one peer: one reader, one write lock.
type connection struct {
	card   *Card
	number int
	conn   net.Conn
	log    *zap.Logger

	ending sync.Once
	closed chan struct{} // closed with the connection

	mu       sync.Mutex // protects the following
	signedOn bool
	draining bool                     // hung up after an answer: what comes is thrown away
	echoes   map[string]chan struct{} // our echoes without an answer, by STAN

	wmu   sync.Mutex // one write at a time; protects the following
	glued []byte     // a frame that waits for the next one
}

// serve reads until the connection ends.
func (conn *connection) serve() {
	defer conn.card.remove(conn)
	r := bufio.NewReaderSize(conn.conn, readBufferBytes)
	var buf []byte
	for {
		body, err := conn.card.framing.Read(r, buf)
		if err != nil {
			conn.close(whyEnded(err))
			return
		}
		if len(body) == 0 {
			conn.card.journal.count(func(c *Counts) { c.KeepAlives++ })
			continue
		}
		conn.handle(body)
		buf = body[:0]
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
	half, ok := conn.conn.(*net.TCPConn)
	if !ok || half.CloseWrite() != nil || conn.conn.SetReadDeadline(time.Now().Add(drainWait)) != nil {
		conn.close("closed by the scheme")
	}
}

// handle takes one message: decides, notes, answers.
func (conn *connection) handle(body []byte) {
	c := conn.card
	m, err := c.spec.Decode(body)
	if err != nil {
		c.journal.count(func(c *Counts) { c.Malformed++ })
		c.journal.event(conn.number, "message not read", "malformed message: "+err.Error())
		return
	}
	if !m.MTI().IsRequest() {
		conn.heard(m, body)
		return
	}
	ruling := conn.decide(m)
	c.journal.message(In, conn.number, m, body, ruling.rule, ruling.verdict)
	if ruling.answered {
		conn.answer(m, ruling)
	}
}

// heard takes an answer to our own message.
func (conn *connection) heard(m *iso8583.Message, body []byte) {
	v := verdict{note: "answer to our echo"}
	if !conn.forgetEcho(m.Get(iso8583.STAN)) {
		v = verdict{violation: "an answer to nothing we asked"}
	}
	conn.card.journal.message(In, conn.number, m, body, "", v)
}

// forgetEcho ends the wait for an echo's answer; false when nobody waits.
func (conn *connection) forgetEcho(stan string) bool {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	answered, waiting := conn.echoes[stan]
	if waiting {
		delete(conn.echoes, stan)
		close(answered)
	}
	return waiting
}

// sendEcho sends an echo test; the channel is closed by its answer.
func (conn *connection) sendEcho() (stan string, answered <-chan struct{}, err error) {
	c := conn.card
	stan = c.nextSTAN()
	m := c.spec.NewMessage(iso8583.MTINetworkManagementRequest)
	err = errors.Join(m.Set(iso8583.TransmissionDateTime, time.Now().UTC().Format("0102150405")),
		m.Set(iso8583.STAN, stan), m.Set(iso8583.NetworkManagementCode, echoTest))
	if err != nil {
		return "", nil, err
	}
	body, frame, err := c.frame(m)
	if err != nil {
		return "", nil, err
	}
	wait := make(chan struct{})
	conn.mu.Lock()
	if len(conn.echoes) >= maxEchoes {
		conn.mu.Unlock()
		return "", nil, fmt.Errorf("%d echoes without an answer", maxEchoes)
	}
	conn.echoes[stan] = wait
	conn.mu.Unlock()
	c.journal.message(Out, conn.number, m, body, "", verdict{note: "our echo"})
	conn.write(frame, 0)
	return stan, wait, nil
}

// echoForEver sends an echo test each interval until the connection ends.
func (conn *connection) echoForEver() {
	for pause(conn.closed, conn.card.cfg.EchoInterval.Std()) {
		if conn.card.dropsAll() {
			continue
		}
		if _, _, err := conn.sendEcho(); err != nil {
			conn.card.journal.event(conn.number, "echo not sent", err.Error())
		}
	}
}

// write sends a frame, behind one that waits for it, in one write or byte by byte. A write that fails closes the connection, since
// half a frame may be out.
func (conn *connection) write(frame []byte, gap time.Duration) {
	conn.wmu.Lock()
	defer conn.wmu.Unlock()
	data := append(conn.glued, frame...)
	conn.glued = nil
	conn.send(data, gap)
}

// glue holds a frame until the next one; one that waits already goes together with it.
func (conn *connection) glue(frame []byte) {
	conn.wmu.Lock()
	defer conn.wmu.Unlock()
	if conn.glued != nil {
		data := append(conn.glued, frame...)
		conn.glued = nil
		conn.send(data, 0)
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
	conn.send(data, 0)
}

// send writes under wmu.
func (conn *connection) send(data []byte, gap time.Duration) {
	step := len(data)
	if gap > 0 {
		step = 1
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
		if gap > 0 && !pause(conn.closed, gap) {
			return
		}
	}
}
