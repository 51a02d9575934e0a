package link

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schemegate/schemegate/iso8583"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// reversal makes a 0420 (or 1420) that carries the STAN of its original, and an RRN of its own where rrn is not "".
func (p *bubblePeer) reversal(stan int, terminal, rrn string) *iso8583.Message {
	original := p.purchase(stan, terminal)
	m := p.spec.NewMessage(p.authorization&0xF000 | 0x0420)
	for _, e := range []iso8583.Element{2, 4, 7, 11, 37, 41} {
		must(m.Set(e, original.Get(e)))
	}
	if rrn != "" {
		must(m.Set(iso8583.RRN, rrn))
	}
	return m
}

// reply answers by approval code, which tells whose answer it is.
func (p *bubblePeer) reply(request *iso8583.Message, approvalCode string, elements ...iso8583.Element) *iso8583.Message {
	m := p.answer(request, p.approved, elements...)
	must(m.Set(iso8583.ApprovalCode, approvalCode))
	return m
}

// requireAnswered fails unless the exchange has ended with the answer of that approval code.
func (p *bubblePeer) requireAnswered(t *testing.T, result <-chan outcome, approvalCode string) {
	t.Helper()
	synctest.Wait()
	select {
	case o := <-result:
		if o.err != nil {
			t.Fatal(o.err)
		}
		m, err := p.spec.Decode(o.body)
		must(err)
		if got := m.Get(iso8583.ApprovalCode); got != approvalCode {
			t.Errorf("given the answer %q, want %q", got, approvalCode)
		}
	default:
		t.Errorf("not answered, want %q", approvalCode)
	}
}

func requireWaiting(t *testing.T, results ...<-chan outcome) {
	t.Helper()
	synctest.Wait()
	for i, result := range results {
		if len(result) != 0 {
			o := <-result
			t.Fatalf("call %d was completed: %v", i+1, o.err)
		}
	}
}

// requireHandedOn fails unless exactly these kinds were handed on, in this order.
func requireHandedOn(t *testing.T, j *journal, want ...UnmatchedKind) {
	t.Helper()
	synctest.Wait()
	var got []UnmatchedKind
	for _, u := range j.all() {
		got = append(got, u.Kind)
	}
	if !slices.Equal(got, want) {
		t.Errorf("handed on as %v, want %v", got, want)
	}
}

func TestS37_EachExchangeHasItsOwnKey(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			var handedOn journal
			reversalMTI := h.authorization&0xF000 | 0x0420
			p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
				c.Correlations = map[iso8583.MTI][]iso8583.Element{reversalMTI: {11, 37}, h.authorization: {37}}
			})
			purchase, reversal := p.purchase(1, "T1"), p.reversal(2, "T1", "")
			purchased, reversed := p.start(t, l, purchase, time.Minute, 0), p.start(t, l, reversal, time.Minute, 0)
			p.send(p.reply(reversal, "REVERS", 11, 37)) // without the default key's 7 and 41
			p.requireAnswered(t, reversed, "REVERS")
			requireWaiting(t, purchased)
			p.send(p.reply(purchase, "BOUGHT", 37))
			p.requireAnswered(t, purchased, "BOUGHT")
			requireHandedOn(t, &handedOn)
			stop()
		})
	})
}

func TestS37_RepeatHasTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, l, stop := startBubble(t, iso1987Host(), Options{}, func(c *Config) {
			c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0420: {37}}
		})
		repeat := p.spec.NewMessage(0x0421)
		must(repeat.Set(iso8583.RRN, "000000000007"))
		result := p.start(t, l, repeat, time.Minute, 0)
		p.send(p.reply(repeat, "REVERS"))
		p.requireAnswered(t, result, "REVERS")
		stop()
	})
}

func TestS37_FallbackFindsTheOneCallThatFits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		elements []iso8583.Element // in the response
		alter    map[iso8583.Element]string
		want     UnmatchedKind // "" is delivered
	}{
		"whole key":                           {elements: []iso8583.Element{7, 11, 37, 41}},
		"no terminal":                         {elements: []iso8583.Element{7, 11, 37}},
		"STAN and RRN alone":                  {elements: []iso8583.Element{11, 37}},
		"RRN alone":                           {elements: []iso8583.Element{37}},
		"RRN with the terminal":               {elements: []iso8583.Element{37, 41}},
		"neither list":                        {elements: []iso8583.Element{7, 11}, want: MissingKeyElement},
		"another RRN":                         {elements: []iso8583.Element{11, 37}, alter: map[iso8583.Element]string{37: "999999999999"}, want: Late},
		"another STAN with our RRN":           {elements: []iso8583.Element{11, 37}, alter: map[iso8583.Element]string{11: "999999"}, want: Late},
		"another terminal with our RRN":       {elements: []iso8583.Element{37, 41}, alter: map[iso8583.Element]string{41: "T9      "}, want: Late},
		"another time with our STAN and RRN":  {elements: []iso8583.Element{7, 11, 37}, alter: map[iso8583.Element]string{7: "1231235959"}, want: Late},
		"whole key, but of another's request": {elements: []iso8583.Element{7, 11, 37, 41}, alter: map[iso8583.Element]string{11: "999999"}, want: Late},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDialect(t, func(t *testing.T, h hostDialect) {
				synctest.Test(t, func(t *testing.T) {
					var handedOn journal
					p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
						c.CorrelationFallback = [][]iso8583.Element{{11, 37}, {37}}
					})
					mine, other := p.purchase(1, "T1"), p.purchase(2, "T2")
					first, second := p.start(t, l, mine, time.Minute, 0), p.start(t, l, other, time.Minute, 0)
					response := p.reply(mine, "MINE01", test.elements...)
					for e, value := range test.alter {
						must(response.Set(e, value))
					}
					p.send(response)
					requireWaiting(t, second)
					if test.want == "" {
						p.requireAnswered(t, first, "MINE01")
						requireHandedOn(t, &handedOn)
					} else {
						requireWaiting(t, first)
						requireHandedOn(t, &handedOn, test.want)
					}
					stop()
					if n := len(l.fallbacks); n > 0 {
						t.Errorf("%d keys are left over", n)
					}
				})
			})
		})
	}
}

// TestS37_AmbiguousIsNeverFirstMatch: two calls that differ in what the host leaves out.
func TestS37_AmbiguousIsNeverFirstMatch(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			var handedOn journal
			p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
				c.CorrelationFallback = [][]iso8583.Element{{37}}
			})
			one, two := p.purchase(1, "T1"), p.purchase(2, "T2")
			must(two.Set(37, one.Get(37)))
			first, second := p.start(t, l, one, 10*time.Second, 0), p.start(t, l, two, 10*time.Second, 0)
			p.send(p.reply(one, "AAAAAA", 37))
			requireWaiting(t, first, second)
			requireHandedOn(t, &handedOn, Ambiguous)
			if u := handedOn.all()[0]; u.Diagnostic == "" || u.MTI != h.authorization.Response() {
				t.Errorf("handed on as %s %s: %q", u.Kind, u.MTI, u.Diagnostic)
			}
			p.send(p.reply(two, "BBBBBB", 11, 37)) // what it has of its key tells
			p.requireAnswered(t, second, "BBBBBB")
			p.send(p.reply(one, "AAAAAA", 37)) // now there is one
			p.requireAnswered(t, first, "AAAAAA")
			p.send(p.reply(one, "AAAAAA", 37))
			requireHandedOn(t, &handedOn, Ambiguous, Late)
			stop()
		})
	})
}

// TestC2_FallbackStaysWithinItsExchange: a late 0110 has everything of the waiting 0420 but the type.
func TestC2_FallbackStaysWithinItsExchange(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			var handedOn journal
			p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
				c.CorrelationFallback = [][]iso8583.Element{{11, 37}, {37}}
				c.Correlations = map[iso8583.MTI][]iso8583.Element{h.authorization: {11, 41}, h.authorization&0xF000 | 0x0420: {11, 41}}
			})
			purchase, reversal := p.purchase(1, "T1"), p.reversal(1, "T1", "")
			purchased := p.start(t, l, purchase, time.Second, 0)
			time.Sleep(2 * time.Second)
			if o := <-purchased; !errors.Is(o.err, ErrTimeout) {
				t.Fatalf("error %v, want the timeout", o.err)
			}
			reversed := p.start(t, l, reversal, time.Minute, 0)
			p.send(p.reply(purchase, "LATE01"), p.reply(purchase, "LATE01", 11, 37), p.reply(purchase, "LATE01", 37))
			requireWaiting(t, reversed)
			requireHandedOn(t, &handedOn, Late, Late, Late)
			p.send(p.reply(reversal, "REVERS", 37))
			p.requireAnswered(t, reversed, "REVERS")
			stop()
		})
	})
}

func TestC1_C3_KeysPerMTIKeepCallsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := iso1987Host()
		var handedOn journal
		p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
			c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0100: {11, 41}}
			c.Confirms = map[iso8583.MTI][]iso8583.Element{0x0100: {37, 7}}
			c.CorrelationFallback = [][]iso8583.Element{{11}}
		})
		one, two := p.purchase(7, "T1"), p.purchase(7, "T2")
		first, second := p.start(t, l, one, time.Minute, 0), p.start(t, l, two, time.Minute, 0)
		again := <-p.start(t, l, p.purchase(7, "T1"), time.Minute, 0)
		requireNotSent(t, again.err, ErrKeyInFlight)
		p.send(p.reply(two, "BBBBBB", 11, 37, 41), p.reply(one, "AAAAAA", 11, 37, 41)) // C1: the same STAN
		p.requireAnswered(t, first, "AAAAAA")
		p.requireAnswered(t, second, "BBBBBB")

		silent := p.start(t, l, one, time.Second, 0)
		time.Sleep(2 * time.Second)
		<-silent
		fresh := p.purchase(7, "T1") // C3: the same key again after the timeout
		must(fresh.Set(iso8583.RRN, "999999999999"))
		result := p.start(t, l, fresh, time.Minute, 0)
		p.send(p.reply(one, "STALE1", 11, 37, 41), p.reply(one, "STALE1", 11, 37)) // by its key, and by the fallback
		requireWaiting(t, result)
		requireHandedOn(t, &handedOn, ConfirmMismatch, ConfirmMismatch)
		p.send(p.reply(fresh, "FRESH1", 11, 37, 41))
		p.requireAnswered(t, result, "FRESH1")
		stop()
	})
}

// TestFallbackIgnoresWhatWasNotSent: an answer cannot be to a call that has not left.
func TestFallbackIgnoresWhatWasNotSent(t *testing.T) {
	t.Parallel()
	var handedOn journal
	peerConns := make(chan *conn, 1)
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		peerConns <- c
		c.serve(silence)
	})
	cfg := testConfig(p.address())
	cfg.CorrelationFallback = [][]iso8583.Element{{37}}
	l := startSignedOn(t, cfg, Options{OnUnmatched: handedOn.note})
	c := <-peerConns
	release := holdWrites(l)
	defer release()
	m := request(iso8583.MTIAuthorizationRequest, 3, "T1")
	go func() { _, _ = exchange(l, m, patience) }()
	eventually(t, "the call is registered", func() bool { return l.Status().Pending == 1 })
	r := testSpec.NewMessage(0x0110)
	must(r.Set(iso8583.RRN, m.Get(iso8583.RRN)))
	must(r.Set(iso8583.ResponseCode, "00"))
	must(c.write(r))
	if u := handedOn.wait(t, 1)[0]; u.Kind != Late {
		t.Errorf("handed on as %s", u.Kind)
	}
	if n := l.Status().Pending; n != 1 {
		t.Errorf("%d calls pending", n)
	}
}

func TestS36_TheFirstResponseWithoutAKeyElementIsNamedInTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		p, l, stop := startBubble(t, iso1987Host(), Options{Log: zap.New(core)}, func(c *Config) {
			c.CorrelationFallback = [][]iso8583.Element{{37}}
		})
		for stan := range 3 {
			m := p.purchase(stan+1, "T1")
			result := p.start(t, l, m, time.Minute, 0)
			p.send(p.reply(m, "ANSWER", 7, 11, 37))
			p.requireAnswered(t, result, "ANSWER")
		}
		named := logs.FilterMessage("response lacks an element of the correlation key").All()
		if len(named) != 1 || named[0].ContextMap()["diagnostic"] != "0110 lacks DE 41, which is part of its key" {
			t.Errorf("logged %d times: %v", len(named), named)
		}
		stop()
	})
}

func TestMismatchIsQuarantinedAndSoIsEveryCopyOfIt(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, h hostDialect) {
		synctest.Test(t, func(t *testing.T) {
			var handedOn journal
			p, l, stop := startBubble(t, h, Options{OnUnmatched: handedOn.note}, func(c *Config) {
				c.Confirms = map[iso8583.MTI][]iso8583.Element{h.authorization: {37, 41, 4}}
			})
			m := p.purchase(1, "T1")
			result := p.start(t, l, m, time.Minute, 0)
			wrong := p.reply(m, "WRONG1", 7, 11, 37, 41)
			must(wrong.Set(iso8583.AmountTransaction, "000000009999"))
			interim := p.answer(m, h.working, 7, 11, 41)
			must(interim.Set(iso8583.RRN, "999999999999"))
			p.send(wrong, wrong, interim, wrong)
			requireWaiting(t, result)
			requireHandedOn(t, &handedOn, ConfirmMismatch, ConfirmMismatch, ConfirmMismatch, ConfirmMismatch)
			p.send(p.reply(m, "RIGHT1", 4, 7, 11, 37, 41))
			p.requireAnswered(t, result, "RIGHT1")
			p.send(wrong)
			requireHandedOn(t, &handedOn, ConfirmMismatch, ConfirmMismatch, ConfirmMismatch, ConfirmMismatch, Late)
			stop()
		})
	})
}

func TestPartialApprovalMayLowerTheConfirmedAmount(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		code, amount string
		mismatch     bool
	}{
		"less, partial":   {"10", "000000000500", false},
		"same, partial":   {"10", "000000001050", false},
		"more, partial":   {"10", "000000001051", true},
		"less, approved":  {"00", "000000000500", true},
		"same, approved":  {"00", "000000001050", false},
		"less, declined":  {"05", "000000000500", true},
		"nothing carried": {"00", "", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var handedOn journal
				p, l, stop := startBubble(t, iso1987Host(), Options{OnUnmatched: handedOn.note}, func(c *Config) {
					c.Confirm = []iso8583.Element{4}
				})
				m := p.purchase(1, "T1")
				result := p.start(t, l, m, time.Minute, 0)
				r := p.answer(m, test.code, 7, 11, 41)
				if test.amount != "" {
					must(r.Set(iso8583.AmountTransaction, test.amount))
				}
				p.send(r)
				if test.mismatch {
					requireWaiting(t, result)
					requireHandedOn(t, &handedOn, ConfirmMismatch)
				} else if code := p.codeOf(t, <-result); code != test.code {
					t.Errorf("answered with %s", code)
				}
				stop()
			})
		})
	}
}
