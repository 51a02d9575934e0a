package link

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// background starts a call that ends by itself and gives its error.
func background(do func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- do() }()
	synctest.Wait()
	return result
}

func requireState(t *testing.T, l *Link, want State, by SignOffReason) {
	t.Helper()
	if status := l.Status(); status.State != want || status.SignedOffBy != by {
		t.Fatalf("link is %s, signed off by %q; want %s and %q", status.State, status.SignedOffBy, want, by)
	}
}

func TestPlannedSignOffLetsCallsInFlightFindTheirAnswers(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			p, l, stop := startBubble(t, h, Options{}, nil)
			inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
			signedOff := background(func() error { return l.SignOff(t.Context()) })
			requireState(t, l, SignedOff, SignedOffByPlan)
			refused := <-p.start(t, l, p.purchase(2, "T1"), time.Minute, 0)
			requireNotSent(t, refused.err, ErrSignedOff)
			if l.HasRoom() {
				t.Error("a link that is signed off has room")
			}
			time.Sleep(20 * time.Second)
			if p.count(h.networkRequest, h.signOff) != 0 || len(signedOff) != 0 {
				t.Error("signed off before the call in flight was answered")
			}
			p.send(p.answer(p.last(t, h.authorization), h.approved))
			if code := p.codeOf(t, <-inFlight); code != h.approved {
				t.Errorf("the call in flight was answered with %s", code)
			}
			if err := <-signedOff; err != nil {
				t.Error(err)
			}
			if p.count(h.networkRequest, h.signOff) != 1 || p.count(h.authorization, "") != 1 {
				t.Errorf("the host received %d sign-offs and %d requests", p.count(h.networkRequest, h.signOff), p.count(h.authorization, ""))
			}
			stop()
			if n := p.count(h.networkRequest, h.signOff); n != 1 {
				t.Errorf("%d sign-offs after shutdown, want the planned one alone", n)
			}
		})
	})
}

func TestPlannedSignOffOutlastsReconnectsUntilSignOn(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			p, l, stop := startBubble(t, h, Options{}, func(c *Config) { c.Lines = 2 })
			if err := l.SignOff(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := p.count(h.networkRequest, h.signOff); n != 2 {
				t.Errorf("%d sign-offs on two lines", n)
			}
			p.hangUp()
			time.Sleep(time.Minute)
			requireState(t, l, SignedOff, SignedOffByPlan)
			if n := p.count(h.networkRequest, h.signOn); n != 2 || l.Status().Reconnects != 1 {
				t.Errorf("%d sign-ons after %d reconnects", n, l.Status().Reconnects)
			}
			if p.count(h.networkRequest, h.echo) == 0 {
				t.Error("no echoes while signed off")
			}
			p.send(p.ask(h.networkRequest, h.echo), p.ask(h.networkRequest, h.signOn), p.ask(h.networkRequest, h.signOff))
			time.Sleep(2 * l.cfg.SignOnAgainAfter.Std())
			if n := p.count(h.networkRequest.Response(), ""); n != 3 {
				t.Errorf("%d of the host's 3 requests answered while signed off", n)
			}
			requireState(t, l, SignedOff, SignedOffByPlan)
			if err := l.SignOff(t.Context()); err != nil || p.count(h.networkRequest, h.signOff) != 2 {
				t.Errorf("signing off again: %v, %d sign-offs", err, p.count(h.networkRequest, h.signOff))
			}
			if err := l.SignOn(t.Context()); err != nil {
				t.Fatal(err)
			}
			requireState(t, l, SignedOn, "")
			result := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
			if n := p.count(h.networkRequest, h.signOn); n != 4 || len(result) != 0 {
				t.Errorf("%d sign-ons on two lines that signed on twice", n)
			}
			p.send(p.answer(p.last(t, h.authorization), h.approved))
			p.codeOf(t, <-result)
			stop()
		})
	})
}

// TestPlannedSignOffEndsWithItsContext: a call is never answered; whoever signs off waits no longer than he said.
func TestPlannedSignOffIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		err := l.SignOff(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 calls") {
			t.Errorf("error %v, want the call that still waits", err)
		}
		if took := time.Since(began); took != 3*time.Second || p.count(0x0800, h.signOff) != 1 {
			t.Errorf("%d sign-offs after %s", p.count(0x0800, h.signOff), took)
		}
		p.send(p.answer(p.last(t, h.authorization), "00")) // may still be answered
		p.codeOf(t, <-inFlight)
		requireState(t, l, SignedOff, SignedOffByPlan)
		stop()
	})
}

func TestPlannedSignOffThatIsNotAnsweredIsReportedAndHolds(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*bubblePeer, string){
		"silence": func(p *bubblePeer, code string) { p.keepSilent(code) },
		"refusal": func(p *bubblePeer, code string) { p.refuseWith(code, "96") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := iso1987Host()
				p, l, stop := startBubble(t, h, Options{}, nil)
				spoil(p, h.signOff)
				if err := l.SignOff(t.Context()); err == nil || !strings.Contains(err.Error(), "sign off") {
					t.Errorf("error %v", err)
				}
				requireState(t, l, SignedOff, SignedOffByPlan)
				if n := l.Status().Reconnects; n != 0 {
					t.Errorf("%d reconnects", n)
				}
				spoil(p, h.signOn)
				if err := l.SignOn(t.Context()); err == nil {
					t.Error("signed on without a yes")
				}
				time.Sleep(time.Minute)
				if status := l.Status(); status.SignedOn || status.SignedOffBy != "" || status.Reconnects == 0 {
					t.Errorf("link is %s after %d reconnects", status.State, status.Reconnects)
				}
				stop()
			})
		})
	}
}

func TestPlannedSignOffWhileDownAndWhileSigningOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		p.hangUp()
		synctest.Wait()
		if err := l.SignOff(t.Context()); err != nil || l.Status().Connected {
			t.Fatalf("signing off a link that is %s: %v", l.State(), err)
		}
		time.Sleep(time.Second)
		requireState(t, l, SignedOff, SignedOffByPlan)

		p.keepSilent(h.signOn)
		signingOn := background(func() error { return l.SignOn(t.Context()) })
		requireState(t, l, SigningOn, "")
		signingOff := background(func() error { return l.SignOff(t.Context()) })
		requireState(t, l, SignedOff, SignedOffByPlan)
		p.send(p.answer(p.last(t, 0x0800), "00"))
		if err := errors.Join(<-signingOn, <-signingOff); err != nil {
			t.Error(err)
		}
		requireState(t, l, SignedOff, SignedOffByPlan)
		if all := p.all(); all[len(all)-1].Get(70) != h.signOff || all[len(all)-2].Get(70) != h.signOn {
			t.Error("the sign-off did not follow the sign-on that was under way")
		}
		stop()
	})
}

// TestSignOnOutlivesItsCaller: whoever asked for the sign-on went away, while an echo was under way; it goes on.
func TestSignOnOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		must(l.SignOff(t.Context()))
		p.keepSilent(h.echo)
		time.Sleep(31 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.SignOn(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		requireState(t, l, SigningOn, "")
		p.send(p.answer(p.last(t, 0x0800), "00"))
		synctest.Wait()
		requireState(t, l, SignedOn, "")
		if n := p.count(0x0800, h.signOn); n != 2 {
			t.Errorf("%d sign-ons", n)
		}
		stop()
	})
}

func TestShutdownBeforeThePlannedSignOffWasSentSignsOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
		signedOff := background(func() error { return l.SignOff(t.Context()) })
		stop()
		requireLost(t, (<-inFlight).err, DownShutdown)
		<-signedOff
		if n := p.count(0x0800, h.signOff); n != 1 {
			t.Errorf("%d sign-offs", n)
		}
	})
}

func TestPlannedSignOffWithoutRequiredSignOnSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, func(c *Config) { c.SignOn.Required = false })
		must(l.SignOff(t.Context()))
		requireState(t, l, SignedOff, SignedOffByPlan)
		must(l.SignOn(t.Context()))
		requireState(t, l, SignedOn, "")
		stop()
		if n := len(p.all()); n != 0 {
			t.Errorf("%d messages", n)
		}
	})
}

func TestPlannedSignOffAfterTheHostsOwnSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		p.send(p.ask(0x0800, h.signOff))
		synctest.Wait()
		must(l.SignOff(t.Context()))
		time.Sleep(2 * l.cfg.SignOnAgainAfter.Std())
		requireState(t, l, SignedOff, SignedOffByPlan)
		if off, on := p.count(0x0800, h.signOff), p.count(0x0800, h.signOn); off != 0 || on != 1 {
			t.Errorf("%d sign-offs and %d sign-ons", off, on)
		}
		stop()
	})
}

func TestS65_HostSignOffIsObeyedAtOnceAndItsSignOnToo(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			p, l, stop := startBubble(t, h, Options{}, nil)
			inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
			p.send(p.ask(h.networkRequest, h.signOff))
			synctest.Wait()
			requireState(t, l, SignedOff, SignedOffByPeer)
			refused := <-p.start(t, l, p.purchase(2, "T1"), time.Minute, 0)
			requireNotSent(t, refused.err, ErrNotSignedOn)
			p.send(p.answer(p.last(t, h.authorization), h.approved))
			p.codeOf(t, <-inFlight) // what is in flight may still be answered
			p.send(p.ask(h.networkRequest, h.signOn))
			synctest.Wait()
			requireState(t, l, SignedOn, "")
			if n := p.count(h.networkRequest, h.signOn); n != 2 {
				t.Errorf("%d sign-ons", n)
			}
			p.send(p.ask(h.networkRequest, h.signOff))
			time.Sleep(l.cfg.SignOnAgainAfter.Std() - time.Millisecond)
			requireState(t, l, SignedOff, SignedOffByPeer)
			time.Sleep(2 * time.Millisecond)
			requireState(t, l, SignedOn, "")
			if n := p.count(h.authorization, ""); n != 1 {
				t.Errorf("%d requests received, want the first alone", n)
			}
			stop()
		})
	})
}

func TestS85_CutoverMovesTheBusinessDateAndLeavesCallsInFlight(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			dates := make(chan string, 8)
			p, l, stop := startBubble(t, h, Options{OnCutover: func(date string) { dates <- date }}, nil)
			if date := l.BusinessDate(); date != "" {
				t.Errorf("business date %q before the first cutover", date)
			}
			inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
			notice := func(mti iso8583.MTI, date string) {
				m := p.ask(mti, h.cutover)
				if date != "" {
					must(m.Set(h.date, date))
				}
				p.send(m)
				time.Sleep(2 * networkAnswerGap)
				answer := p.last(t, mti.Response())
				if answer.Get(39) != h.approved || answer.Get(h.code) != h.cutover {
					t.Errorf("cutover answered by %s", answer.Image())
				}
			}
			notice(h.networkRequest, h.businessDate)
			notice(h.networkRequest|1, h.businessDate) // the same again
			notice(h.networkRequest, "")
			if date := l.BusinessDate(); date != h.businessDate {
				t.Errorf("business date %q", date)
			}
			notice(h.networkRequest, strings.Repeat("9", len(h.businessDate)))
			notice(h.networkRequest, h.otherBusinessDate)
			if date := l.BusinessDate(); date != h.otherBusinessDate {
				t.Errorf("business date %q", date)
			}
			if first, second := <-dates, <-dates; first != h.businessDate || second != h.otherBusinessDate || len(dates) != 0 {
				t.Errorf("told of %s, %s and %d more", first, second, len(dates))
			}
			if n := p.count(h.networkRequest.Response(), ""); n != 5 {
				t.Errorf("%d of 5 notices answered", n)
			}
			p.send(p.answer(p.last(t, h.authorization), h.approved))
			p.codeOf(t, <-inFlight)
			requireState(t, l, SignedOn, "")
			p.hangUp()
			time.Sleep(time.Second)
			if date := l.BusinessDate(); date != h.otherBusinessDate {
				t.Errorf("business date %q after a reconnect", date)
			}
			stop()
		})
	})
}

func TestSignOnEndsAPlannedSignOffThatStillWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		p, l, stop := startBubble(t, h, Options{}, nil)
		inFlight := p.start(t, l, p.purchase(1, "T1"), time.Minute, 0)
		signedOff := background(func() error { return l.SignOff(t.Context()) })
		must(l.SignOn(t.Context()))
		if err := <-signedOff; !errors.Is(err, errSignedOnMeanwhile) {
			t.Errorf("error %v", err)
		}
		requireState(t, l, SignedOn, "")
		p.send(p.answer(p.last(t, h.authorization), "00"))
		p.codeOf(t, <-inFlight)
		if n := p.count(0x0800, h.signOff); n != 0 {
			t.Errorf("%d sign-offs", n)
		}
		stop()
	})
}

// TestEchoAnsweredOnAnotherLineSavesNobody: a line is alive when it answers itself.
func TestEchoAnsweredOnAnotherLineSavesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		var handedOn journal
		p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) { c.Lines = 2 })
		p.keepSilent(h.echo)
		time.Sleep(30*time.Second + time.Millisecond)
		if n := p.count(0x0800, h.echo); n != 2 {
			t.Fatalf("%d echoes on two idle lines", n)
		}
		for _, m := range p.all() {
			if m.Get(70) == h.echo {
				p.send(p.answer(m, "00")) // both on the newest connection
			}
		}
		requireHandedOn(t, &handedOn, Late)
		time.Sleep(11 * time.Second)
		if status := l.Status(); status.LastDown != DownPeerSilent || status.Reconnects != 1 {
			t.Errorf("down by %q, %d reconnects", status.LastDown, status.Reconnects)
		}
		stop()
	})
}

// TestHostSignOffRightBehindItsApprovalCounts: answer, sign-off and sign-on come in one segment, before anybody has looked at the answer.
// An approval older than the sign-off signs nobody on; one that is younger does.
func TestHostSignOffRightBehindItsApprovalCounts(t *testing.T) {
	t.Parallel()
	const attempts = 50 // who looks first is the scheduler's choice
	signOff, signOn := networkRequest(0x0800, 901, "002"), networkRequest(0x0800, 902, "001")
	for name, test := range map[string]struct {
		segment func(approval *iso8583.Message) []*iso8583.Message
		signOns int32
	}{
		"approval first": {func(approval *iso8583.Message) []*iso8583.Message {
			return []*iso8583.Message{approval, signOff, signOn}
		}, 2},
		"approval last": {func(approval *iso8583.Message) []*iso8583.Message {
			return []*iso8583.Message{signOff, signOn, approval}
		}, 1},
	} {
		for range attempts {
			synctest.Test(t, func(t *testing.T) {
				var signOns atomic.Int32
				dial := pipeTo(func(c *conn) {
					for {
						m, err := c.read()
						if err != nil {
							return
						}
						if m.MTI().IsResponse() {
							continue
						}
						answers := approve(m)
						if m.Get(iso8583.NetworkManagementCode) == "001" && signOns.Add(1) == 1 {
							answers = test.segment(answers[0])
						}
						_ = c.write(answers...)
					}
				})
				l, stop := runLink(t, bubbleConfig(), Options{Dial: dial})
				synctest.Wait()
				requireState(t, l, SignedOn, "")
				if n := signOns.Load(); n != test.signOns {
					t.Errorf("%s: %d sign-ons, want %d", name, n, test.signOns)
				}
				stop()
			})
		}
	}
}
