package link

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// TestS73_AnyPiecesOfTheStreamGiveTheSameMessages: three answers, cut at every byte, sent byte by byte, and all glued together.
func TestS73_AnyPiecesOfTheStreamGiveTheSameMessages(t *testing.T) {
	t.Parallel()
	size := 0
	for _, m := range requests(3) {
		size += len(framed(response(m, "00")))
	}
	// cuts[i] are the places at which round i's stream is cut; a cut at 0 is no cut.
	cuts := [][]int{{0}, nil}
	for at := range size {
		cuts[1] = append(cuts[1], at)
		cuts = append(cuts, []int{at})
	}
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for _, cut := range cuts {
			var stream []byte
			for range 3 {
				m, err := c.read()
				if err != nil {
					return
				}
				stream = append(stream, framed(response(m, "00"))...)
			}
			last := 0
			for _, at := range append(cut, len(stream)) {
				if _, err := c.Write(stream[last:at]); err != nil { // TCP_NODELAY is on: each piece leaves by itself
					return
				}
				last = at
			}
		}
		c.serve(silence)
	})
	l := startSignedOn(t, testConfig(p.address()), Options{})
	for round := range cuts {
		all := requests(3)
		for i, o := range exchangeAll(l, patience, all...) {
			if o.err != nil {
				t.Fatalf("round %d: %v", round, o.err)
			}
			if got, want := decoded(t, o.body).Get(iso8583.STAN), all[i].Get(iso8583.STAN); got != want {
				t.Fatalf("round %d: STAN %s was answered to %s", round, got, want)
			}
		}
	}
	if status := l.Status(); status.Unmatched != 0 || status.Reconnects != 0 {
		t.Errorf("%d unmatched, %d reconnects", status.Unmatched, status.Reconnects)
	}
}

// TestS74_WrongLengthSettingIsDiagnosed: the peer counts the two length bytes and we do not, or the other way round.
func TestS74_WrongLengthSettingIsDiagnosed(t *testing.T) {
	t.Parallel()
	for name, surplus := range map[string]int{"peer counts the length": 2, "we count the length": -2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPeer(t, func(c *conn) {
				// What we send has a wrong length for the peer as well; all it needs is that something came.
				if _, err := c.Read(make([]byte, 512)); err != nil {
					return
				}
				body := encoded(response(networkRequest(0x0800, 1, "001"), "00"))
				length := len(body)
				if surplus > 0 {
					length += surplus
				}
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(length)), body...))
				drain(c)
			})
			cfg := testConfig(p.address())
			if surplus < 0 {
				cfg.Framing = inclusiveFraming()
			}
			cfg.SignOnTimeout = configs.Duration(200 * time.Millisecond)
			l := startLink(t, cfg, Options{})
			eventually(t, "the socket is given up", func() bool { return l.Status().LastDown != "" })
			if cause := l.Status().LastDownCause; !strings.Contains(cause, "includes") {
				t.Errorf("given up by %s: %q, which does not name the setting", l.Status().LastDown, cause)
			}
		})
	}
}

// stepped gives the same instant as seen after the wall clock was set by d: same monotonic reading, other wall reading.
func stepped(t *testing.T, instant time.Time, d time.Duration) time.Time {
	t.Helper()
	const secondsShift = 30 // time.Time.wall: a flag, 33 bits of seconds, 30 bits of nanoseconds
	wall := (*uint64)(unsafe.Pointer(&instant))
	before := instant
	*wall += uint64(int64(d/time.Second) << secondsShift)
	if instant.Sub(before) != 0 || instant.Round(0).Sub(before.Round(0)) != d {
		t.Fatal("the layout of time.Time is another one than this test knows")
	}
	return instant
}

// TestS69_StepOfTheWallClockChangesNoWait: the clock was set by an hour, either way, after the call's times were computed.
func TestS69_StepOfTheWallClockChangesNoWait(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
				if m.Get(iso8583.STAN) == "000001" {
					return approve(m)
				}
				return nil
			}, Options{})
			now := time.Now()
			call := Call{
				Body:       encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")),
				SendBefore: stepped(t, now.Add(patience), step), Deadline: stepped(t, now.Add(patience), step),
			}
			if _, err := l.Exchange(t.Context(), call); err != nil {
				t.Errorf("answered call: %v", err)
			}
			const wait = 200 * time.Millisecond
			now = time.Now()
			call.Body = encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1"))
			call.SendBefore, call.Deadline = stepped(t, now.Add(wait), step), stepped(t, now.Add(wait), step)
			_, err := l.Exchange(t.Context(), call)
			took := time.Since(now)
			if err != ErrTimeout || took < wait || took > patience {
				t.Errorf("silent call: %v after %s, its deadline was %s", err, took, wait)
			}
			call.SendBefore = stepped(t, time.Now().Add(-time.Millisecond), step)
			call.Deadline = stepped(t, time.Now().Add(patience), step)
			_, err = l.Exchange(t.Context(), call)
			requireNotSent(t, err, ErrExpired)
		})
	}
}
