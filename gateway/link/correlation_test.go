package link

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// outcome is what one Exchange returned.
type outcome struct {
	body []byte
	err  error
}

// exchangeAll starts an exchange for each request and gives the outcomes in the same order.
func exchangeAll(l *Link, timeout time.Duration, requests ...*iso8583.Message) []outcome {
	outcomes := make([]outcome, len(requests))
	var wg sync.WaitGroup
	for i, m := range requests {
		wg.Go(func() { outcomes[i].body, outcomes[i].err = exchange(l, m, timeout) })
	}
	wg.Wait()
	return outcomes
}

// gather serves a connection that signs on, reads n requests and only then calls answer with them.
func gather(n int, answer func(c *conn, requests []*iso8583.Message)) func(*conn) {
	return func(c *conn) {
		if c.signOn() != nil {
			return
		}
		var requests []*iso8583.Message
		for range n {
			m, err := c.read()
			if err != nil {
				return
			}
			requests = append(requests, m)
		}
		answer(c, requests)
		c.serve(silence)
	}
}

func TestC1_SameSTANOnTwoTerminalsIsNeverCrossDelivered(t *testing.T) {
	t.Parallel()
	p := startPeer(t, gather(2, func(c *conn, requests []*iso8583.Message) {
		for _, m := range slices.Backward(requests) { // answered out of order
			r := response(m, "00")
			must(r.Set(iso8583.ApprovalCode, m.Get(iso8583.TerminalID)[:6]))
			_ = c.write(r)
		}
	}))
	l := startSignedOn(t, testConfig(p.address()), Options{})
	terminals := []string{"TERMA1", "TERMB2"}
	outcomes := exchangeAll(l, patience, request(iso8583.MTIAuthorizationRequest, 7, terminals[0]),
		request(iso8583.MTIAuthorizationRequest, 7, terminals[1]))
	for i, o := range outcomes {
		if o.err != nil {
			t.Fatal(o.err)
		}
		if got := decoded(t, o.body).Get(iso8583.ApprovalCode); got != terminals[i] {
			t.Errorf("terminal %s was given the answer of %s", terminals[i], got)
		}
	}
}

func TestC1_KeyInFlightIsRefusedAndNotSent(t *testing.T) {
	t.Parallel()
	received := make(chan string, 4)
	release := make(chan struct{})
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		received <- m.Get(iso8583.STAN)
		<-release
		return approve(m)
	}, Options{})
	first := make(chan error, 1)
	go func() {
		_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
		first <- err
	}()
	<-received
	for _, mti := range []iso8583.MTI{iso8583.MTIAuthorizationRequest, 0x0101} { // a repeat is the same message
		m := request(iso8583.MTIAuthorizationRequest, 1, "T1")
		if mti.IsRepeat() {
			if _, err := testSpec.Encode(request(mti, 1, "T1")); err != nil {
				continue // the profile does not list it
			}
			m = request(mti, 1, "T1")
		}
		_, err := exchange(l, m, patience)
		requireNotSent(t, err, ErrKeyInFlight)
	}
	close(release)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), patience); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != "000002" {
		t.Fatalf("the refused call was sent: next message is STAN %s", got)
	}
}

func TestC2_ReversalIsNotAnsweredByTheLateResponseOfItsOriginal(t *testing.T) {
	t.Parallel()
	lateThenReversal(t)
}

func TestS04_ReversalWithItsOriginalsSTANClosesOnlyOnIts0430(t *testing.T) {
	t.Parallel()
	lateThenReversal(t)
}

// lateThenReversal: 0100, timeout, 0420 with the same STAN, then the late 0110, then the 0430.
func lateThenReversal(t *testing.T) {
	var original *iso8583.Message
	var late journal
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		if m.MTI() == iso8583.MTIAuthorizationRequest {
			original = m
			return nil
		}
		return []*iso8583.Message{response(original, "00"), response(m, "25")}
	}, Options{OnUnmatched: late.note})
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 9, "T1"), 50*time.Millisecond)
	if !errors.Is(err, ErrTimeout) || NotSent(err) {
		t.Fatalf("error %v, want the timeout", err)
	}
	body, err := exchange(l, request(0x0420, 9, "T1"), patience)
	if err != nil {
		t.Fatal(err)
	}
	if m := decoded(t, body); m.MTI() != 0x0430 || m.Get(iso8583.ResponseCode) != "25" {
		t.Errorf("the reversal was closed by %s", m.Image())
	}
	if u := late.wait(t, 1)[0]; u.Kind != Late || u.MTI != 0x0110 {
		t.Errorf("late answer handed on as %s %s", u.Kind, u.MTI)
	}
}

// TestC3 uses a key without DE 7, so that only the confirming element tells the two requests with the same STAN apart.
func TestC3_AnswerOfAnEarlierRequestWithTheSameSTANIsNotDelivered(t *testing.T) {
	t.Parallel()
	var stale *iso8583.Message
	p := startPeer(t, func(c *conn) {
		c.serve(func(m *iso8583.Message) []*iso8583.Message {
			if stale == nil {
				stale = response(m, "00")
				return nil
			}
			return []*iso8583.Message{stale, response(m, "51")}
		})
	})
	cfg := testConfig(p.address())
	cfg.Correlation = []iso8583.Element{iso8583.STAN, iso8583.TerminalID}
	var handedOn journal
	l := startSignedOn(t, cfg, Options{OnUnmatched: handedOn.note})
	first, second := request(iso8583.MTIAuthorizationRequest, 3, "T1"), request(iso8583.MTIAuthorizationRequest, 3, "T1")
	must(second.Set(iso8583.RRN, "999999999999"))
	if _, err := exchange(l, first, 50*time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Fatalf("error %v, want the timeout", err)
	}
	body, err := exchange(l, second, patience)
	if err != nil {
		t.Fatal(err)
	}
	if got := decoded(t, body).Get(iso8583.ResponseCode); got != "51" {
		t.Errorf("the new request was given response code %s of the old one", got)
	}
	u := handedOn.wait(t, 1)[0]
	if u.Kind != ConfirmMismatch || !bytes.Equal(u.Body, encoded(stale)) {
		t.Errorf("the old answer was handed on as %s", u.Kind)
	}
}

// TestC3_AnswerBeforeTheWrite: the same key is used again, and the old answer is received between registration and write.
func TestC3_AnswerBeforeTheWriteIsLate(t *testing.T) {
	t.Parallel()
	peerConns := make(chan *conn, 1)
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		peerConns <- c
		m, err := c.read()
		if err != nil {
			return
		}
		_ = c.write(response(m, "51"))
		c.serve(silence)
	})
	var handedOn journal
	l := startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	c := <-peerConns
	release := holdWrites(l)
	m := request(iso8583.MTIAuthorizationRequest, 3, "T1")
	result := make(chan outcome, 1)
	go func() {
		body, err := exchange(l, m, patience)
		result <- outcome{body, err}
	}()
	eventually(t, "the call is registered", func() bool { return l.Status().Pending == 1 })
	_ = c.write(response(m, "00"))
	if u := handedOn.wait(t, 1)[0]; u.Kind != Late {
		t.Errorf("handed on as %s", u.Kind)
	}
	release()
	o := <-result
	if o.err != nil {
		t.Fatal(o.err)
	}
	if got := decoded(t, o.body).Get(iso8583.ResponseCode); got != "51" {
		t.Errorf("given response code %s from before the write", got)
	}
}

func TestC6_TripledAnswersLeakNothing(t *testing.T) {
	t.Parallel()
	const requests, lanes = 3000, 16
	var handedOn journal
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		r := response(m, "00")
		return []*iso8583.Message{r, r, r}
	}, Options{OnUnmatched: handedOn.note})
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for stan := 1 + lane; stan <= requests; stan += lanes {
				if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, stan, "T1"), patience); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, u := range handedOn.wait(t, 2*requests) {
		if u.Kind != Late || u.MTI != 0x0110 {
			t.Fatalf("duplicate handed on as %s %s", u.Kind, u.MTI)
		}
	}
	if pending := l.Status().Pending; pending != 0 {
		t.Errorf("%d calls still pending", pending)
	}
	// Other tests run beside this one, so the count is compared with a leak's size and not exactly; goleak looks again at the end.
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() < before+requests/4 })
}

func TestC7_ReceivedMessagesAreHandedOnInOrder(t *testing.T) {
	t.Parallel()
	const messages = 2000
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for stan := range messages {
			if c.write(request(0x0420, stan+1, "T1")) != nil {
				return
			}
		}
		c.serve(silence)
	})
	var handedOn journal
	startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	for i, u := range handedOn.wait(t, messages) {
		if got, want := decoded(t, u.Body).Get(iso8583.STAN), fmt.Sprintf("%06d", i+1); got != want || u.Kind != UnknownRequest {
			t.Fatalf("message %d handed on: STAN %s, kind %s", i+1, got, u.Kind)
		}
	}
}

// TestC7_RequestsLeaveInOrder: what is written later by one caller is received later.
func TestC7_ReversalNeverOvertakesItsOriginal(t *testing.T) {
	t.Parallel()
	var received []string
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		received = append(received, m.MTI().String()+m.Get(iso8583.STAN))
		if m.MTI() == 0x0420 {
			return approve(m)
		}
		return nil
	}, Options{})
	for stan := 1; stan <= 8; stan++ {
		if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, stan, "T1"), 200*time.Millisecond); !errors.Is(err, ErrTimeout) {
			t.Fatalf("error %v, want the timeout", err)
		}
		if _, err := exchange(l, request(0x0420, stan, "T1"), patience); err != nil {
			t.Fatal(err)
		}
	}
	for i, got := range received {
		want := fmt.Sprintf("%s%06d", []string{"0100", "0420"}[i%2], i/2+1)
		if got != want {
			t.Fatalf("message %d is %s, want %s", i, got, want)
		}
	}
}

func TestC12_LateAnswerIsHandedOnWholeSoThatItsOriginalCanBeFound(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var handedOn journal
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		<-release
		return approve(m)
	}, Options{OnUnmatched: handedOn.note})
	m := request(iso8583.MTIAuthorizationRequest, 12, "T1")
	if _, err := exchange(l, m, 50*time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Fatalf("error %v, want the timeout", err)
	}
	close(release)
	u := handedOn.wait(t, 1)[0]
	if u.Kind != Late || u.Link != "test" || u.MTI != 0x0110 || u.ReceivedAt.IsZero() || !bytes.Equal(u.Body, encoded(response(m, "00"))) {
		t.Errorf("late answer handed on as %s %s of link %q", u.Kind, u.MTI, u.Link)
	}
}

func TestS36_ResponseWithoutAKeyElementIsNamed(t *testing.T) {
	t.Parallel()
	var handedOn journal
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		r := testSpec.NewMessage(m.MTI().Response())
		for _, e := range []iso8583.Element{7, 11, 37} { // not 41
			must(r.Set(e, m.Get(e)))
		}
		must(r.Set(iso8583.ResponseCode, "00"))
		return []*iso8583.Message{r}
	}, Options{OnUnmatched: handedOn.note})
	_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 36, "T1"), 100*time.Millisecond)
	if !errors.Is(err, ErrTimeout) {
		t.Fatalf("error %v, want the timeout", err)
	}
	u := handedOn.wait(t, 1)[0]
	if u.Kind != MissingKeyElement || u.MTI != 0x0110 || !bytes.Contains([]byte(u.Diagnostic), []byte("41")) {
		t.Errorf("handed on as %s %s: %q", u.Kind, u.MTI, u.Diagnostic)
	}
	if got := decoded(t, u.Body).Get(iso8583.STAN); got != "000036" {
		t.Errorf("kept message has STAN %s", got)
	}
}

func TestS36_NetworkManagementAnswersNeedNoTerminal(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) {
		m, err := c.read()
		if err != nil {
			return
		}
		r := testSpec.NewMessage(iso8583.MTINetworkManagementResponse) // neither 7, 41 nor 70
		must(r.Set(iso8583.STAN, m.Get(iso8583.STAN)))
		must(r.Set(iso8583.ResponseCode, "00"))
		_ = c.write(r)
		c.serve(silence)
	})
	startSignedOn(t, testConfig(p.address()), Options{})
}

func TestInterimAnswerLeavesTheCallWaiting(t *testing.T) {
	t.Parallel()
	var handedOn journal
	l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
		return []*iso8583.Message{response(m, "09"), response(m, "09"), response(m, "00")}
	}, Options{OnUnmatched: handedOn.note})
	body, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience)
	if err != nil {
		t.Fatal(err)
	}
	if got := decoded(t, body).Get(iso8583.ResponseCode); got != "00" {
		t.Errorf("call ended by response code %s", got)
	}
	for _, u := range handedOn.wait(t, 2) {
		if u.Kind != Interim {
			t.Errorf("interim answer handed on as %s", u.Kind)
		}
	}
}

func TestMalformedMessageLeavesTheLinkUp(t *testing.T) {
	t.Parallel()
	var handedOn journal
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for _, body := range []string{
			"0", "010", "0100", "zzzz00000000", "011000000000", "0110\x00\x00\x00\x00\x00\x00\x00\x001", "9999\x00\x00\x00\x00\x00\x00\x00\x00",
			"0110\xff\xff\xff\xff\xff\xff\xff\xff0000",
		} {
			frame, err := testFraming.Append(nil, []byte(body))
			must(err)
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
		c.serve(approve)
	})
	l := startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	for _, u := range handedOn.wait(t, 8) {
		if u.Kind != Malformed || u.Diagnostic == "" || len(u.Body) == 0 {
			t.Errorf("handed on as %s: %q", u.Kind, u.Diagnostic)
		}
	}
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Errorf("the link did not survive: %v", err)
	}
	if n := l.Status().Reconnects; n != 0 {
		t.Errorf("%d reconnects", n)
	}
}

// TestSurplusBytesCostNoLineOnceAMessageWasRead: two surplus bytes look like a length that counts itself. A line that has
// delivered a readable message knows better.
func TestSurplusBytesCostNoLineOnceAMessageWasRead(t *testing.T) {
	t.Parallel()
	var handedOn journal
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		echo := request(iso8583.MTIAuthorizationRequest, 9, "T9")
		body, err := testSpec.Encode(response(echo, "00"))
		must(err)
		for range 3 {
			frame, err := testFraming.Append(nil, append(body[:len(body):len(body)], '\r', '\n'))
			must(err)
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
		c.serve(approve)
	})
	l := startSignedOn(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	for _, u := range handedOn.wait(t, 3) {
		if u.Kind != Malformed {
			t.Errorf("handed on as %s: %q", u.Kind, u.Diagnostic)
		}
	}
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Errorf("the link did not survive: %v", err)
	}
	if n := l.Status().Reconnects; n != 0 {
		t.Errorf("%d reconnects", n)
	}
}
