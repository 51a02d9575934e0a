package link

import (
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// reset closes a connection so that the other side sees it thrown away; one that the end of the test has closed already stays closed.
func reset(c *conn) {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// refuse answers the sign-on with a refusal.
func refuse(c *conn) {
	if m, err := c.read(); err == nil {
		_ = c.write(response(m, "05"))
	}
}

// TestEveryEndOfASocketHasItsReason: whatever the peer does, the reason says what it was; each several times, since some are races
// between what the peer said last and the end.
func TestEveryEndOfASocketHasItsReason(t *testing.T) {
	t.Parallel()
	const rounds = 8
	half := func(c *conn) {
		frame := framed(request(0x0420, 1, "T1"))
		_, _ = c.Write(frame[:len(frame)/2])
	}
	signedOn := func(then func(c *conn)) func(c *conn) {
		return func(c *conn) {
			if c.signOn() == nil {
				then(c)
			}
		}
	}
	tests := map[string]struct {
		serve func(c *conn)
		want  DownReason
		cause string
	}{
		"closed instead of an answer": {func(c *conn) { _, _ = c.read() }, DownPeerClosed, ""},
		"closed after the sign-on":    {signedOn(func(*conn) {}), DownPeerClosed, ""},
		"closed within the length":    {signedOn(func(c *conn) { _, _ = c.Write([]byte{0}) }), DownCutFrame, ""},
		"closed within a message":     {signedOn(half), DownCutFrame, ""},
		"reset":                       {signedOn(reset), DownReset, ""},
		"refused":                     {func(c *conn) { refuse(c); drain(c) }, DownSignOnRefused, `"05"`},
		"refused, then closed":        {refuse, DownSignOnRefused, `"05"`},
		"refused, then reset":         {func(c *conn) { refuse(c); reset(c) }, DownSignOnRefused, `"05"`},
		"a length that has no sense":  {signedOn(func(c *conn) { _, _ = c.Write([]byte{0xff, 0xff, 1}); drain(c) }), DownBadFrame, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startLink(t, testConfig(startPeer(t, test.serve).address()), Options{})
			for n := range uint64(rounds) {
				eventually(t, "the socket is given up again", func() bool { return l.Status().Reconnects > n })
				if status := l.Status(); status.LastDown != test.want || !strings.Contains(status.LastDownCause, test.cause) {
					t.Fatalf("down by %q: %s; want %q", status.LastDown, status.LastDownCause, test.want)
				}
			}
		})
	}
}

// TestTLSEndsHaveTheirReasons: an alert, an orderly end, and one that TLS was not told of.
func TestTLSEndsHaveTheirReasons(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	server := serverConfig(ca.issue("127.0.0.1", time.Now().Add(time.Hour)))
	authorities := ca.file()
	tests := map[string]struct {
		end   func(plain net.Conn, secured *tls.Conn)
		want  DownReason
		cause string
	}{
		"orderly":   {func(_ net.Conn, secured *tls.Conn) { secured.Close() }, DownPeerClosed, "EOF"},
		"truncated": {func(plain net.Conn, _ *tls.Conn) { plain.Close() }, DownPeerClosed, "EOF"},
		"alert":     {func(_ net.Conn, secured *tls.Conn) { drain(secured) }, DownTLSAlert, "bad record"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPeer(t, func(c *conn) {
				secured := tls.Server(c.Conn, server)
				defer secured.Close()
				if newConn(secured).signOn() == nil {
					test.end(c.Conn, secured)
				}
			})
			cfg := testConfig(p.address())
			cfg.ReconnectMin, cfg.ReconnectMax = configs.Duration(time.Minute), configs.Duration(time.Minute) // one life
			cfg.TLS = TLSConfig{Enabled: true, CAFile: authorities}
			l := startLink(t, cfg, Options{})
			if test.want == DownTLSAlert {
				waitState(t, l, SignedOn)
				l.mu.Lock()
				plain := l.lines[0].socket.nc.(*tls.Conn).NetConn()
				l.mu.Unlock()
				_, err := plain.Write([]byte{23, 3, 3, 0, 32, 31: 7, 36: 7}) // a record that nobody sealed
				must(err)
			}
			eventually(t, "the socket is given up", func() bool { return l.Status().LastDown != "" })
			if status := l.Status(); status.LastDown != test.want || !strings.Contains(status.LastDownCause, test.cause) {
				t.Errorf("down by %q: %s; want %q", status.LastDown, status.LastDownCause, test.want)
			}
		})
	}
}

// TestAnswersBeforeAResetAreDelivered: our own write fails while the peer's last answers still lie in our buffer.
func TestAnswersBeforeAResetAreDelivered(t *testing.T) {
	t.Parallel()
	for range 20 {
		var lives atomic.Int32
		p := startPeer(t, func(c *conn) {
			if lives.Add(1) > 1 {
				c.serve(approve)
				return
			}
			gather(1, func(c *conn, requests []*iso8583.Message) {
				_ = c.write(response(requests[0], "00"))
				_ = c.Conn.(*net.TCPConn).CloseWrite()
				reset(c)
			})(c)
		})
		l, stop := runLink(t, testConfig(p.address()), Options{})
		waitState(t, l, SignedOn)
		if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
			t.Fatal(err)
		}
		stop()
	}
}

// TestStalledReaderHoldsUpItsOwnLineOnly: one of two lines takes nothing more; calls on the other are answered meanwhile, and every caller
// returns by its deadline.
func TestStalledReaderHoldsUpItsOwnLineOnly(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	stalled := startPeer(t, func(c *conn) {
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if c.signOn() == nil {
			<-release
		}
	})
	t.Cleanup(func() { close(release) })
	healthy := startHosts(t, 1, true)[0]
	cfg := testConfig(stalled.address())
	cfg.Lines, cfg.Addresses = 2, []string{healthy.address()}
	cfg.SignOnTimeout = configs.Duration(300 * time.Millisecond)
	cfg.WriteTimeout = configs.Duration(time.Hour) // nothing but the calls' own deadlines ends a write
	l, stop := runLink(t, cfg, Options{Dial: smallBuffers})
	defer stop()
	waitLines(t, l, 2)
	all := requests(400)
	for _, m := range all {
		must(m.Set(iso8583.AdditionalData, strings.Repeat("0", 900)))
	}
	const timeout = time.Second
	began := time.Now()
	answered := 0
	for _, o := range exchangeAll(l, timeout, all...) {
		if o.err == nil {
			answered++
		}
	}
	if took := time.Since(began); took > patience {
		t.Errorf("the last caller returned after %s, its deadline was %s", took, timeout)
	}
	// The stalled line has no more than its half of the calls, and those fill it.
	if answered < len(all)/2 {
		t.Errorf("%d calls of %d were answered", answered, len(all))
	}
	if status := l.Status(); status.Lines[0].LastDown != DownWriteTimeout || status.Lines[1].LastDown != "" {
		t.Errorf("down by %q and %q", status.Lines[0].LastDown, status.Lines[1].LastDown)
	}
}

// TestSlowWriterIsFoundOut: a peer that trickles the bytes of a frame without end never delivers one, and is silent for all that matters.
func TestSlowWriterIsFoundOut(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		go drain(c)
		_, _ = c.Write([]byte{0x1f, 0xff})
		ticker := time.NewTicker(2 * time.Millisecond)
		defer ticker.Stop()
		for range ticker.C {
			if _, err := c.Write([]byte{'0'}); err != nil {
				return
			}
		}
	})
	cfg := testConfig(p.address())
	cfg.EchoInterval, cfg.EchoTimeout = configs.Duration(100*time.Millisecond), configs.Duration(50*time.Millisecond)
	cfg.ReconnectMin, cfg.ReconnectMax = configs.Duration(time.Minute), configs.Duration(time.Minute)
	l := startSignedOn(t, cfg, Options{})
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
	requireLost(t, err, DownPeerSilent)
}

// TestCallsAtTheirDeadlinesCostNoLine: calls whose time is over in the moment of their write leave the line as it is.
func TestCallsAtTheirDeadlinesCostNoLine(t *testing.T) {
	t.Parallel()
	l := startWith(t, silence, Options{})
	bodies := make([][]byte, 64)
	for i, m := range requests(len(bodies)) {
		bodies[i] = encoded(m)
	}
	for round := range 200 {
		left := time.Duration(round) * 20 * time.Microsecond
		if _, err := l.Exchange(t.Context(), Call{Body: bodies[round%len(bodies)], Deadline: time.Now().Add(left)}); err == nil {
			t.Fatal("answered")
		}
	}
	for _, left := range []time.Duration{0, time.Microsecond, 100 * time.Microsecond} { // past the check before the write
		l.mu.Lock()
		s := l.lines[0].socket
		l.mu.Unlock()
		held := new(turn)
		s.writes.enter(held, true)
		s.write(framed(networkRequest(0x0800, 1, "301")), 0x0800, time.Now().Add(left))
		s.writes.leave(held)
	}
	if status := l.Status(); status.LastDown != "" || status.State != SignedOn {
		t.Errorf("link is %s by %q: %s", status.State, status.LastDown, status.LastDownCause)
	}
}
