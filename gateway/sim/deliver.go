package sim

import (
	"fmt"
	"net"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/iso8583"
)

// answer builds the answer and sends it, now or later, behind the interim answers that the rule wants.
func (conn *connection) answer(m *iso8583.Message, r ruling) {
	c := conn.card
	notBuilt := func(err error) {
		c.journal.event(conn.number, "answer not built: "+err.Error(), "")
		conn.log.Error("build answer failed", zap.Error(err))
	}
	delay := r.action.Delay.Std()
	for i := range r.action.Interim {
		out, body, frame, err := c.interim(m, r)
		if err != nil {
			notBuilt(err)
			return
		}
		conn.after(r.action.InterimGap.Std()*time.Duration(i), func() {
			conn.note(out, body, r, fmt.Sprintf("interim %d of %d", i+1, r.action.Interim))
			conn.write(frame, pace{})
		})
		delay += r.action.InterimGap.Std()
	}
	if !r.answered {
		return
	}
	out, body, frame, err := c.build(m, r)
	if err != nil {
		notBuilt(err)
		return
	}
	conn.after(delay, func() { conn.deliver(out, body, frame, r) })
}

// deliver sends an answer the way its rule says. It is noted before it is written.
func (conn *connection) deliver(m *iso8583.Message, body, frame []byte, r ruling) {
	switch r.action.Deliver {
	case DeliverHangUpBefore:
		conn.close("hung up instead of answering")
	case DeliverHangUpAfter:
		conn.note(m, body, r, "then hung up")
		conn.write(frame, pace{})
		conn.hangUpAfterAnswer()
	case DeliverTwice:
		copies := r.action.Copies
		if copies == 0 {
			copies = 2
		}
		for i := range copies {
			conn.note(m, body, r, fmt.Sprintf("copy %d of %d", i+1, copies))
			conn.write(frame, pace{})
		}
	case DeliverSplit:
		conn.note(m, body, r, "byte by byte")
		conn.write(frame, pace{gap: max(1, conn.card.cfg.ByteGap.Std())})
	case DeliverTrickle:
		conn.note(m, body, r, "byte by byte, with a pause")
		conn.write(frame, pace{gap: max(1, conn.card.cfg.ByteGap.Std()), pause: r.action.Pause.Std()})
	case DeliverGlued:
		conn.note(m, body, r, "glued")
		conn.glue(frame)
	case DeliverReversed:
		conn.holdBack(frame, max(2, r.action.Batch), func() { conn.note(m, body, r, "in reverse order") })
	case DeliverOtherConnection:
		other := conn.sibling()
		other.note(m, body, r, fmt.Sprintf("asked on connection %d", conn.number))
		other.write(frame, pace{})
	default:
		text := ""
		if r.action.Delay > 0 {
			text = "after " + r.action.Delay.String()
		}
		conn.note(m, body, r, text)
		conn.write(frame, pace{})
	}
}

// note writes an outgoing answer down.
func (conn *connection) note(m *iso8583.Message, body []byte, r ruling, text string) {
	conn.card.journal.message(Out, conn, m, body, r.rule, verdict{note: text})
}

// sibling is the newest other connection from the same host, or the connection itself when there is none.
func (conn *connection) sibling() *connection {
	c := conn.card
	c.mu.Lock()
	defer c.mu.Unlock()
	best := conn
	for number, other := range c.connections {
		if other != conn && hostOf(other.conn) == hostOf(conn.conn) && (best == conn || number > best.number) {
			best = other
		}
	}
	return best
}

func hostOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}

// heldAnswer waits for others to be sent in front of it.
type heldAnswer struct {
	frame []byte
	note  func()
}

// holdBack keeps an answer until there are as many as wanted, and then sends them with the last one first. What waits goes after GlueWait
// all the same.
func (conn *connection) holdBack(frame []byte, wanted int, note func()) {
	conn.mu.Lock()
	conn.held = append(conn.held, heldAnswer{frame, note})
	first, full := len(conn.held) == 1, len(conn.held) >= wanted
	round := conn.heldRound
	conn.mu.Unlock()
	switch {
	case full:
		conn.release(round)
	case first:
		conn.after(conn.card.cfg.GlueWait.Std(), func() { conn.release(round) })
	}
}

// release sends what one round of holdBack keeps.
func (conn *connection) release(round int) {
	conn.mu.Lock()
	if conn.heldRound != round {
		conn.mu.Unlock()
		return
	}
	held := conn.held
	conn.held, conn.heldRound = nil, round+1
	conn.mu.Unlock()
	for _, answer := range slices.Backward(held) {
		answer.note()
		conn.write(answer.frame, pace{})
	}
}
