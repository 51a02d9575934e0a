package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

func requests(n int) []*iso8583.Message {
	all := make([]*iso8583.Message, n)
	for i := range all {
		all[i] = request(iso8583.MTIAuthorizationRequest, i+1, "T1")
	}
	return all
}

func TestC4_EveryCallerReturnsWhenThePeerAnswersAndCloses(t *testing.T) {
	t.Parallel()
	for _, inFlight := range []int{64, 256} {
		for _, answered := range []int{inFlight, inFlight / 2} {
			t.Run(fmt.Sprintf("%d of %d answered", answered, inFlight), func(t *testing.T) {
				t.Parallel()
				var once atomic.Bool
				p := startPeer(t, func(c *conn) {
					if once.Swap(true) {
						c.serve(approve)
						return
					}
					gather(inFlight, func(c *conn, requests []*iso8583.Message) {
						for _, m := range requests[:answered] {
							_ = c.write(response(m, "00"))
						}
						c.Close()
					})(c)
				})
				l := startSignedOn(t, testConfig(p.address()), Options{})
				got := 0
				for _, o := range exchangeAll(l, patience, requests(inFlight)...) {
					if o.err == nil {
						got++
						continue
					}
					requireLost(t, o.err, DownPeerClosed)
				}
				if got != answered {
					t.Errorf("%d answers delivered, %d were sent", got, answered)
				}
			})
		}
	}
}

// smallBuffers makes a peer that does not read block our writes after a few kilobytes.
func smallBuffers(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		err = nc.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return nc, err
}

func TestC5_PeerThatStopsReadingHoldsNobodyPastTheDeadline(t *testing.T) {
	t.Parallel()
	// The slack is for a starved machine; the exact times are TestExpiredWhileWaitingForTheWriteLock's.
	const calls, timeout, slack = 4000, 500 * time.Millisecond, patience
	release := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if c.signOn() == nil {
			<-release
		}
	})
	t.Cleanup(func() { close(release) }) // before the peer's own
	cfg := testConfig(p.address())
	cfg.SignOnTimeout = configs.Duration(time.Second)
	cfg.WriteTimeout = configs.Duration(time.Hour) // so that nothing but the calls' own deadlines ends the write
	l, stop := runLink(t, cfg, Options{Dial: smallBuffers})
	defer stop()
	waitState(t, l, SignedOn)

	bodies := make([][]byte, calls) // encoded beforehand, so that only the link is timed
	for i, m := range requests(calls) {
		must(m.Set(iso8583.AdditionalData, fmt.Sprintf("%0900d", 0)))
		bodies[i] = encoded(m)
	}
	var notSent, unknown, answered atomic.Int32
	var latest atomic.Int64 // nanoseconds after the call's own deadline
	var wg sync.WaitGroup
	for _, body := range bodies {
		wg.Go(func() {
			deadline := time.Now().Add(timeout)
			_, err := l.Exchange(context.Background(), Call{Body: body, Deadline: deadline})
			late := int64(time.Since(deadline))
			for seen := latest.Load(); late > seen && !latest.CompareAndSwap(seen, late); seen = latest.Load() {
			}
			switch {
			case err == nil:
				answered.Add(1)
			case NotSent(err):
				notSent.Add(1)
			default:
				unknown.Add(1)
			}
		})
	}
	wg.Wait()
	if late := time.Duration(latest.Load()); late > slack {
		t.Errorf("a caller returned %s after its deadline", late)
	}
	if notSent.Load() == 0 || unknown.Load() == 0 || answered.Load() != 0 {
		t.Errorf("%d calls not sent, %d unknown, %d answered: the peer reads nothing", notSent.Load(), unknown.Load(), answered.Load())
	}
	if down := l.Status().LastDown; down != DownWriteTimeout {
		t.Errorf("socket given up by %q", down)
	}
	began := time.Now()
	stop()
	if took := time.Since(began); took > cfg.SignOnTimeout.Std()+slack {
		t.Errorf("Run took %s to end", took)
	}
}

// TestC5_ShutdownIsBounded: the peer stops reading while the link shuts down, and never answers the sign-off.
func TestC5_ShutdownOfAFullSocketIsBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if c.signOn() == nil {
			<-release
		}
	})
	t.Cleanup(func() { close(release) }) // before the peer's own
	cfg := testConfig(p.address())
	cfg.SignOnTimeout = configs.Duration(300 * time.Millisecond)
	l, stop := runLink(t, cfg, Options{Dial: smallBuffers})
	defer stop()
	waitState(t, l, SignedOn)
	results := make(chan []outcome, 1)
	all := requests(1000)
	for _, m := range all {
		must(m.Set(iso8583.AdditionalData, fmt.Sprintf("%0900d", 0)))
	}
	go func() { results <- exchangeAll(l, patience, all...) }()
	eventually(t, "calls are pending", func() bool { return l.Status().Pending > 100 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Run took %s to end", took)
	}
	for _, o := range <-results {
		if o.err == nil {
			t.Error("a call was answered by a peer that reads nothing")
		}
	}
}

func TestC8_EndUnderInboundTrafficLeaksNothing(t *testing.T) {
	t.Parallel()
	const rounds = 100
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		go drain(c)
		for c.write(request(0x0420, 1, "T1")) == nil {
		}
	})
	before := runtime.NumGoroutine()
	for range rounds {
		cfg := testConfig(p.address())
		cfg.SignOnTimeout = configs.Duration(200 * time.Millisecond)
		l, stop := runLink(t, cfg, Options{})
		eventually(t, "traffic flows", func() bool { return l.Status().Unmatched > 0 })
		l.mu.Lock()
		s := l.lines[0].socket
		l.mu.Unlock()
		if s != nil {
			s.giveUp(DownReadFailed, errors.New("closed under traffic"))
		}
		stop()
	}
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() < before+rounds/2 })
}

func TestC9_KeepAlivesAreSwallowedAndCounted(t *testing.T) {
	t.Parallel()
	const keepAlives = 500
	received := make(chan int64, 1)
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for range keepAlives {
			if _, err := c.Write([]byte{0, 0}); err != nil {
				return
			}
		}
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			received <- int64(c.r.Buffered()) // nothing was written but this request
			return approve(m)
		})
	})
	var handedOn journal
	l := startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	eventually(t, "keep-alives are counted", func() bool { return l.Status().KeepAlives == keepAlives })
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Fatal(err)
	}
	if n := <-received; n != 0 {
		t.Errorf("%d bytes beside the request", n)
	}
	status := l.Status()
	if status.FramesSent != 2 || len(handedOn.all()) != 0 {
		t.Errorf("%d frames sent, %d messages handed on", status.FramesSent, len(handedOn.all()))
	}
}

func TestC10_SenselessLengthEndsTheSocketAndNotTheLink(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]string{"negative": "-001", "signed": "+012", "letters": "00G0", "huge": "9999"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("127.0.0.1:1")
			cfg.Framing = ascii4Framing()
			framing, err := cfg.Framing.Build()
			if err != nil {
				t.Fatal(err)
			}
			var connections atomic.Int32
			p := startPeer(t, func(c *conn) {
				if connections.Add(1) == 1 {
					_, _ = io.WriteString(c, header+"0800")
					drain(c)
					return
				}
				for {
					body, err := framing.Read(c.r, nil)
					if err != nil {
						return
					}
					m, err := testSpec.Decode(body)
					must(err)
					frame, err := framing.Append(nil, encoded(response(m, "00")))
					must(err)
					if _, err := c.Write(frame); err != nil {
						return
					}
				}
			})
			cfg.Address = p.address()
			l := startSignedOn(t, cfg, Options{})
			if status := l.Status(); status.LastDown != DownBadFrame || status.LastDownCause == "" {
				t.Errorf("first socket given up by %q: %q", status.LastDown, status.LastDownCause)
			}
			if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestC11_DialEndsWithItsTimeoutAndWithItsContext(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	blackHole := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dials.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	cfg := testConfig("127.0.0.1:1")
	cfg.ConnectTimeout = configs.Duration(20 * time.Millisecond)
	l, stop := runLink(t, cfg, Options{Dial: blackHole})
	eventually(t, "dialled again after the connect timeout", func() bool { return dials.Load() >= 3 })
	if reason := l.Status().LastDown; reason != DownConnectTimeout {
		t.Errorf("down by %q", reason)
	}
	stop()

	cfg.ConnectTimeout = configs.Duration(time.Hour)
	l, stop = runLink(t, cfg, Options{Dial: blackHole})
	waitState(t, l, Connecting)
	stop()
	if reason := l.Status().LastDown; reason != DownShutdown && reason != "" {
		t.Errorf("down by %q", reason)
	}
}

func TestC11_ExchangeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	received := make(chan struct{}, 1)
	l := startWith(t, func(*iso8583.Message) []*iso8583.Message {
		received <- struct{}{}
		return nil
	}, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("caller went away")
	go func() {
		<-received
		cancel(cause)
	}()
	call := Call{Body: encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")), Deadline: time.Now().Add(patience)}
	_, err := l.Exchange(ctx, call)
	requireUnknown(t, err)
	if !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
	call.Body = encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1"))
	_, err = l.Exchange(ctx, call)
	requireNotSent(t, err, cause)
}

func TestC13_SentIsNoYesOrUnknown(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) {
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			if m.Get(iso8583.STAN) == "000001" {
				return approve(m)
			}
			return nil
		})
	})
	l, err := New("test", testConfig(p.address()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
	requireNotSent(t, err, ErrDown)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	waitState(t, l, SignedOn)
	_, err = l.Exchange(t.Context(), Call{
		Body:       encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")),
		SendBefore: time.Now().Add(-time.Nanosecond), Deadline: time.Now().Add(patience),
	})
	requireNotSent(t, err, ErrExpired)
	if _, err = exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Errorf("answered call: %v", err)
	}
	_, err = exchange(l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), 30*time.Millisecond)
	if requireUnknown(t, err); !errors.Is(err, ErrTimeout) {
		t.Errorf("error %v", err)
	}
	pending := make(chan error, 1)
	go func() {
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 3, "T1"), patience)
		pending <- err
	}()
	eventually(t, "the call is pending", func() bool { return l.Status().FramesSent >= 4 })
	cancel()
	requireLost(t, <-pending, DownShutdown)
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	_, err = exchange(l, request(iso8583.MTIAuthorizationRequest, 4, "T1"), patience)
	requireNotSent(t, err, ErrShuttingDown)
}

func TestC15_SocketThatDiesAtAnyMomentIsReplaced(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	p := startPeer(t, func(c *conn) {
		switch connections.Add(1) {
		case 1: // before the sign-on
		case 2: // instead of its answer
			_, _ = c.read()
		case 3: // right after it
			_ = c.signOn()
		case 4: // in the middle of a frame
			if m, err := c.read(); err == nil {
				frame := framed(response(m, "00"))
				_, _ = c.Write(frame[:len(frame)/2])
			}
		default:
			c.serve(approve)
		}
	})
	l := startLink(t, testConfig(p.address()), Options{})
	eventually(t, "an exchange succeeds", func() bool {
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
		return err == nil
	})
	if n := connections.Load(); n != 5 {
		t.Errorf("%d connections", n)
	}
}

func TestS20_CallsInFlightAreLostWithTheLinkAndNeverResent(t *testing.T) {
	t.Parallel()
	const inFlight = 20
	var mu sync.Mutex
	seen := map[string]int{}
	var connections atomic.Int32
	p := startPeer(t, func(c *conn) {
		first := connections.Add(1) == 1
		count := 0
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			mu.Lock()
			seen[m.Get(iso8583.STAN)]++
			mu.Unlock()
			if !first {
				return approve(m)
			}
			if count++; count == inFlight {
				c.Close()
			}
			return nil
		})
	})
	l := startSignedOn(t, testConfig(p.address()), Options{})
	for _, o := range exchangeAll(l, patience, requests(inFlight)...) {
		requireUnknown(t, o.err)
		if _, ok := errors.AsType[*LinkLostError](o.err); !ok {
			t.Errorf("error %v", o.err)
		}
	}
	waitState(t, l, SignedOn)
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 500, "T1"), patience); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for stan, times := range seen {
		if times != 1 {
			t.Errorf("STAN %s was sent %d times", stan, times)
		}
	}
	if len(seen) != inFlight+1 {
		t.Errorf("%d messages received", len(seen))
	}
}
