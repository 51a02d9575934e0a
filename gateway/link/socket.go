package link

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

const (
	readBufferBytes = 32 << 10
	// maxQueuedRequests bounds the peer's class 8 requests that wait for our answer; what comes on top is counted and dropped.
	maxQueuedRequests = 8
	// maxWarnings bounds the different diagnostics one socket remembers to have logged.
	maxWarnings = 64
)

// socket is one TCP connection's life: a reader, a goroutine that answers the peer's class 8 requests, and keep, which signs on and
// watches the peer.
type socket struct {
	line    *Line
	nc      net.Conn
	writes  writeQueue                 // the write lock
	done    chan struct{}              // closed when the socket is given up
	orders  chan func(context.Context) // for keep; see order
	changed chan struct{}              // room for one: the reader changed the link's state, keep must look
	queue   chan []byte                // the peer's class 8 requests, for answerRequests

	opened        time.Time
	lastFrame     atomic.Int64 // nanoseconds after opened at which the last frame was received
	bytesReceived atomic.Int64
	signedOnAt    time.Time   // zero before; keep's alone
	announced     atomic.Bool // the peer may hold us for signed on

	peeked iso8583.Peeked  // the reader's alone, like the three below
	key    []byte          // reused for every response
	text   []byte          // an element's text, reused
	warned map[string]bool // diagnostics already logged

	refused string // DE 39 of a sign-on that was not approved; the reader's alone as well

	// Guarded by Link.mu.
	pending int        // calls placed on this socket
	lost    DownReason // "" while the socket is usable
}

func newSocket(l *Line, nc net.Conn) *socket {
	return &socket{
		line: l, nc: nc,
		done:    make(chan struct{}),
		orders:  make(chan func(context.Context)),
		changed: make(chan struct{}, 1),
		queue:   make(chan []byte, maxQueuedRequests),
		opened:  time.Now(),
		warned:  make(map[string]bool),
	}
}

// run owns the socket's goroutines and returns when the socket has been given up and they have ended.
func (s *socket) run(ctx context.Context) {
	s.line.adopt(s)
	var wg sync.WaitGroup
	wg.Go(s.read)
	wg.Go(s.answerRequests)
	s.keep(ctx)
	wg.Wait()
}

// adopt makes a socket the line's own.
func (l *Line) adopt(s *socket) {
	l.link.mu.Lock()
	l.socket = s
	l.link.mu.Unlock()
	l.become(SigningOn)
}

// giveUp ends the socket, once, for the first reason given, and completes every call whose write had begun on it. One whose write had
// not finds out by itself, and may go over another line. It blocks no longer than
// closeNotifyWait, and only at a shutdown.
func (s *socket) giveUp(reason DownReason, cause error) {
	l := s.line
	l.link.mu.Lock()
	if s.lost != "" {
		l.link.mu.Unlock()
		return
	}
	s.lost = reason
	taken := s.takeAll(func(c *call) bool { return c.begun })
	l.socket = nil
	l.enterDown(reason, cause)
	l.link.mu.Unlock()

	close(s.done)
	if reason == DownShutdown {
		closePolitely(s.nc)
	} else {
		closeNow(s.nc)
	}
	complete(taken, reason)
	l.reportDown(reason, cause)
}

// takeAll takes the socket's calls that are chosen out of the pending map; the caller holds Link.mu.
func (s *socket) takeAll(chosen func(*call) bool) []*call {
	var taken []*call
	for _, c := range s.line.link.pending {
		if c.socket == s && chosen(c) {
			taken = append(taken, c)
		}
	}
	for _, c := range taken {
		s.line.link.remove(c)
	}
	return taken
}

// complete tells calls that have been taken out of the pending map that their outcome is unknown. A call whose write had not begun
// knows better and says so to its caller.
func complete(calls []*call, reason DownReason) {
	for _, c := range calls {
		c.reply <- answer{err: &LinkLostError{Reason: reason}}
	}
}

// abandon completes the financial calls and leaves the socket open for the sign-off.
func (s *socket) abandon(reason DownReason) {
	s.line.link.mu.Lock()
	taken := s.takeAll(func(c *call) bool { return !c.network() })
	s.line.link.mu.Unlock()
	complete(taken, reason)
}

// write puts one whole frame on the socket with one Write; the caller has the turn. After a failure half a frame may be out,
// so the socket is given up.
func (s *socket) write(frame []byte, mti iso8583.MTI, deadline time.Time) {
	began := time.Now()
	until := began.Add(s.line.cfg.WriteTimeout.Std())
	if deadline.Before(until) {
		until = deadline
	}
	n := 0
	err := s.nc.SetWriteDeadline(until)
	if err == nil {
		n, err = s.nc.Write(frame)
	}
	if err != nil {
		if n > 0 || !s.mayStay(err, until.Sub(began)) {
			s.writeFailed(err, until)
		}
		return
	}
	s.line.counts.framesSent.Add(1)
	s.line.metrics.sent[class(mti)].Inc()
}

// read is the reader: the only one who reads the socket. It ends when the socket does.
func (s *socket) read() {
	budgets := s.line.cfg.Budgets
	frames := newBudget(budgets.InboundFrames, time.Second, inboundBurst)
	useless := newBudget(budgets.UselessFrames, uselessPeriod, uselessPeriod)
	r := bufio.NewReaderSize(&countingReader{s, newBudget(budgets.InboundBytes, time.Second, inboundBurst)}, readBufferBytes)
	var buf []byte
	framing := s.line.diagnosing
	for {
		s.slowDown(&frames)
		body, err := framing.Read(r, buf)
		if err != nil {
			s.giveUp(s.closeReason(err))
			return
		}
		now := time.Now()
		frames.spend(1, now)
		s.lastFrame.Store(max(1, int64(now.Sub(s.opened)))) // 0 is "none yet"
		buf = body
		switch {
		case len(body) == 0:
			s.line.counts.keepAlives.Add(1)
			s.line.metrics.keepAlives.Inc()
		case s.dispatch(body):
			// One readable message proves the settings. From here on a bad one is the peer's, and costs no line.
			framing = s.line.framing
			continue
		}
		if useless.spend(1, now); useless.owed(now) > 0 {
			s.giveUp(DownFlood, fmt.Errorf("more than %d keep-alives and unreadable frames within %s", budgets.UselessFrames, uselessPeriod))
			return
		}
	}
}

// dispatch reads a message no further than its key and gives it to whom it belongs; it reports whether the message could be read.
// body is the reader's buffer.
func (s *socket) dispatch(body []byte) (readable bool) {
	l := s.line
	l.counts.framesReceived.Add(1)
	if err := l.spec.Peek(body, &s.peeked); err != nil {
		s.warnOnce("malformed message received", err.Error())
		s.handOn(Malformed, 0, body, err.Error())
		return false
	}
	mti := s.peeked.MTI()
	l.metrics.received[class(mti)].Inc()
	switch {
	case l.spec.IsResponse(mti):
		s.deliver(mti, body)
	case isRequest(l.spec, mti) && mti.Class() == networkClass:
		s.serve(mti, body)
	default:
		s.handOn(UnknownRequest, mti, body, "this link serves no requests of MTI "+mti.String())
	}
	return true
}

// wake makes keep look at the link's state.
func (s *socket) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// idleFor is how long nothing has been received.
func (s *socket) idleFor() time.Duration {
	return time.Since(s.opened) - time.Duration(s.lastFrame.Load())
}

// lastReceived is when the last frame came, or the socket was opened.
func (s *socket) lastReceived() time.Time { return s.opened.Add(time.Duration(s.lastFrame.Load())) }

// silence describes a peer that did not answer, and tells one that sends nothing from one whose frames we cannot find the end of.
func (s *socket) silence() error {
	received := s.bytesReceived.Load()
	if received == 0 || s.lastFrame.Load() != 0 {
		return fmt.Errorf("nothing received for %s", s.idleFor().Round(time.Millisecond))
	}
	return fmt.Errorf("%d bytes received, but no whole frame: framing.length or framing.includes does not fit the peer", received)
}
