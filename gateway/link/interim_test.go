package link

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestInterimAnswersExtendTheWaitUpToLatest: each "still working" gives the call another 30 seconds.
func TestInterimAnswersExtendTheWaitUpToLatest(t *testing.T) {
	t.Parallel()
	const deadline = 10 * time.Second
	tests := map[string]struct {
		interims []time.Duration // after the start of the call
		latest   time.Duration   // 0 for none
		returns  time.Duration
	}{
		"none":                     {nil, 100 * time.Second, deadline},
		"one":                      {[]time.Duration{5 * time.Second}, 100 * time.Second, deadline + 30*time.Second},
		"two at once":              {[]time.Duration{5 * time.Second, 5 * time.Second}, 100 * time.Second, deadline + 60*time.Second},
		"chain":                    {[]time.Duration{5 * time.Second, 35 * time.Second}, 100 * time.Second, deadline + 60*time.Second},
		"chain bounded by latest":  {[]time.Duration{9 * time.Second, 39 * time.Second, 69 * time.Second, 99 * time.Second}, 100 * time.Second, 100 * time.Second},
		"no latest":                {[]time.Duration{time.Second, 9 * time.Second}, 0, deadline},
		"latest at the deadline":   {[]time.Duration{time.Second}, deadline, deadline},
		"latest before deadline":   {[]time.Duration{time.Second}, time.Second, deadline},
		"latest a little after it": {[]time.Duration{time.Second}, deadline + time.Second, deadline + time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDialect(t, func(t *testing.T, h hostDialect) {
				synctest.Test(t, func(t *testing.T) {
					var handedOn journal
					p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, nil)
					began := time.Now()
					m := p.purchase(1, "T1")
					result := p.start(t, l, m, deadline, test.latest)
					for _, at := range test.interims {
						time.Sleep(time.Until(began.Add(at)))
						p.send(p.answer(m, h.working, 7, 11, 37, 41))
						synctest.Wait()
					}
					o := <-result
					if took := time.Since(began); !errors.Is(o.err, ErrTimeout) || took != test.returns {
						t.Errorf("%v after %s, want the timeout after %s", o.err, took, test.returns)
					}
					synctest.Wait()
					if u := handedOn.all(); len(u) != len(test.interims) {
						t.Errorf("%d messages handed on, %d interim answers were sent", len(u), len(test.interims))
					}
					for _, u := range handedOn.all() {
						if u.Kind != Interim {
							t.Errorf("handed on as %s", u.Kind)
						}
					}
					p.send(p.answer(m, h.working, 7, 11, 37, 41))
					synctest.Wait()
					if u := handedOn.all(); u[len(u)-1].Kind != Late {
						t.Errorf("after the end handed on as %s", u[len(u)-1].Kind)
					}
					stop()
				})
			})
		})
	}
}

func TestAnswerAfterInterimAnswersIsDelivered(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			p, l, stop := startBubble(t, h, Options{}, nil)
			m := p.purchase(1, "T1")
			result := p.start(t, l, m, 10*time.Second, time.Minute)
			p.send(p.answer(m, h.working, 7, 11, 37, 41))
			time.Sleep(35 * time.Second)
			requireWaiting(t, result)
			p.send(p.answer(m, h.approved, 7, 11, 37, 41))
			if code := p.codeOf(t, <-result); code != h.approved {
				t.Errorf("answered with %s", code)
			}
			stop()
		})
	})
}

// TestInterimAnswerForAnotherCallExtendsNothing: each call has its own deadline.
func TestInterimAnswerForAnotherCallExtendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, l, stop := startBubble(t, iso1987Host(), Options{}, nil)
		one, two := p.purchase(1, "T1"), p.purchase(2, "T2")
		first, second := p.start(t, l, one, 10*time.Second, time.Minute), p.start(t, l, two, 10*time.Second, time.Minute)
		p.send(p.answer(one, "09", 7, 11, 37, 41))
		time.Sleep(11 * time.Second)
		requireWaiting(t, first)
		if o := <-second; !errors.Is(o.err, ErrTimeout) {
			t.Errorf("error %v", o.err)
		}
		stop()
	})
}
