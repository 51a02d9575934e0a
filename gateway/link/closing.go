package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// lastWordsWait is how long a failed write waits for the reader, who may still find answers, an alert or the orderly end that tell why
// the peer takes nothing more.
const lastWordsWait = 200 * time.Millisecond

const (
	// minAnswerTime is how long before its deadline a call must be written: no peer answers faster, and a write that its own deadline
	// cuts costs the line.
	minAnswerTime = 2 * time.Millisecond
	// minWriteTime is how long a write must have been tried before its failing tells anything about the peer.
	minWriteTime = 10 * time.Millisecond
)

// closeReason classifies the end of the stream as the reader sees it. The framing gives io.EOF between two frames only. A TLS session that
// ends without close_notify, but not within a record, counts as an orderly end: many peers do that.
func (s *socket) closeReason(err error) (DownReason, error) {
	switch {
	case s.refused != "" && s.line.State() != SignedOn && gone(err):
		return DownSignOnRefused, s.refusal()
	case errors.Is(err, io.EOF):
		return DownPeerClosed, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return DownCutFrame, err
	case errors.Is(err, syscall.ECONNRESET):
		return DownReset, err
	case refusesCertificate(err):
		return DownTLSFailed, tlsCause(err, true)
	case alert(err) != "":
		return DownTLSAlert, err
	}
	if _, ok := errors.AsType[*iso8583.FrameError](err); ok {
		return DownBadFrame, err
	}
	return DownReadFailed, err
}

// gone reports whether the peer ended the connection, in whatever manner.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// refusal is the cause when the peer closes right after it refused the sign-on, before anybody looked at its answer.
func (s *socket) refusal() error {
	return fmt.Errorf("sign-on answered with DE 39 = %q, then closed by the peer", s.refused)
}

// mayStay reports whether a socket outlives a write of which no byte left: the write's own deadline came so soon that nothing is known
// about the peer, and the stream is whole. TLS cannot go on after a write that was cut.
func (s *socket) mayStay(err error, given time.Duration) bool {
	_, secured := s.nc.(*tls.Conn)
	return errors.Is(err, os.ErrDeadlineExceeded) && given < minWriteTime && !secured
}

// writeFailed gives up the socket after a write that failed, in part or wholly. The caller has the turn and keeps it, so that nothing is
// written behind half a frame; it waits no longer than its deadline.
func (s *socket) writeFailed(err error, deadline time.Time) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.line.metrics.writeTimeouts.Inc()
		s.giveUp(DownWriteTimeout, err)
		return
	}
	reason := DownWriteFailed
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		reason = DownReset
	}
	timer := time.NewTimer(min(lastWordsWait, time.Until(deadline)))
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		s.giveUp(reason, err)
	}
}
