package link

import (
	"bytes"
	"time"

	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
)

// UnmatchedKind says why a received message was not an answer to a pending call.
type UnmatchedKind string

// The kinds, which are also the values of the metric's label.
const (
	// Late is a response whose key no pending call has: after the deadline, a second time, or never asked for.
	Late UnmatchedKind = "late"
	// UnknownRequest is a request or advice from the peer that this side of a link does not serve.
	UnknownRequest UnmatchedKind = "unknown_request"
	// Malformed is a frame that does not hold a message of the link's spec. The frame's end is known, so the link stays.
	Malformed UnmatchedKind = "malformed"
	// ConfirmMismatch is a response with the key of a pending call, but with another value in an element that it must repeat. The
	// call goes on waiting, and no copy of the same response completes it.
	ConfirmMismatch UnmatchedKind = "confirm_mismatch"
	// Ambiguous is a response that lacks an element of its key and in what it has fits more than one pending call. They go on waiting.
	Ambiguous UnmatchedKind = "ambiguous"
	// MissingKeyElement is a response without an element that the key needs, to which no fallback applies: the profile's key does not fit
	// the peer.
	MissingKeyElement UnmatchedKind = "missing_key_element"
	// Interim is a response that says "still working" (DE 39 = 09 in the 1987 table). The call goes on waiting, and longer where its
	// Latest allows.
	Interim UnmatchedKind = "interim"
)

var unmatchedKinds = []UnmatchedKind{Late, UnknownRequest, Malformed, ConfirmMismatch, Ambiguous, MissingKeyElement, Interim}

// Unmatched is a message that was received and is nobody's answer. Nothing is dropped: whoever owns the link records it.
type Unmatched struct {
	Link       string
	ReceivedAt time.Time
	Kind       UnmatchedKind
	MTI        iso8583.MTI // 0 when Malformed
	Body       []byte      // the receiver's own copy. Holds card data.
	Diagnostic string      // for people; holds no values
}

// handOn counts a message and gives it to the link's owner. body belongs to the reader and is copied.
func (s *socket) handOn(kind UnmatchedKind, mti iso8583.MTI, body []byte, diagnostic string) {
	l := s.line
	l.counts.unmatched.Add(1)
	l.metrics.unmatched[kind].Inc()
	if l.onUnmatched == nil {
		return
	}
	l.onUnmatched(Unmatched{
		Link: l.name, ReceivedAt: time.Now(), Kind: kind, MTI: mti, Body: bytes.Clone(body), Diagnostic: diagnostic,
	})
}

// warnOnce logs a fault of the profile or the peer the first time a socket meets it; the same fault comes with every message.
// It is the reader's alone.
func (s *socket) warnOnce(what, diagnostic string) {
	if s.warned[diagnostic] || len(s.warned) >= maxWarnings {
		return
	}
	s.warned[diagnostic] = true
	s.line.log.Warn(what, zap.String("diagnostic", diagnostic))
}
