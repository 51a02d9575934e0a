package link

import (
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// State is where a link stands.
//
//	Down ──► Connecting ──► SigningOn ──► SignedOn ──► SigningOff ──► Down
//	  ▲          │           │    ▲        │   │                      ▲
//	  └──────────┴───────────┘    │        │   └── socket given up ───┘
//	                              │        ▼
//	                              └── SignedOff (the peer signed us off)
//
// A "not signed on" answer takes a signed-on link back to SigningOn. Without Config.SignOn.Required, SigningOn is passed through
// without a message. From every connected state a given-up socket leads to Down.
type State string

// The states. From SigningOn on there is a socket; financial traffic flows in SignedOn only.
const (
	Down       State = "down"
	Connecting State = "connecting"
	SigningOn  State = "signing_on"
	SignedOn   State = "signed_on"
	SignedOff  State = "signed_off" // by the peer; we sign on again after Config.SignOnAgainAfter
	SigningOff State = "signing_off"
)

// Connected reports whether there is a socket.
func (s State) Connected() bool { return s != Down && s != Connecting }

// Status is a link as operators see it.
type Status struct {
	Name          string
	Address       string
	State         State
	Since         time.Time // when State was entered
	Connected     bool
	SignedOn      bool
	LastDown      DownReason // "" before the first time
	LastDownAt    time.Time
	LastDownCause string        // for people; holds nothing of a message
	LastReceived  time.Time     // of the present socket; zero when there is none
	EchoRoundTrip time.Duration // of the last answered echo; 0 before the first

	Pending        int
	FramesSent     uint64
	FramesReceived uint64 // without keep-alives
	KeepAlives     uint64 // zero-length frames received
	Unmatched      uint64
	Reconnects     uint64
	AnswersDropped uint64 // requests of class 8 from the peer beyond what is answered
}

// counts are what Status shows beside the metrics; since the process started.
type counts struct {
	framesSent, framesReceived, keepAlives, unmatched, reconnects, answersDropped atomic.Uint64
}

// State gives the state of the moment.
func (l *Link) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.State
}

// Status gives a snapshot.
func (l *Link) Status() Status {
	l.mu.Lock()
	status := l.status
	if s := l.socket; s != nil {
		status.Pending = len(s.pending)
		status.LastReceived = s.lastReceived()
	}
	l.mu.Unlock()
	status.Connected = status.State.Connected()
	status.SignedOn = status.State == SignedOn
	status.FramesSent = l.counts.framesSent.Load()
	status.FramesReceived = l.counts.framesReceived.Load()
	status.KeepAlives = l.counts.keepAlives.Load()
	status.Unmatched = l.counts.unmatched.Load()
	status.Reconnects = l.counts.reconnects.Load()
	status.AnswersDropped = l.counts.answersDropped.Load()
	return status
}

// become enters a state from one of the given states, or from any when none is given, and reports whether it did. The comparison
// makes it safe to call from the reader and from keep at the same time: nothing brings a lost socket's link back up.
func (l *Link) become(next State, from ...State) bool {
	l.mu.Lock()
	previous := l.status.State
	if previous == next || len(from) > 0 && !slices.Contains(from, previous) {
		l.mu.Unlock()
		return false
	}
	l.enter(next)
	l.mu.Unlock()
	l.log.Info("link "+string(next), zap.String("from", string(previous)), zap.String("address", l.cfg.Address))
	return true
}

// enter sets the state and its gauges; the caller holds mu.
func (l *Link) enter(next State) {
	l.status.State, l.status.Since = next, time.Now()
	l.metrics.up.Set(gauge(next.Connected()))
	l.metrics.signedOn.Set(gauge(next == SignedOn))
}

// enterDown records why the link has no socket; the caller holds mu, and calls reportDown without it afterwards.
func (l *Link) enterDown(reason DownReason, cause error) {
	l.enter(Down)
	l.status.LastDown, l.status.LastDownAt, l.status.LastDownCause = reason, time.Now(), ""
	if cause != nil {
		l.status.LastDownCause = cause.Error()
	}
	l.metrics.down[reason].Inc()
}

// reportDown is the transition's one line in the log.
func (l *Link) reportDown(reason DownReason, cause error) {
	if reason == DownShutdown {
		l.log.Info("link down", zap.String("reason", string(reason)))
		return
	}
	l.log.Warn("link down", zap.String("reason", string(reason)), zap.NamedError("cause", cause))
}

// noteEcho records an echo's round trip.
func (l *Link) noteEcho(roundTrip time.Duration) {
	l.metrics.echoRoundTrip.Observe(roundTrip.Seconds())
	l.mu.Lock()
	l.status.EchoRoundTrip = roundTrip
	l.mu.Unlock()
}

func gauge(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
