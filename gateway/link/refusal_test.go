package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// holdWrites takes the write lock of the first line's socket, as if another frame were being written, until the result is called.
func holdWrites(l *Link) (release func()) {
	l.mu.Lock()
	s := l.lines[0].socket
	l.mu.Unlock()
	held := new(turn)
	s.writes.enter(held, true)
	must(s.awaitTurn(context.Background(), held, time.Now().Add(patience)))
	return func() { s.writes.leave(held) }
}

// TestStateIsCheckedAgainBeforeTheWrite: what happens between registration and write makes the call not sent, never unknown.
func TestStateIsCheckedAgainBeforeTheWrite(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		happens func(l *Link, c *conn, end func())
		want    error
	}{
		"peer signs us off": {func(_ *Link, c *conn, _ func()) { must(c.write(networkRequest(0x0800, 1, "002"))) }, ErrNotSignedOn},
		"shutdown":          {func(_ *Link, _ *conn, end func()) { end() }, ErrShuttingDown},
		"peer closes":       {func(_ *Link, c *conn, _ func()) { c.Close() }, ErrDown},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conns := make(chan *conn, 8)
			var financial atomic.Int32
			p := startPeer(t, func(c *conn) {
				conns <- c
				c.serve(func(*iso8583.Message) []*iso8583.Message {
					financial.Add(1)
					return nil
				})
			})
			cfg := testConfig(p.address())
			l, err := New("test", cfg, Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			waitState(t, l, SignedOn)
			release := holdWrites(l)
			result := make(chan error, 1)
			go func() {
				_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
				result <- err
			}()
			eventually(t, "the call is registered", func() bool { return l.Status().Pending == 1 })
			test.happens(l, <-conns, cancel)
			eventually(t, "the link is not signed on", func() bool { return l.State() != SignedOn })
			if test.want == ErrShuttingDown {
				eventually(t, "the call is abandoned", func() bool { return !l.hasFinancialCalls() })
			}
			release()
			requireNotSent(t, <-result, test.want)
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			if n := financial.Load(); n != 0 {
				t.Errorf("%d requests were sent", n)
			}
		})
	}
}

func (l *Link) hasFinancialCalls() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.pending {
		if !c.network() {
			return true
		}
	}
	return false
}

func TestS67_MessageThatCannotBeSentFailsAlone(t *testing.T) {
	t.Parallel()
	received := make(chan struct{})
	release := make(chan struct{})
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		close(received)
		<-release
		return approve(m)
	}, Options{})
	first := make(chan error, 1)
	go func() {
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
		first <- err
	}()
	<-received
	const sent = 2 // sign-on and the first call
	eventually(t, "the first write is counted", func() bool { return l.Status().FramesSent == sent })
	lacking := request(iso8583.MTIAuthorizationRequest, 2, "T1")
	whole := encoded(lacking)
	withoutKey := testSpec.NewMessage(iso8583.MTIAuthorizationRequest)
	must(withoutKey.Set(iso8583.STAN, "000002"))
	bodies := map[string][]byte{
		"empty": nil, "cut": whole[:len(whole)-1], "trailing byte": append(whole[:len(whole):len(whole)], '0'),
		"no key": encoded(withoutKey), "a response": encoded(response(lacking, "00")), "too long": make([]byte, 1<<17),
	}
	for name, body := range bodies {
		_, err := l.Exchange(t.Context(), Call{Body: body, Deadline: time.Now().Add(patience)})
		if !NotSent(err) {
			t.Errorf("%s: error %v, want certainly not sent", name, err)
		}
	}
	if _, err := l.Exchange(t.Context(), Call{Body: whole}); !NotSent(err) {
		t.Errorf("no deadline: error %v, want certainly not sent", err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("the other call: %v", err)
	}
	if n := l.Status(); n.FramesSent != sent || n.State != SignedOn {
		t.Errorf("%d frames sent, link %s", n.FramesSent-sent, n.State)
	}
}

func TestTooManyPendingCallsAreRefusedButEchoesAreNot(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) { c.serve(silence) })
	cfg := testConfig(p.address())
	cfg.MaxPending = 3
	cfg.EchoInterval = configs.Duration(20 * time.Millisecond)
	l, stop := runLink(t, cfg, Options{})
	waitState(t, l, SignedOn)
	done := make(chan []outcome, 1)
	go func() { done <- exchangeAll(l, 2*patience, requests(3)...) }()
	eventually(t, "the link is full", func() bool { return l.Status().FramesSent >= 4 && l.Status().Pending >= 3 })
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 4, "T1"), patience)
	requireNotSent(t, err, ErrTooManyPending)
	sent := l.Status().FramesSent
	eventually(t, "a full link sends echoes", func() bool { return l.Status().FramesSent >= sent+2 })
	if status := l.Status(); status.EchoRoundTrip == 0 || status.Pending < 3 {
		t.Errorf("echo round trip %s, %d calls pending", status.EchoRoundTrip, status.Pending)
	}
	stop()
	for _, o := range <-done {
		requireLost(t, o.err, DownShutdown)
	}
}

// TestNoCardDataInLogsAndErrors sends a card number through everything that can fail.
func TestNoCardDataInLogsAndErrors(t *testing.T) {
	t.Parallel()
	const pan, pin = "4111111111111111", "1234567890ABCDEF"
	core, logs := observer.New(zap.DebugLevel)
	var handedOn journal
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for _, body := range []string{pan + pin, "0100" + pan + pan, "0110\xff\xff\xff\xff\xff\xff\xff\xff16" + pan, "08001234567816" + pan} {
			frame, err := testFraming.Append(nil, []byte(body))
			must(err)
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
		m, err := c.read()
		if err != nil {
			return
		}
		r := testSpec.NewMessage(m.MTI().Response()) // lacks its key
		must(r.Set(iso8583.PAN, pan))
		_ = c.write(r, request(0x0420, 1, "T1"))
		_, _ = c.Write([]byte{0xff, 0xff, 4, 1, 1, 1})
	})
	l := startSignedOn(t, testConfig(p.address()), Options{Log: zap.New(core), OnUnmatched: handedOn.note})
	body := encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1"))
	var texts []string
	for _, cut := range []int{5, len(body) / 2, len(body) - 1, len(body)} {
		_, err := l.Exchange(t.Context(), Call{Body: body[:cut], Deadline: time.Now().Add(patience)})
		if err == nil {
			t.Fatal("answered")
		}
		texts = append(texts, err.Error())
	}
	for _, u := range handedOn.wait(t, 6) {
		texts = append(texts, u.Diagnostic)
	}
	texts = append(texts, l.Status().LastDownCause)
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	for _, entry := range logs.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, line.String())
	}
	if len(texts) < 15 {
		t.Errorf("only %d texts to look at", len(texts))
	}
	for _, text := range texts {
		if strings.Contains(text, pan[:8]) || strings.Contains(text, pan[6:14]) || strings.Contains(text, pin[:8]) {
			t.Errorf("card data in %q", text)
		}
	}
}

// TestErrorOfAnotherCallAsCauseProvesNothing: an errgroup ends its context with the error of the call that failed first, and that one was
// not sent.
func TestErrorOfAnotherCallAsCauseProvesNothing(t *testing.T) {
	t.Parallel()
	received := make(chan struct{}, 1)
	l := startWith(t, func(*iso8583.Message) []*iso8583.Message {
		received <- struct{}{}
		return nil
	}, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-received
		cancel(fmt.Errorf("another call: %w", ErrKeyInFlight))
	}()
	_, err := l.Exchange(ctx, Call{Body: encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")), Deadline: time.Now().Add(patience)})
	requireUnknown(t, err)
	if !errors.Is(err, ErrKeyInFlight) {
		t.Errorf("error %v does not name its cause", err)
	}
	if wrapped := fmt.Errorf("authorize: %w", err); NotSent(wrapped) {
		t.Errorf("%v is taken for not sent", wrapped)
	}
	over, end := context.WithCancelCause(t.Context())
	end(err) // the other way round: what is not sent because of a call that was
	_, err = l.Exchange(over, Call{Body: encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1")), Deadline: time.Now().Add(patience)})
	requireNotSent(t, err, ErrKeyInFlight)
}
