package link

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/schemegate/schemegate/iso8583"
)

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

// TestS69_StepOfTheWallClockChangesNoWait: the clock was set by an hour, either way, after the call's deadline was computed.
func TestS69_StepOfTheWallClockChangesNoWait(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"set back": time.Hour, "set forward": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
				if m.Get(iso8583.STAN) == "000001" {
					return approve(m)
				}
				return nil
			}, Options{})
			now := time.Now()
			_, err := l.Exchange(t.Context(), Call{
				Body:       encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")),
				SendBefore: now.Add(patience), Deadline: stepped(t, now.Add(patience), step),
			})
			if err != nil {
				t.Errorf("answered call: %v", err)
			}
			const wait = 200 * time.Millisecond
			now = time.Now()
			_, err = l.Exchange(t.Context(), Call{
				Body:       encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1")),
				SendBefore: now.Add(wait), Deadline: stepped(t, now.Add(wait), step),
			})
			took := time.Since(now)
			if err != ErrTimeout || took < wait || took > patience {
				t.Errorf("silent call: %v after %s, its deadline was %s", err, took, wait)
			}
		})
	}
}

// TestBothClocksMustAllowTheWrite: a suspended machine's monotonic clock stands still while its wall clock goes on.
func TestBothClocksMustAllowTheWrite(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		monotonic, wall time.Duration // from now to SendBefore
		want            error
	}{
		"both allow":                            {patience, patience, nil},
		"wall clock set back":                   {patience, patience + time.Hour, nil},
		"suspended for an hour":                 {patience, patience - time.Hour, ErrExpired},
		"suspended until just past it":          {time.Second, 0, ErrExpired},
		"monotonic over":                        {-time.Millisecond, -time.Millisecond, ErrExpired},
		"monotonic over, wall clock set back":   {-time.Millisecond, time.Hour, ErrExpired},
		"monotonic over, wall clock set onward": {-time.Millisecond, -time.Hour, ErrExpired},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var received atomic.Int32
			l := startWith(t, func(m *iso8583.Message) []*iso8583.Message {
				received.Add(1)
				return approve(m)
			}, Options{})
			// The step is whole seconds; its rest would be lost.
			sendBefore := stepped(t, time.Now().Add(test.monotonic), (test.wall - test.monotonic).Truncate(time.Second))
			_, err := l.Exchange(t.Context(), Call{
				Body:       encoded(request(iso8583.MTIAuthorizationRequest, 1, "T1")),
				SendBefore: sendBefore, Deadline: time.Now().Add(patience),
			})
			if test.want == nil {
				if err != nil || received.Load() != 1 {
					t.Fatalf("error %v, %d requests received", err, received.Load())
				}
				return
			}
			requireNotSent(t, err, test.want)
			// What follows on the same socket has been received: the refused one would have come before it.
			if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 2, "T1"), patience); err != nil {
				t.Fatal(err)
			}
			if n := received.Load(); n != 1 {
				t.Errorf("%d requests received, want the second alone", n)
			}
		})
	}
}
