package link

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

func TestBudgetAllowsItsBurstAndItsRate(t *testing.T) {
	t.Parallel()
	at := time.Now()
	b := newBudget(10, time.Second, time.Second)
	b.spend(10, at)
	if owed := b.owed(at); owed > 0 {
		t.Errorf("the burst owes %s", owed)
	}
	b.spend(5, at)
	if owed := b.owed(at); owed != 500*time.Millisecond {
		t.Errorf("five more owe %s", owed)
	}
	if owed := b.owed(at.Add(500 * time.Millisecond)); owed > 0 {
		t.Errorf("half a second later %s is owed", owed)
	}
	b.spend(10, at.Add(time.Hour))
	if owed := b.owed(at.Add(time.Hour)); owed > 0 {
		t.Errorf("after an idle hour a burst owes %s", owed)
	}
	b.spend(1, at.Add(time.Hour))
	if owed := b.owed(at.Add(time.Hour)); owed != 100*time.Millisecond {
		t.Errorf("an idle hour is worth more than a burst: %s owed", owed)
	}
	var unlimited budget
	if unlimited.spend(1e9, at); unlimited.owed(at) != 0 {
		t.Error("no budget owes")
	}
}

// TestFloodIsSlowedDownByNotReading: a peer that sends as fast as it can is read at the budget's rate, and the line stays.
func TestFloodIsSlowedDownByNotReading(t *testing.T) {
	t.Parallel()
	const frames = 1000
	frame := framed(request(0x0420, 1, "T1"))
	for name, limit := range map[string]func(*BudgetsConfig){
		"frames": func(b *BudgetsConfig) { b.InboundFrames = 100 },
		"bytes":  func(b *BudgetsConfig) { b.InboundBytes = 100 * len(frame) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var took time.Duration
				dial := pipeTo(func(c *conn) {
					if c.signOn() != nil {
						return
					}
					go c.serve(approve)
					began := time.Now()
					for range frames {
						if _, err := c.Write(frame); err != nil {
							return
						}
					}
					took = time.Since(began)
					<-t.Context().Done()
				})
				cfg := bubbleConfig()
				limit(&cfg.Budgets)
				var handedOn journal
				l, stop := runLink(t, cfg, Options{Dial: dial, OnUnmatched: handedOn.note})
				time.Sleep(time.Minute)
				synctest.Wait()
				// A burst of one second is free; the reader's buffer takes in some more at once.
				if took < 6*time.Second || took > 10*time.Second {
					t.Errorf("%d frames took %s at 100 a second", frames, took)
				}
				if status := l.Status(); len(handedOn.all()) != frames || status.Throttled == 0 || status.LastDown != "" {
					t.Errorf("%d frames handed on, %d pauses, down by %q", len(handedOn.all()), status.Throttled, status.LastDown)
				}
				stop()
			})
		})
	}
}

func TestFloodOfUselessFramesGivesTheLineUp(t *testing.T) {
	t.Parallel()
	unreadable, err := testFraming.Append(nil, []byte("not a message"))
	must(err)
	for name, frame := range map[string][]byte{"keep-alives": {0, 0}, "unreadable": unreadable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const limit = 50
				var sent int
				flood := make(chan struct{})
				dial := pipeTo(func(c *conn) {
					if c.signOn() != nil {
						return
					}
					go c.serve(approve)
					for range limit { // as many as allowed, once
						_, _ = c.Write(frame)
					}
					<-flood
					for {
						if _, err := c.Write(frame); err != nil {
							return
						}
						sent++
					}
				})
				cfg := bubbleConfig()
				cfg.Budgets.UselessFrames = limit
				l, stop := runLink(t, cfg, Options{Dial: dial})
				time.Sleep(uselessPeriod)
				if status := l.Status(); status.LastDown != "" || status.KeepAlives+status.Unmatched != limit {
					t.Errorf("down by %q after %d keep-alives and %d unreadable frames", status.LastDown, status.KeepAlives, status.Unmatched)
				}
				close(flood)
				synctest.Wait()
				if status := l.Status(); status.LastDown != DownFlood {
					t.Errorf("down by %q", status.LastDown)
				}
				if sent < limit || sent > limit+1 {
					t.Errorf("given up after %d frames, the limit is %d", sent, limit)
				}
				stop()
			})
		})
	}
}

// TestMaxRateSpacesTheWritesAndRefusesWhatCannotLeaveInTime: what is refused is refused at once.
func TestMaxRateSpacesTheWritesAndRefusesWhatCannotLeaveInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, calls = 10, 30
		var mu sync.Mutex
		var received []time.Time
		dial := pipeTo(func(c *conn) {
			c.serve(func(m *iso8583.Message) []*iso8583.Message {
				mu.Lock()
				defer mu.Unlock()
				received = append(received, time.Now())
				return approve(m)
			})
		})
		cfg := bubbleConfig()
		cfg.Budgets.MaxRate = rate
		l, stop := runLink(t, cfg, Options{Dial: dial})
		time.Sleep(time.Second) // so that the sign-on no longer counts
		began := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, calls)
		for i := range calls {
			wg.Go(func() {
				_, errs[i] = l.Exchange(t.Context(), Call{
					Body:       encoded(request(iso8583.MTIAuthorizationRequest, i+1, "T1")),
					SendBefore: began.Add(time.Second), Deadline: began.Add(time.Minute),
				})
				if errs[i] != nil && !time.Now().Equal(began) {
					t.Errorf("refused after %s", time.Since(began))
				}
			})
		}
		wg.Wait()
		answered := 0
		for _, err := range errs {
			if err == nil {
				answered++
			} else if err != ErrRateLimited || !NotSent(err) {
				t.Errorf("error %v", err)
			}
		}
		// One second's worth, the one at its beginning, and the tolerance's one.
		if answered != rate+1 || len(received) != answered {
			t.Errorf("%d calls answered, %d received", answered, len(received))
		}
		for i, at := range received {
			if want := began.Add(time.Duration(max(0, i-1)) * time.Second / rate); !at.Equal(want) {
				t.Errorf("message %d was written after %s, want %s", i, at.Sub(began), want.Sub(began))
			}
		}
		stop()
	})
}

// TestMaxRateIsEachLines: a second line carries what the first may not.
func TestMaxRateIsEachLines(t *testing.T) {
	t.Parallel()
	hosts := startHosts(t, 2, true)
	cfg := linesConfig(hosts)
	cfg.Budgets.MaxRate = 1
	l, _ := startLines(t, cfg)
	eventually(t, "calls are refused by both lines' rates", func() bool {
		now := time.Now()
		var codes []error
		for i := range 4 {
			_, err := l.Exchange(t.Context(), Call{
				Body:       encoded(request(iso8583.MTIAuthorizationRequest, i+1, "T1")),
				SendBefore: now.Add(50 * time.Millisecond), Deadline: now.Add(patience),
			})
			codes = append(codes, err)
		}
		return slices.Contains(codes, ErrRateLimited)
	})
	eventually(t, "both lines carried calls", func() bool {
		now := time.Now()
		_, _ = l.Exchange(t.Context(), Call{
			Body:       encoded(request(iso8583.MTIAuthorizationRequest, 9, "T1")),
			SendBefore: now.Add(50 * time.Millisecond), Deadline: now.Add(patience),
		})
		return hosts[0].count() > 0 && hosts[1].count() > 0
	})
}

// TestNetworkManagementDoesNotWaitForTheRate: finding a dead peer must not take as long as the queue is.
func TestNetworkManagementDoesNotWaitForTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial := pipeTo(func(c *conn) { c.serve(approve) })
		cfg := bubbleConfig()
		cfg.Budgets.MaxRate = 1
		l, stop := runLink(t, cfg, Options{Dial: dial})
		time.Sleep(10 * time.Second)
		var wg sync.WaitGroup
		for _, m := range requests(20) {
			wg.Go(func() {
				if _, err := exchange(l, m, time.Minute); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if _, err := exchange(l, networkRequest(iso8583.MTINetworkManagementRequest, 900, "301"), time.Minute); err != nil {
			t.Errorf("echo: %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("an echo waited %s behind calls that leave one a second", took)
		}
		wg.Wait()
		stop()
	})
}

// TestCallThatWaitsForTheRateHoldsNobodyUp: the callers before it have given up, so its place in the rate is far away, and the line is idle.
func TestCallThatWaitsForTheRateHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := bubbleConfig()
		cfg.Budgets.MaxRate = 1
		l, stop := runLink(t, cfg, Options{Dial: pipeTo(func(c *conn) { c.serve(approve) })})
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := time.Now()
		for _, m := range requests(60) {
			wg.Go(func() {
				_, _ = l.Exchange(ctx, Call{Body: encoded(m), Deadline: began.Add(3 * time.Minute)})
			})
		}
		synctest.Wait()
		wg.Go(func() {
			if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 99, "T9"), 3*time.Minute); err != nil {
				t.Errorf("the call that waits for its place in the rate: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		began = time.Now()
		if _, err := exchange(l, networkRequest(iso8583.MTINetworkManagementRequest, 900, "301"), time.Minute); err != nil {
			t.Errorf("echo: %v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("an echo waited %s for a call that is not due", took)
		}
		wg.Wait()
		if down := l.Status().LastDown; down != "" {
			t.Errorf("a line with a good peer went down by %s", down)
		}
		stop()
	})
}
