package link

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

func TestSignOnFailuresGrowTheReconnectDelay(t *testing.T) {
	t.Parallel()
	answers := map[DownReason]func(c *conn){
		DownSignOnTimeout: func(c *conn) { drain(c) },
		DownSignOnRefused: func(c *conn) {
			if m, err := c.read(); err == nil {
				_ = c.write(response(m, "91"))
			}
			drain(c)
		},
		DownPeerClosed: func(c *conn) { _, _ = c.read() },
	}
	for reason, serve := range answers {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := bubbleConfig()
				took := time.Duration(0)
				if reason == DownSignOnTimeout {
					took = cfg.SignOnTimeout.Std()
				}
				var mu sync.Mutex
				var dialled []time.Time
				pipe := pipeTo(serve)
				l, stop := runLink(t, cfg, Options{Dial: func(ctx context.Context, n, a string) (net.Conn, error) {
					mu.Lock()
					dialled = append(dialled, time.Now())
					mu.Unlock()
					return pipe(ctx, n, a)
				}})
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if got := l.Status().LastDown; got != reason {
					t.Errorf("down by %q, want %q", got, reason)
				}
				stop()
				requireGrowingGaps(t, cfg, dialled, took)
			})
		})
	}
}

// requireGrowingGaps checks the delays between dials, each of which was followed by a life of the given length.
func requireGrowingGaps(t *testing.T, cfg Config, dialled []time.Time, life time.Duration) {
	t.Helper()
	if len(dialled) < 12 {
		t.Fatalf("%d dials", len(dialled))
	}
	different := map[time.Duration]bool{}
	limit := cfg.ReconnectMin.Std()
	for i := 1; i < len(dialled); i++ {
		gap := dialled[i].Sub(dialled[i-1]) - life
		if gap < limit/2 || gap > limit {
			t.Errorf("gap %d is %s, want between %s and %s", i, gap, limit/2, limit)
		}
		different[gap] = true
		limit = min(2*limit, cfg.ReconnectMax.Std())
	}
	if len(different) < len(dialled)/2 {
		t.Errorf("only %d different gaps: no jitter", len(different))
	}
}

func TestConnectFailuresAreRetriedForEverWithGrowingDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := bubbleConfig()
		var dialled []time.Time
		l, stop := runLink(t, cfg, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			dialled = append(dialled, time.Now())
			return nil, errors.New("connection refused")
		}})
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if status := l.Status(); status.State != Down || status.LastDown != DownConnectFailed || status.Reconnects < 2800 {
			t.Errorf("link is %s by %q after %d reconnects", status.State, status.LastDown, status.Reconnects)
		}
		stop()
		requireGrowingGaps(t, cfg, dialled, 0)
	})
}

// TestExpiredWhileWaitingForTheWriteLock: the frame before ours is stuck in the write; we return in time, and provably unsent.
func TestExpiredWhileWaitingForTheWriteLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		dial := pipeTo(func(c *conn) {
			if c.signOn() == nil {
				<-release // reads nothing
			}
		})
		l, stop := runLink(t, bubbleConfig(), Options{Dial: dial})
		synctest.Wait()
		stuck := make(chan error, 1)
		go func() {
			_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), 2*time.Second)
			stuck <- err
		}()
		synctest.Wait()
		began := time.Now()
		_, err := l.Exchange(t.Context(), Call{
			Body:       encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1")),
			SendBefore: began.Add(300 * time.Millisecond), Deadline: began.Add(time.Minute),
		})
		requireNotSent(t, err, ErrExpired)
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("returned after %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = l.Exchange(ctx, Call{Body: encoded(request(iso8583.MTIAuthorizationRequest, 2, "T1")), Deadline: began.Add(time.Minute)})
		requireNotSent(t, err, context.DeadlineExceeded)
		requireLost(t, <-stuck, DownWriteTimeout)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the stuck call returned after %s, its deadline was 2s", took)
		}
		stop()
	})
}

func TestShutdownSignsOffWithinItsTimeout(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"answered": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var signOffs atomic.Int32
				dial := pipeTo(func(c *conn) {
					for {
						m, err := c.read()
						if err != nil {
							return
						}
						code := m.Get(iso8583.NetworkManagementCode)
						if code == "002" {
							signOffs.Add(1)
						}
						if (code == "001" || code == "002" && answers) && c.write(response(m, "00")) != nil {
							return
						}
					}
				})
				cfg := bubbleConfig()
				l, stop := runLink(t, cfg, Options{Dial: dial})
				synctest.Wait()
				pending := make(chan error, 1)
				go func() {
					_, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), time.Hour)
					pending <- err
				}()
				synctest.Wait()
				began := time.Now()
				stop()
				want := time.Duration(0)
				if !answers {
					want = cfg.SignOnTimeout.Std()
				}
				if took := time.Since(began); took != want || signOffs.Load() != 1 {
					t.Errorf("%d sign-offs, ended after %s, want %s", signOffs.Load(), took, want)
				}
				requireLost(t, <-pending, DownShutdown)
				if status := l.Status(); status.State != Down || status.LastDown != DownShutdown {
					t.Errorf("link is %s by %q", status.State, status.LastDown)
				}
			})
		})
	}
}
