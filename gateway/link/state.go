package link

import (
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// State is where a line stands.
//
//	Down ──► Connecting ──► SigningOn ──► SignedOn ──► SigningOff ──► Down
//	  ▲          │           │    ▲        │   │                      ▲
//	  └──────────┴───────────┘    │        │   └── socket given up ───┘
//	                              │        ▼
//	                              └── SignedOff (by the peer, or by SignOff)
//
// A "not signed on" answer takes a signed-on line back to SigningOn. Without Config.SignOn.Required, SigningOn is passed through
// without a message. From every connected state a given-up socket leads to Down.
type State string

// The states. From SigningOn on there is a socket; financial traffic flows in SignedOn only.
const (
	Down       State = "down"
	Connecting State = "connecting"
	SigningOn  State = "signing_on"
	SignedOn   State = "signed_on"
	SignedOff  State = "signed_off" // by the peer, until Config.SignOnAgainAfter; or by SignOff, until SignOn
	SigningOff State = "signing_off"
)

// Connected reports whether there is a socket.
func (s State) Connected() bool { return s != Down && s != Connecting }

// LineStatus is one line as operators see it.
type LineStatus struct {
	Line          int // from 0
	Address       string
	State         State
	Since         time.Time // when State was entered
	Connected     bool
	SignedOn      bool
	SignedOffBy   SignOffReason // "" while nobody has; planned wherever the line stands
	LastDown      DownReason    // "" before the first time
	LastDownAt    time.Time
	LastDownCause string        // for people; holds nothing of a message
	LastReceived  time.Time     // of the present socket; zero when there is none
	EchoRoundTrip time.Duration // of the last answered echo; 0 before the first
	// CertificateUntil is when the peer's certificate or ours ends, whichever is first; zero without TLS.
	CertificateUntil time.Time

	Pending        int
	FramesSent     uint64
	FramesReceived uint64 // without keep-alives
	KeepAlives     uint64 // zero-length frames received
	Unmatched      uint64
	Reconnects     uint64
	AnswersDropped uint64 // requests of class 8 from the peer beyond what is answered
	Throttled      uint64 // times that reading was paused, since the peer sends more than its budgets
}

// Status is a link as operators see it. The embedded fields are the link's as if it were one line: those of its best line, with the
// counts of all lines added, the last time any line went down, and the last time anything was received.
type Status struct {
	Name string
	LineStatus
	Lines []LineStatus
}

// counts are what Status shows beside the metrics; since the process started.
type counts struct {
	framesSent, framesReceived, keepAlives, unmatched, reconnects, answersDropped, throttled atomic.Uint64
}

// standing orders the states by how near a line is to carrying financial traffic.
var standing = map[State]int{Down: 0, Connecting: 1, SigningOff: 2, SignedOff: 3, SigningOn: 4, SignedOn: 5}

// best gives the line that is nearest to carrying traffic, the first of equals; the caller holds mu.
func (l *Link) best() *Line {
	best := l.lines[0]
	for _, line := range l.lines[1:] {
		if standing[line.status.State] > standing[best.status.State] {
			best = line
		}
	}
	return best
}

// State gives the state of the moment, which is the best line's: a link is signed on when at least one line is.
func (l *Link) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.best().status.State
}

// State gives the line's state of the moment.
func (l *Line) State() State {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	return l.status.State
}

// Status gives a snapshot.
func (l *Link) Status() Status {
	l.mu.Lock()
	status := Status{Name: l.name, LineStatus: l.best().snapshot(), Lines: make([]LineStatus, len(l.lines))}
	for i, line := range l.lines {
		status.Lines[i] = line.snapshot()
	}
	pending := len(l.pending)
	l.mu.Unlock()
	sum := &status.LineStatus
	best := sum.Line
	sum.Pending = pending
	for _, line := range status.Lines {
		if line.LastReceived.After(sum.LastReceived) {
			sum.LastReceived = line.LastReceived
		}
		if line.LastDownAt.After(sum.LastDownAt) {
			sum.LastDown, sum.LastDownAt, sum.LastDownCause = line.LastDown, line.LastDownAt, line.LastDownCause
		}
		if line.Line == best {
			continue
		}
		sum.FramesSent += line.FramesSent
		sum.FramesReceived += line.FramesReceived
		sum.KeepAlives += line.KeepAlives
		sum.Unmatched += line.Unmatched
		sum.Reconnects += line.Reconnects
		sum.AnswersDropped += line.AnswersDropped
		sum.Throttled += line.Throttled
	}
	return status
}

// snapshot gives the line's status with its counts; the caller holds Link.mu.
func (l *Line) snapshot() LineStatus {
	status := l.status
	if s := l.socket; s != nil {
		status.Pending = s.pending
		status.LastReceived = s.lastReceived()
	}
	status.Connected = status.State.Connected()
	status.SignedOn = status.State == SignedOn
	status.SignedOffBy = l.signedOffBy()
	status.FramesSent = l.counts.framesSent.Load()
	status.FramesReceived = l.counts.framesReceived.Load()
	status.KeepAlives = l.counts.keepAlives.Load()
	status.Unmatched = l.counts.unmatched.Load()
	status.Reconnects = l.counts.reconnects.Load()
	status.AnswersDropped = l.counts.answersDropped.Load()
	status.Throttled = l.counts.throttled.Load()
	return status
}

// become enters a state from one of the given states, or from any when none is given, and reports whether it did. The comparison
// makes it safe to call from the reader and from keep at the same time: nothing brings a lost socket's line back up.
func (l *Line) become(next State, from ...State) bool {
	l.link.mu.Lock()
	previous := l.status.State
	if previous == next || len(from) > 0 && !slices.Contains(from, previous) {
		l.link.mu.Unlock()
		return false
	}
	l.enter(next)
	l.link.mu.Unlock()
	l.log.Info("line "+string(next), zap.String("from", string(previous)), zap.String("address", l.address))
	return true
}

// enter sets the state and the gauges; the caller holds Link.mu.
func (l *Line) enter(next State) {
	l.status.State, l.status.Since = next, time.Now()
	connected, signedOn := 0, 0
	for _, line := range l.link.lines {
		if line.status.State.Connected() {
			connected++
		}
		if line.status.State == SignedOn {
			signedOn++
		}
	}
	l.metrics.up.Set(gauge(connected > 0))
	l.metrics.signedOn.Set(gauge(signedOn > 0))
	l.metrics.linesSignedOn.Set(float64(signedOn))
}

// enterDown records why the line has no socket; the caller holds Link.mu, and calls reportDown without it afterwards.
func (l *Line) enterDown(reason DownReason, cause error) {
	l.enter(Down)
	l.status.LastDown, l.status.LastDownAt, l.status.LastDownCause = reason, time.Now(), ""
	if cause != nil {
		l.status.LastDownCause = cause.Error()
	}
	l.metrics.down[reason].Inc()
}

// reportDown is the transition's one line in the log.
func (l *Line) reportDown(reason DownReason, cause error) {
	if reason == DownShutdown {
		l.log.Info("line down", zap.String("reason", string(reason)))
		return
	}
	l.log.Warn("line down", zap.String("reason", string(reason)), zap.NamedError("cause", cause))
}

// noteEcho records an echo's round trip.
func (l *Line) noteEcho(roundTrip time.Duration) {
	l.metrics.echoRoundTrip.Observe(roundTrip.Seconds())
	l.link.mu.Lock()
	l.status.EchoRoundTrip = roundTrip
	l.link.mu.Unlock()
}

func gauge(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
