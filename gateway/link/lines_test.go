package link

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// host is a peer behind one address of a link; it keeps what it received, and answers when told to.
type host struct {
	*peer
	mu       sync.Mutex // protects the following
	received []*iso8583.Message
	conns    []*conn
	answers  bool
}

// startHosts starts n peers, which answer at once when answers is true and else keep silent.
func startHosts(t *testing.T, n int, answers bool) []*host {
	t.Helper()
	hosts := make([]*host, n)
	for i := range hosts {
		h := &host{answers: answers}
		h.peer = startPeer(t, func(c *conn) {
			h.mu.Lock()
			h.conns = append(h.conns, c)
			h.mu.Unlock()
			c.serve(func(m *iso8583.Message) []*iso8583.Message {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.received = append(h.received, m)
				if h.answers {
					return approve(m)
				}
				return nil
			})
		})
		hosts[i] = h
	}
	return hosts
}

func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.received)
}

func (h *host) stans() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var stans []string
	for _, m := range h.received {
		stans = append(stans, m.Get(iso8583.STAN))
	}
	return stans
}

// last gives the host's latest connection.
func (h *host) last() *conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[len(h.conns)-1]
}

// setAnswers makes the host answer what comes from now on, or keep silent.
func (h *host) setAnswers(answers bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers = answers
}

// linesConfig is the test profile with one line to each host.
func linesConfig(hosts []*host) Config {
	cfg := testConfig(hosts[0].address())
	cfg.Lines = len(hosts)
	for _, h := range hosts[1:] {
		cfg.Addresses = append(cfg.Addresses, h.address())
	}
	return cfg
}

// startLines runs a link with one line to each host, all signed on. stop must be called by tests that leave calls unanswered.
func startLines(t *testing.T, cfg Config) (l *Link, stop func()) {
	t.Helper()
	l, stop = runLink(t, cfg, Options{})
	t.Cleanup(stop)
	waitLines(t, l, cfg.Lines)
	return l, stop
}

// waitLines waits until exactly n lines are signed on.
func waitLines(t *testing.T, l *Link, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d lines are signed on", n), func() bool {
		signedOn := 0
		for _, line := range l.Status().Lines {
			if line.SignedOn {
				signedOn++
			}
		}
		return signedOn == n
	})
}

// holdLine takes the turn to write on a line until the result is called.
func holdLine(t *testing.T, l *Link, number int) (release func()) {
	t.Helper()
	l.mu.Lock()
	s := l.lines[number].socket
	l.mu.Unlock()
	held := new(turn)
	s.writes.enter(held, true)
	if err := s.awaitTurn(t.Context(), held, time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { s.writes.leave(held) })
}

// handOver starts an exchange and returns once the link has taken the call in.
func handOver(t *testing.T, l *Link, m *iso8583.Message, affinity uint64, timeout time.Duration) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	call := Call{Body: encoded(m), Deadline: time.Now().Add(timeout), Affinity: affinity}
	prepared, err := l.newCall(call)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := l.Exchange(context.Background(), call)
		result <- err
	}()
	eventually(t, "the call is taken in, or over", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.pending[prepared.key] != nil || len(result) > 0
	})
	return result
}

// waitBegun waits until the write of every pending call has begun, so that its outcome can no longer be "not sent".
func waitBegun(t *testing.T, l *Link) {
	t.Helper()
	eventually(t, "every write has begun", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.pending {
			if !c.begun {
				return false
			}
		}
		return true
	})
}

func TestCallsAreSpreadEvenlyOverTheLinesSignedOn(t *testing.T) {
	t.Parallel()
	const calls = 60
	hosts := startHosts(t, 3, false)
	l, stop := startLines(t, linesConfig(hosts))
	var results []<-chan error
	for i := range calls {
		results = append(results, handOver(t, l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), 0, 2*patience))
	}
	for i, h := range hosts {
		eventually(t, "every call is received", func() bool { return h.count() >= calls/3 })
		if n := h.count(); n != calls/3 {
			t.Errorf("line %d carries %d calls, want %d", i, n, calls/3)
		}
	}
	status := l.Status()
	if status.Pending != calls || status.Lines[1].Pending != calls/3 || status.Lines[2].Address != hosts[2].address() {
		t.Errorf("status: %+v", status)
	}
	// A line that the peer signed off carries nothing new; the others share it.
	must(hosts[1].last().write(networkRequest(0x0800, 1, "002")))
	waitLines(t, l, 2)
	for i := range 20 {
		results = append(results, handOver(t, l, request(iso8583.MTIAuthorizationRequest, 100+i, "T1"), 0, 2*patience))
	}
	eventually(t, "the other lines share them", func() bool { return hosts[0].count()+hosts[2].count() == 2*calls/3+20 })
	if a, c := hosts[0].count(), hosts[2].count(); a != c || hosts[1].count() != calls/3 {
		t.Errorf("lines carry %d, %d and %d calls", a, hosts[1].count(), c)
	}
	if l.State() != SignedOn {
		t.Errorf("link is %s while two lines are signed on", l.State())
	}
	stop()
	for _, result := range results {
		requireLost(t, <-result, DownShutdown)
	}
}

func TestIdleLinesTakeTurns(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 3, true)
	l, _ := startLines(t, linesConfig(hosts))
	for i := range 30 {
		if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), patience); err != nil {
			t.Fatal(err)
		}
	}
	for i, h := range hosts {
		if n := h.count(); n != 10 {
			t.Errorf("line %d carried %d calls, want 10", i, n)
		}
	}
}

// TestLineWithTheFewestPendingCallsIsChosen: a line on which a call waits for its answer is passed over while another is idle.
func TestLineWithTheFewestPendingCallsIsChosen(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, true)
	l, stop := startLines(t, linesConfig(hosts))
	hosts[0].setAnswers(false)
	var waiting <-chan error
	for i := 0; hosts[0].count() == 0; i++ { // idle lines take turns
		result := handOver(t, l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), 0, 2*patience)
		eventually(t, "the call is answered, or waits on the silent line", func() bool {
			return len(result) > 0 || hosts[0].count() > 0
		})
		waiting = result
	}
	eventually(t, "a call waits on the silent line", func() bool { return hosts[0].count() == 1 })
	before := hosts[1].count()
	for i := range 20 {
		if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 100+i, "T1"), patience); err != nil {
			t.Fatal(err)
		}
	}
	if n := hosts[1].count() - before; n != 20 || hosts[0].count() != 1 {
		t.Errorf("the idle line carried %d calls of 20", n)
	}
	stop()
	requireLost(t, <-waiting, DownShutdown)
}

func TestLostLineFailsItsOwnCallsAndNoOthers(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, false)
	l, stop := startLines(t, linesConfig(hosts))
	results := map[string]<-chan error{}
	for i := range 20 {
		m := request(iso8583.MTIAuthorizationRequest, i+1, "T1")
		results[m.Get(iso8583.STAN)] = handOver(t, l, m, 0, 2*patience)
	}
	eventually(t, "every call is received", func() bool { return hosts[0].count()+hosts[1].count() == 20 })
	hosts[0].Close() // so that the line stays down
	hosts[0].last().Close()
	for _, stan := range hosts[0].stans() {
		requireLost(t, <-results[stan], DownPeerClosed)
	}
	if status := l.Status(); status.Pending != 10 || status.State != SignedOn || status.Lines[0].LastDown == "" {
		t.Errorf("%d calls pending on a link that is %s", status.Pending, status.State)
	}
	for _, m := range slices.Clone(hosts[1].received) {
		must(hosts[1].last().write(response(m, "00")))
	}
	for _, stan := range hosts[1].stans() {
		if err := <-results[stan]; err != nil {
			t.Errorf("call on the other line: %v", err)
		}
	}
	stop()
}

// TestFailoverOnlyWhileNoWriteWasBegun: a call that waits for its write goes over another line when its own is lost or signed off; one
// whose write has begun is never seen by another line.
func TestFailoverOnlyWhileNoWriteWasBegun(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(c *conn){
		"lost":       func(c *conn) { c.Close() },
		"signed off": func(c *conn) { must(c.write(networkRequest(0x0800, 1, "002"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hosts := startHosts(t, 2, false)
			l, stop := startLines(t, linesConfig(hosts))
			begun := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), 0, 2*patience)
			first := 0
			eventually(t, "the first call is received", func() bool {
				first = slices.IndexFunc(hosts, func(h *host) bool { return h.count() == 1 })
				return first >= 0
			})
			other := hosts[1-first]
			other.setAnswers(true)
			release := holdLine(t, l, first)
			defer release()
			filler := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), 0, 2*patience) // on the other line
			if err := <-filler; err != nil {
				t.Fatal(err)
			}
			other.setAnswers(false)
			_ = handOver(t, l, request(iso8583.MTIAuthorizationRequest, 3, "T1"), 0, 2*patience) // now both have one, or more
			_ = handOver(t, l, request(iso8583.MTIAuthorizationRequest, 4, "T1"), 0, 2*patience)
			other.setAnswers(true)
			l.mu.Lock()
			waiting := l.lines[first].socket.pending - 1
			l.mu.Unlock()
			if waiting < 1 {
				t.Fatal("no call waits on the line that is about to fail")
			}
			before := other.count()
			fail(hosts[first].last())
			waitLines(t, l, 1)
			release()
			eventually(t, "the waiting calls went over the other line", func() bool { return other.count() == before+waiting })
			if name == "lost" {
				requireLost(t, <-begun, DownPeerClosed)
			}
			stop()
			if slices.Contains(other.stans(), "000001") || hosts[first].count() != 1 {
				t.Errorf("a request was sent on two lines: %v and %v", hosts[first].stans(), other.stans())
			}
		})
	}
}

func TestNoFailoverAfterSendBefore(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, true)
	l, _ := startLines(t, linesConfig(hosts))
	for number := range hosts {
		defer holdLine(t, l, number)()
	}
	_, err := l.Exchange(t.Context(), Call{
		Body:       encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")),
		SendBefore: time.Now().Add(50 * time.Millisecond), Deadline: time.Now().Add(patience),
	})
	requireNotSent(t, err, ErrExpired)
	if l.Status().Pending != 0 || hosts[0].count()+hosts[1].count() != 0 {
		t.Error("the call is pending, or was sent")
	}
}

func TestReversalsGoOverAnyLine(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, false)
	l, stop := startLines(t, linesConfig(hosts))
	original := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), 0, 2*patience)
	eventually(t, "the original is received", func() bool { return hosts[0].count()+hosts[1].count() == 1 })
	for i, h := range hosts {
		if h.count() == 1 { // its line is lost, and stays so
			h.Close()
			h.last().Close()
			hosts[1-i].setAnswers(true)
		}
	}
	requireLost(t, <-original, DownPeerClosed)
	if _, err := exchange(l, request(iso8583.MTIReversalAdvice, 1, "T1"), patience); err != nil {
		t.Errorf("reversal: %v", err)
	}
	stop()
}

func TestAnswersOnTheOtherLineAreDelivered(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, false)
	l, _ := startLines(t, linesConfig(hosts))
	var results []<-chan error
	for i := range 10 {
		results = append(results, handOver(t, l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), 0, patience))
	}
	eventually(t, "every call is received", func() bool { return hosts[0].count()+hosts[1].count() == 10 })
	for i, h := range hosts {
		for _, m := range h.received {
			must(hosts[1-i].last().write(response(m, "00")))
		}
	}
	for _, result := range results {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if status := l.Status(); status.Pending != 0 || status.Lines[0].Pending != 0 || status.Lines[1].Pending != 0 || status.Unmatched != 0 {
		t.Errorf("status: %+v", status)
	}
}

func TestC1_KeyInFlightIsRefusedOnEveryLine(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 3, false)
	l, stop := startLines(t, linesConfig(hosts))
	first := handOver(t, l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), 0, 2*patience)
	for range 6 {
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
		requireNotSent(t, err, ErrKeyInFlight)
	}
	waitBegun(t, l)
	stop()
	requireLost(t, <-first, DownShutdown)
	if n := hosts[0].count() + hosts[1].count() + hosts[2].count(); n > 1 {
		t.Errorf("%d requests received", n)
	}
}

func TestRoomIsCountedOverAllLines(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, false)
	cfg := linesConfig(hosts)
	cfg.MaxPending = 3
	l, stop := startLines(t, cfg)
	ended := fill(t, l, 6)
	if l.HasRoom() {
		t.Error("a link with full lines has room")
	}
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 900, "T1"), patience)
	requireNotSent(t, err, ErrTooManyPending)
	eventually(t, "every call is received", func() bool { return hosts[0].count() == 3 && hosts[1].count() == 3 })
	hosts[0].Close()
	hosts[0].last().Close()
	for range 3 {
		requireLost(t, <-ended, DownPeerClosed)
	}
	if l.HasRoom() {
		t.Error("a link whose last line is full has room")
	}
	stop()
}
