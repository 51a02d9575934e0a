package link

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// fill makes n authorizations wait on a link, with STANs from 1; each one's error goes to the result.
func fill(t *testing.T, l *Link, n int) <-chan error {
	t.Helper()
	ended := make(chan error, n)
	for i := range n {
		go func() {
			_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, i+1, "T1"), 2*patience)
			ended <- err
		}()
	}
	eventually(t, "the link is full", func() bool { return l.Status().Pending == n })
	waitBegun(t, l)
	return ended
}

// TestReversalsAreTakenByALinkFullOfWaitingAuthorizations: the peer answers no authorization, so reversals are owed just then.
func TestReversalsAreTakenByALinkFullOfWaitingAuthorizations(t *testing.T) {
	t.Parallel()
	const maxPending = 3
	var authorizations atomic.Int32
	answerReversals := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		var reversals []*iso8583.Message
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			if m.MTI() == iso8583.MTIAuthorizationRequest {
				authorizations.Add(1)
				return nil
			}
			if reversals = append(reversals, response(m, "00")); len(reversals) < minReversalReserve {
				return nil
			}
			<-answerReversals
			return reversals
		})
	})
	release := sync.OnceFunc(func() { close(answerReversals) })
	t.Cleanup(release)
	cfg := testConfig(p.address())
	cfg.MaxPending = maxPending
	l, stop := runLink(t, cfg, Options{})
	waitState(t, l, SignedOn)
	waiting := fill(t, l, maxPending)

	reversed := make(chan []outcome, 1)
	var reversals []*iso8583.Message
	for i := range minReversalReserve {
		reversals = append(reversals, request(iso8583.MTIReversalAdvice, i+1, "T2"))
	}
	go func() { reversed <- exchangeAll(l, patience, reversals...) }()
	eventually(t, "the reserve is full", func() bool { return l.Status().Pending == maxPending+minReversalReserve })

	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 900, "T1"), patience)
	requireNotSent(t, err, ErrTooManyPending)
	_, err = exchange(l, request(iso8583.MTIReversalAdvice, 901, "T1"), patience)
	requireNotSent(t, err, ErrTooManyPending)
	release()
	for i, o := range <-reversed {
		if o.err != nil {
			t.Errorf("reversal %d: %v", i, o.err)
		}
	}
	_, err = exchange(l, request(iso8583.MTIAuthorizationRequest, 900, "T1"), patience)
	requireNotSent(t, err, ErrTooManyPending) // the reserve is not theirs
	if n := authorizations.Load(); n != maxPending {
		t.Errorf("%d authorizations received, want %d", n, maxPending)
	}
	stop()
	for range maxPending {
		requireLost(t, <-waiting, DownShutdown)
	}
}

// TestEachClassHasItsOwnReserve: reversals must not take what an echo needs, either.
func TestEachClassHasItsOwnReserve(t *testing.T) {
	t.Parallel()
	tests := []struct{ maxPending, authorizations, reversals, network int }{
		{1, 1, 65, 69},
		{256, 256, 320, 324},
		{1024, 1024, 1280, 1284},
		{maxPendingLimit, 65_536, 81_920, 81_924},
	}
	for _, test := range tests {
		cfg := Config{MaxPending: test.maxPending}
		for mti, want := range map[iso8583.MTI]int{
			iso8583.MTIAuthorizationRequest: test.authorizations, iso8583.MTIReversalAdvice: test.reversals,
			iso8583.MTINetworkManagementRequest: test.network,
		} {
			if got := cfg.pendingLimit(mti.Class()); got != want {
				t.Errorf("max_pending %d: %s is refused from %d calls on, want %d", test.maxPending, mti, got, want)
			}
		}
	}
}

func TestEchoIsSentByALinkFullOfReversals(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) { c.serve(silence) })
	cfg := testConfig(p.address())
	cfg.MaxPending = 1
	l, stop := runLink(t, cfg, Options{})
	waitState(t, l, SignedOn)
	ended := make(chan []outcome, 1)
	var reversals []*iso8583.Message
	for i := range 1 + minReversalReserve {
		reversals = append(reversals, request(iso8583.MTIReversalAdvice, i+1, "T1"))
	}
	go func() { ended <- exchangeAll(l, 2*patience, reversals...) }()
	eventually(t, "the link is full", func() bool { return l.Status().Pending == len(reversals) })
	waitBegun(t, l)
	if _, err := exchange(l, networkRequest(iso8583.MTINetworkManagementRequest, 900, "301"), patience); err != nil {
		t.Errorf("echo: %v", err)
	}
	stop()
	for _, o := range <-ended {
		requireLost(t, o.err, DownShutdown)
	}
}

func TestHasRoomWhileSignedOnAndNotFull(t *testing.T) {
	t.Parallel()
	const maxPending = 2
	conns := make(chan *conn, 1)
	answer := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		conns <- c
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			if m.Get(iso8583.STAN) == "000002" {
				return nil
			}
			<-answer
			return approve(m)
		})
	})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	cfg := testConfig(p.address())
	cfg.MaxPending = maxPending
	l, err := New("test", cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if l.HasRoom() {
		t.Error("a link that is down has room")
	}
	stop := run(t, l)
	waitState(t, l, SignedOn)
	if !l.HasRoom() {
		t.Error("an idle link has no room")
	}
	ended := fill(t, l, maxPending)
	if l.HasRoom() {
		t.Error("a full link has room")
	}
	release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !l.HasRoom() {
		t.Error("no room after an answer")
	}
	must((<-conns).write(networkRequest(iso8583.MTINetworkManagementRequest, 1, "002")))
	waitState(t, l, SignedOff)
	if l.HasRoom() {
		t.Error("a link that the peer signed off has room")
	}
	stop()
	requireLost(t, <-ended, DownShutdown)
	if l.HasRoom() {
		t.Error("a stopped link has room")
	}
}

// TestHasRoomAgreesWithExchangeWhileALinkStops: the state is still signed on when new calls are refused already.
func TestHasRoomAgreesWithExchangeWhileALinkStops(t *testing.T) {
	t.Parallel()
	l := startWith(t, approve, Options{})
	l.stop()
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), time.Second)
	requireNotSent(t, err, ErrShuttingDown)
	if l.State() != SignedOn || l.HasRoom() {
		t.Errorf("link is %s and has room: %v", l.State(), l.HasRoom())
	}
}
