package link

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// pipeTo dials a peer inside a synctest bubble; real sockets would keep its clock from advancing.
func pipeTo(serve func(*conn)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			serve(newConn(theirs))
		}()
		return ours, nil
	}
}

// bubbleConfig has the default times, which cost nothing under the bubble's clock.
func bubbleConfig() Config {
	cfg := DefaultConfig()
	cfg.Address = "127.0.0.1:1"
	return cfg
}

func networkRequest(mti iso8583.MTI, stan int, code string) *iso8583.Message {
	m := testSpec.NewMessage(mti)
	must(m.Set(iso8583.TransmissionDateTime, "0102030405"))
	must(m.Set(iso8583.STAN, fmt.Sprintf("%06d", stan)))
	if code != "" {
		must(m.Set(iso8583.NetworkManagementCode, code))
	}
	return m
}

func TestS62_HostEchoOnAnIdleLineIsAnswered(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mti        iso8583.MTI
		code, want string
	}{
		{0x0800, "301", "00"},
		{0x0801, "301", "00"},
		{0x0800, "001", "00"},
		{0x0800, "201", "00"},
		{0x0800, "", "00"},
		{0x0800, "161", "40"}, // a key change that nobody makes
	}
	answers := make(chan *iso8583.Message, len(tests))
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for i, test := range tests {
			_ = c.write(networkRequest(test.mti, 100+i, test.code))
			m, err := c.read()
			if err != nil {
				return
			}
			answers <- m
		}
		c.serve(approve)
	})
	var handedOn journal
	l := startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	for i, test := range tests {
		m := <-answers
		if m.MTI() != iso8583.MTINetworkManagementResponse || m.Get(iso8583.ResponseCode) != test.want {
			t.Errorf("%s with code %q answered by %s", test.mti, test.code, m.Image())
		}
		if m.Get(iso8583.STAN) != fmt.Sprintf("%06d", 100+i) || m.Get(iso8583.NetworkManagementCode) != test.code ||
			m.Get(iso8583.TransmissionDateTime) != "0102030405" {
			t.Errorf("answer does not repeat its request: %s", m.Image())
		}
	}
	if u := handedOn.wait(t, 1); u[0].Kind != UnknownRequest || u[0].MTI != 0x0800 {
		t.Errorf("the unserved code was handed on as %s %s", u[0].Kind, u[0].MTI)
	}
	if l.State() != SignedOn {
		t.Errorf("link is %s", l.State())
	}
}

func TestHostEchoStormIsAnsweredAtABoundedRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const storm = 2000
		const duration = 2 * time.Second
		var answered atomic.Int32
		dial := pipeTo(func(c *conn) {
			if c.signOn() != nil {
				return
			}
			go func() {
				for i := range storm {
					if c.write(networkRequest(0x0800, i+1, "301")) != nil {
						return
					}
					time.Sleep(duration / storm)
				}
			}()
			for {
				m, err := c.read()
				if err != nil {
					return
				}
				if m.MTI().IsResponse() {
					answered.Add(1)
				} else if c.write(response(m, "00")) != nil {
					return
				}
			}
		})
		l, stop := runLink(t, bubbleConfig(), Options{Dial: dial})
		time.Sleep(2 * duration)
		limit := int32(duration/networkAnswerGap) + maxQueuedRequests + 1
		if n := answered.Load(); n == 0 || n > limit {
			t.Errorf("%d answers, at most %d are allowed", n, limit)
		}
		if status := l.Status(); status.AnswersDropped+uint64(answered.Load()) != storm || status.State != SignedOn {
			t.Errorf("%d dropped, link %s", status.AnswersDropped, status.State)
		}
		stop()
	})
}

func TestS64_BlackHoledPeerIsFoundAndTheLinkRecycled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var echoes, connections atomic.Int32
		dial := pipeTo(func(c *conn) {
			connections.Add(1)
			if c.signOn() != nil {
				return
			}
			for {
				m, err := c.read()
				if err != nil {
					return
				}
				if m.Get(iso8583.NetworkManagementCode) == "301" {
					echoes.Add(1)
				}
			}
		})
		cfg := bubbleConfig()
		l, stop := runLink(t, cfg, Options{Dial: dial})
		synctest.Wait()
		inFlight := make(chan error, 1)
		go func() {
			_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), time.Hour)
			inFlight <- err
		}()
		detection := cfg.EchoInterval.Std() + time.Duration(cfg.EchoMisses)*cfg.EchoTimeout.Std()
		time.Sleep(detection - time.Millisecond)
		if l.State() != SignedOn || echoes.Load() != int32(cfg.EchoMisses) {
			t.Errorf("before detection the link is %s, after %d echoes", l.State(), echoes.Load())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if status := l.Status(); status.LastDown != DownPeerSilent {
			t.Errorf("down by %q in state %s", status.LastDown, status.State)
		}
		requireLost(t, <-inFlight, DownPeerSilent)
		time.Sleep(cfg.ReconnectMin.Std())
		synctest.Wait()
		if l.State() != SignedOn || connections.Load() != 2 {
			t.Errorf("link is %s after %d connections", l.State(), connections.Load())
		}
		stop()
	})
}

func TestEchoOnlyWhenIdleAndAnAnsweredOneKeepsTheLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var echoes atomic.Int32
		dial := pipeTo(func(c *conn) {
			for {
				m, err := c.read()
				if err != nil {
					return
				}
				if m.Get(iso8583.NetworkManagementCode) == "301" {
					echoes.Add(1)
					time.Sleep(40 * time.Millisecond)
				}
				if c.write(response(m, "00")) != nil {
					return
				}
			}
		})
		l, stop := runLink(t, bubbleConfig(), Options{Dial: dial})
		synctest.Wait()
		for range 10 { // a busy line needs no echo
			if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), time.Second); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
		}
		if n := echoes.Load(); n != 0 {
			t.Errorf("%d echoes on a busy line", n)
		}
		time.Sleep(5 * time.Minute)
		status := l.Status()
		if n := echoes.Load(); n < 9 || n > 11 || status.State != SignedOn || status.Reconnects != 0 {
			t.Errorf("%d echoes in five idle minutes, link %s, %d reconnects", n, status.State, status.Reconnects)
		}
		if status.EchoRoundTrip != 40*time.Millisecond {
			t.Errorf("echo round trip %s", status.EchoRoundTrip)
		}
		stop()
	})
}

func TestS65_NoFinancialTrafficBeforeSignOn(t *testing.T) {
	t.Parallel()
	approveSignOn := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		m, err := c.read()
		if err != nil {
			return
		}
		_ = c.write(networkRequest(0x0800, 1, "301")) // the heartbeat passes while signed off
		if echo, err := c.read(); err != nil || echo.MTI() != 0x0810 {
			t.Errorf("echo before sign-on: %v", err)
			return
		}
		<-approveSignOn
		_ = c.write(response(m, "00"))
		c.serve(approve)
	})
	l := startLink(t, testConfig(p.address()), Options{})
	waitState(t, l, SigningOn)
	eventually(t, "the host's echo is answered", func() bool { return l.Status().FramesSent == 2 })
	status := l.Status()
	if !status.Connected || status.SignedOn {
		t.Errorf("connected %t, signed on %t", status.Connected, status.SignedOn)
	}
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
	requireNotSent(t, err, ErrNotSignedOn)
	close(approveSignOn)
	waitState(t, l, SignedOn)
	if n := l.Status().FramesSent; n != 2 {
		t.Errorf("%d frames sent before sign-on", n)
	}
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Error(err)
	}
}

func TestS65_NotSignedOnAnswerTriggersSignOnAndNoResend(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var received []string
	p := startPeer(t, func(c *conn) {
		for {
			m, err := c.read()
			if err != nil {
				return
			}
			mu.Lock()
			received = append(received, m.MTI().String()+m.Get(iso8583.NetworkManagementCode))
			n := len(received)
			mu.Unlock()
			code := "00"
			if n == 2 {
				code = "58"
			}
			if c.write(response(m, code)) != nil {
				return
			}
		}
	})
	cfg := testConfig(p.address())
	cfg.Spec = notSignedOnSpec("58")
	l := startSignedOn(t, cfg, Options{})
	body, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
	if err != nil || decoded(t, body).Get(iso8583.ResponseCode) != "58" {
		t.Fatalf("the answer was not delivered: %v", err)
	}
	eventually(t, "signed on again", func() bool { return l.State() == SignedOn && l.Status().FramesSent >= 3 })
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), patience); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(received, " "); got != "0800001 0100 0800001 0100" {
		t.Errorf("the peer received %s", got)
	}
}

func TestHostSignOffStopsTrafficUntilWeSignOnAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signOff := make(chan struct{})
		var signOns, answers atomic.Int32
		dial := pipeTo(func(c *conn) {
			go func() {
				<-signOff
				_ = c.write(networkRequest(0x0800, 900, "002"))
			}()
			for {
				m, err := c.read()
				switch {
				case err != nil:
					return
				case m.MTI().IsResponse():
					answers.Add(1)
					continue
				case m.Get(iso8583.NetworkManagementCode) == "001":
					signOns.Add(1)
				}
				if c.write(response(m, "00")) != nil {
					return
				}
			}
		})
		cfg := bubbleConfig()
		l, stop := runLink(t, cfg, Options{Dial: dial})
		synctest.Wait()
		close(signOff)
		synctest.Wait()
		if l.State() != SignedOff || answers.Load() != 1 {
			t.Errorf("link is %s, %d answers", l.State(), answers.Load())
		}
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), time.Minute)
		requireNotSent(t, err, ErrNotSignedOn)
		time.Sleep(cfg.SignOnAgainAfter.Std() - time.Millisecond)
		if l.State() != SignedOff {
			t.Errorf("link is %s before the delay is over", l.State())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if l.State() != SignedOn || signOns.Load() != 2 || l.Status().Reconnects != 0 {
			t.Errorf("link is %s after %d sign-ons", l.State(), signOns.Load())
		}
		stop()
	})
}

func TestWithoutRequiredSignOnTrafficFlowsAtOnce(t *testing.T) {
	t.Parallel()
	var network atomic.Int32
	p := startPeer(t, func(c *conn) {
		for {
			m, err := c.read()
			if err != nil {
				return
			}
			if m.MTI().Class() == 8 {
				network.Add(1)
			}
			if c.write(response(m, "00")) != nil {
				return
			}
		}
	})
	cfg := testConfig(p.address())
	cfg.SignOn.Required = false
	l, stop := runLink(t, cfg, Options{})
	waitState(t, l, SignedOn)
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Error(err)
	}
	stop()
	if n := network.Load(); n != 0 {
		t.Errorf("%d network management messages", n)
	}
}

func TestSignOnCarriesItsElementsAndAFreshSTAN(t *testing.T) {
	t.Parallel()
	stans := make(chan string, 2)
	p := startPeer(t, func(c *conn) {
		m, err := c.read()
		if err != nil {
			return
		}
		if m.Get(33) != "12345678" {
			t.Errorf("sign-on without its configured element: %s", m.Image())
		}
		stans <- m.Get(iso8583.STAN)
		if len(stans) == 1 {
			_ = c.write(response(m, "91")) // the link hangs up and signs on again
			return
		}
		_ = c.write(response(m, "00"))
		c.serve(approve)
	})
	cfg := testConfig(p.address())
	cfg.SignOn.Elements = map[iso8583.Element]string{33: "12345678"}
	l, err := New("test", cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.lastSTAN.Store(maxSTAN - 2)
	t.Cleanup(run(t, l))
	waitState(t, l, SignedOn)
	if first, second := <-stans, <-stans; first != "999999" || second != "000001" {
		t.Errorf("STANs %q and %q, want the last and the first that there are", first, second)
	}
}
