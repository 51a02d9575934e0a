package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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
	link    *Link
	nc      net.Conn
	writing chan struct{} // the write lock: full while a frame is written. A channel, since waiting for it must end at a deadline.
	done    chan struct{} // closed when the socket is given up
	changed chan struct{} // room for one: the reader changed the link's state, keep must look
	queue   chan []byte   // the peer's class 8 requests, for answerRequests

	opened        time.Time
	lastFrame     atomic.Int64 // nanoseconds after opened at which the last frame was received
	bytesReceived atomic.Int64
	signedOnAt    time.Time // zero before; keep's alone

	peeked iso8583.Peeked  // the reader's alone, like the two below
	key    []byte          // reused for every response
	warned map[string]bool // diagnostics already logged

	// Guarded by Link.mu.
	pending map[string]*call
	lost    DownReason // "" while the socket is usable
}

func newSocket(l *Link, nc net.Conn) *socket {
	return &socket{
		link: l, nc: nc,
		writing: make(chan struct{}, 1),
		done:    make(chan struct{}),
		changed: make(chan struct{}, 1),
		queue:   make(chan []byte, maxQueuedRequests),
		opened:  time.Now(),
		warned:  make(map[string]bool),
		pending: make(map[string]*call),
	}
}

// run owns the socket's goroutines and returns when the socket has been given up and they have ended.
func (s *socket) run(ctx context.Context) {
	s.link.adopt(s)
	var wg sync.WaitGroup
	wg.Go(s.read)
	wg.Go(s.answerRequests)
	s.keep(ctx)
	wg.Wait()
}

// adopt makes a socket the link's own.
func (l *Link) adopt(s *socket) {
	l.mu.Lock()
	l.socket = s
	l.mu.Unlock()
	l.become(SigningOn)
}

// giveUp ends the socket, once, for the first reason given, and completes every pending call. It never blocks.
func (s *socket) giveUp(reason DownReason, cause error) {
	l := s.link
	l.mu.Lock()
	if s.lost != "" {
		l.mu.Unlock()
		return
	}
	s.lost = reason
	pending := s.pending
	s.pending = nil
	l.socket = nil
	l.enterDown(reason, cause)
	l.mu.Unlock()

	close(s.done)
	s.nc.Close()
	complete(pending, reason)
	l.reportDown(reason, cause)
}

// complete tells calls that have been taken out of the pending map that their outcome is unknown. A call whose write had not begun
// knows better and says so to its caller.
func complete(calls map[string]*call, reason DownReason) {
	for _, c := range calls {
		c.reply <- answer{err: &LinkLostError{Reason: reason}}
	}
}

// abandon completes the financial calls and leaves the socket open for the sign-off.
func (s *socket) abandon(reason DownReason) {
	taken := make(map[string]*call)
	s.link.mu.Lock()
	for key, c := range s.pending {
		if !c.network() {
			taken[key] = c
			delete(s.pending, key)
		}
	}
	s.link.mu.Unlock()
	complete(taken, reason)
}

// lockWrites waits for the write lock until sendBefore. An error means that the lock is not held.
func (s *socket) lockWrites(ctx context.Context, sendBefore time.Time) error {
	select {
	case s.writing <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(time.Until(sendBefore))
	defer timer.Stop()
	select {
	case s.writing <- struct{}{}:
		return nil
	case <-timer.C:
		return ErrExpired
	case <-ctx.Done():
		return &notSentError{text: "wait for the write", cause: context.Cause(ctx)}
	case <-s.done:
		return ErrDown
	}
}

func (s *socket) unlockWrites() { <-s.writing }

// write puts one whole frame on the socket with one Write; the caller holds the write lock. After a failure half a frame may be out,
// so the socket is given up.
func (s *socket) write(frame []byte, mti iso8583.MTI, deadline time.Time) {
	until := time.Now().Add(s.link.cfg.WriteTimeout.Std())
	if deadline.Before(until) {
		until = deadline
	}
	err := s.nc.SetWriteDeadline(until)
	if err == nil {
		_, err = s.nc.Write(frame)
	}
	switch {
	case err == nil:
		s.link.counts.framesSent.Add(1)
		s.link.metrics.sent[class(mti)].Inc()
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.link.metrics.writeTimeouts.Inc()
		s.giveUp(DownWriteTimeout, err)
	default:
		s.giveUp(DownWriteFailed, err)
	}
}

// read is the reader: the only one who reads the socket. It ends when the socket does.
func (s *socket) read() {
	r := bufio.NewReaderSize(countingReader{s.nc, &s.bytesReceived}, readBufferBytes)
	var buf []byte
	framing := s.link.diagnosing
	for {
		body, err := framing.Read(r, buf)
		if err != nil {
			s.giveUp(readReason(err), err)
			return
		}
		s.lastFrame.Store(max(1, int64(time.Since(s.opened)))) // 0 is "none yet"
		if len(body) == 0 {
			s.link.counts.keepAlives.Add(1)
			s.link.metrics.keepAlives.Inc()
			continue
		}
		if s.dispatch(body) {
			// One readable message proves the settings. From here on a bad one is the peer's, and costs no line.
			framing = s.link.framing
		}
		buf = body
	}
}

func readReason(err error) DownReason {
	if _, ok := errors.AsType[*iso8583.FrameError](err); ok {
		return DownBadFrame
	}
	if errors.Is(err, io.EOF) {
		return DownPeerClosed
	}
	return DownReadFailed
}

// dispatch reads a message no further than its key and gives it to whom it belongs; it reports whether the message could be read.
// body is the reader's buffer.
func (s *socket) dispatch(body []byte) (readable bool) {
	l := s.link
	l.counts.framesReceived.Add(1)
	if err := l.spec.Peek(body, &s.peeked); err != nil {
		s.warnOnce("malformed message received", err.Error())
		s.handOn(Malformed, 0, body, err.Error())
		return false
	}
	mti := s.peeked.MTI()
	l.metrics.received[class(mti)].Inc()
	switch {
	case mti.IsResponse():
		s.deliver(mti, body)
	case mti.IsRequest() && mti.Class() == 8:
		s.serve(mti, body)
	default:
		s.handOn(UnknownRequest, mti, body, "this link serves no requests of MTI "+mti.String())
	}
	return true
}

// deliver completes the call that a response answers.
func (s *socket) deliver(mti iso8583.MTI, body []byte) {
	l := s.link
	key, err := iso8583.AppendKey(s.key[:0], &s.peeked, l.keyElements(mti))
	if err != nil {
		s.warnOnce("response lacks an element of the correlation key", err.Error())
		s.handOn(MissingKeyElement, mti, body, err.Error())
		return
	}
	s.key = key
	var action iso8583.ResponseAction
	if mti.Class() != 8 {
		action = l.spec.AuthorizationAction(string(s.peeked.Value(iso8583.ResponseCode)))
	}
	// A reversal's "still working" has its action in a table of its own, and is the reversal's affair.
	interim := action == iso8583.StillWorking && mti.Class() != 4
	c, kind := s.take(key, &s.peeked, interim)
	if c == nil {
		s.handOn(kind, mti, body, unmatchedDiagnostics[kind])
		return
	}
	if action == iso8583.NotSignedOn && l.cfg.SignOn.Required && l.become(SigningOn, SignedOn) {
		s.wake()
	}
	c.reply <- answer{body: bytes.Clone(body)}
}

// unmatchedDiagnostics are for responses; they name no values.
var unmatchedDiagnostics = map[UnmatchedKind]string{
	Late:            "no call with this key is waiting: late, repeated, or never asked for",
	ConfirmMismatch: "a call with this key is waiting, but an element of confirm differs from its request",
	Interim:         "the peer is still working; the call goes on waiting",
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

// countingReader counts what arrives, whole frames or not.
type countingReader struct {
	r     io.Reader
	count *atomic.Int64
}

func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.count.Add(int64(n))
	return n, err
}
