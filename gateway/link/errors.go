package link

import (
	"errors"
	"fmt"
)

// What an exchange returns when no write was begun. NotSent is true for each of them.
var (
	ErrDown           error = &notSentError{text: "link is down"}
	ErrNotSignedOn    error = &notSentError{text: "link is not signed on"}
	ErrShuttingDown   error = &notSentError{text: "link is shutting down"}
	ErrKeyInFlight    error = &notSentError{text: "a call with the same correlation key is in flight"}
	ErrTooManyPending error = &notSentError{text: "link has as many pending calls as max_pending allows"}
	ErrExpired        error = &notSentError{text: "the time to send was over before the write"}
	ErrRateLimited    error = &notSentError{text: "max_rate of the link's lines leaves no place before the time to send is over"}
)

// ErrTimeout is returned when a request was written, wholly or in part, and its deadline passed without an answer.
var ErrTimeout = errors.New("no answer before the deadline")

// LinkLostError is returned when the socket was given up after the write of the request had begun. Whether the peer received it is
// unknown.
type LinkLostError struct{ Reason DownReason }

// Error names the reason and nothing of the message.
func (e *LinkLostError) Error() string {
	return fmt.Sprintf("link lost before the answer: %s", e.Reason)
}

// NotSent reports whether err proves that no write of the request was attempted, so that the peer cannot have acted on it. Every
// other error of Exchange leaves the outcome unknown.
func NotSent(err error) bool {
	known, ok := errors.AsType[interface { // the first in the chain, which is the call's own
		error
		begun() bool
	}](err)
	return ok && !known.begun()
}

// waitError ends the wait for the answer to a call that was sent. Its cause is the context's, and so may be the error of another call that
// was not: an errgroup ends its context with the first one's.
type waitError struct{ cause error }

func (e *waitError) Error() string { return "wait for answer: " + e.cause.Error() }

func (e *waitError) Unwrap() error { return e.cause }

func (e *waitError) begun() bool { return true }

// notSentError marks what happened before the write.
type notSentError struct {
	text  string
	cause error
}

func (e *notSentError) Error() string {
	if e.cause == nil {
		return e.text
	}
	return e.text + ": " + e.cause.Error()
}

func (e *notSentError) Unwrap() error { return e.cause }

func (e *notSentError) begun() bool { return false }

// DownReason says why a socket was given up, or could not be had.
type DownReason string

// The reasons, which are also the values of the metric's label.
const (
	DownConnectFailed  DownReason = "connect_failed"
	DownConnectTimeout DownReason = "connect_timeout"
	DownSignOnFailed   DownReason = "sign_on_failed"  // our 0800 could not be built or sent
	DownSignOnRefused  DownReason = "sign_on_refused" // 0810 with another DE 39 than 00
	DownSignOnTimeout  DownReason = "sign_on_timeout"
	DownPeerClosed     DownReason = "peer_closed"          // an orderly end between two frames
	DownCutFrame       DownReason = "peer_closed_in_frame" // an end within a frame
	DownReset          DownReason = "reset"                // the peer's system threw the connection away
	DownTLSFailed      DownReason = "tls_failed"           // no handshake; the cause tells whose certificate, and what about it
	DownTLSAlert       DownReason = "tls_alert"            // the peer ended an established TLS session by an alert
	DownReadFailed     DownReason = "read_failed"
	DownBadFrame       DownReason = "bad_frame" // a length that makes no sense: the stream cannot be read any further
	DownWriteFailed    DownReason = "write_failed"
	DownWriteTimeout   DownReason = "write_timeout"
	DownPeerSilent     DownReason = "peer_silent" // nothing received, echoes unanswered
	DownFlood          DownReason = "flood"       // more keep-alives and unreadable frames than budgets.useless_frames
	DownShutdown       DownReason = "shutdown"
)

// downReasons are all of them, for metrics that show a zero before the first event.
var downReasons = []DownReason{
	DownConnectFailed, DownConnectTimeout, DownSignOnFailed, DownSignOnRefused, DownSignOnTimeout, DownPeerClosed,
	DownCutFrame, DownReset, DownTLSFailed, DownTLSAlert, DownReadFailed, DownBadFrame, DownWriteFailed, DownWriteTimeout,
	DownPeerSilent, DownFlood, DownShutdown,
}
