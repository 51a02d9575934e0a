package gateway_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// The tests of this file are the rows of the table "what each event posts", each with its accounts, amounts, layers and marks.

const (
	heldTwenty     = "hold 1 pending customer>settlement 2000"
	releasedTwenty = "release 1 pending settlement>customer 2000"
	debitedTwenty  = "debit 1 posted customer>settlement 2000"
)

// financial maps purchases to 0200, which moves the money with the approval.
func financial(l *gateway.LinkConfig) {
	l.Types[gateway.Purchase] = gateway.TypeConfig{MTI: "0200", ProcessingCode: "000000"}
	l.Silence.ReversalDelay = configs.Duration(100 * time.Millisecond) // time to look at what was posted before
}

// financials are the requests that financial sends.
var financials = []string{"0200"}

func twenty(changes map[string]any) []byte { return gatewaytest.Purchase("20.00", changes) }

func TestPosting_Recorded(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if m := readMoney(t, s, v.ID); v.State != "approved" || m.RemainingAmount != "20.00" {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, heldTwenty)
	s.CheckBooks(t)
}

func TestPosting_PartialApproval(t *testing.T) {
	t.Parallel()
	for name, mti := range map[string]string{"0100": "0100", "0200": "0200"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, gatewaytest.Options{
				Scheme: scheme(sim.Rule{When: sim.Match{MTI: []string{mti}}, Then: sim.Action{Answer: sim.AnswerPartial, Amount: "12.50"}}),
				Link: func(l *gateway.LinkConfig) {
					l.Types[gateway.Purchase] = gateway.TypeConfig{MTI: mti, ProcessingCode: "000000"}
				},
			})
			v := s.MustAuthorize(t, "key-1", twenty(map[string]any{"partial_approval": true}))
			if v.State != "approved" || v.ApprovedAmount != "12.50" {
				t.Fatalf("answer %+v", v)
			}
			want := []string{heldTwenty, "release 1 pending settlement>customer 750"}
			if mti == "0200" {
				want = []string{heldTwenty, releasedTwenty, "debit 1 posted customer>settlement 1250"}
			}
			wantPostings(t, s, v.ID, want...)
			checkScheme(t, s, v.ID)
			verifyLedger(t, s)
		})
	}
}

func TestPosting_Declined(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: refused("51")})})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if v.State != "declined" {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty)
	s.CheckBooks(t)
}

func TestPosting_Reversed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations, First: 1}, Then: silent})})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty)
	approved := s.MustAuthorize(t, "key-2", twenty(nil))
	mustReverse(t, s, approved.ID, "")
	s.AwaitState(t, approved.ID, "reversed")
	wantPostings(t, s, approved.ID, heldTwenty, "release 2 pending settlement>customer 2000")
	s.CheckBooks(t)
}

func TestPosting_PartialReversal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: lost}),
		Link: func(l *gateway.LinkConfig) { l.Silence.AnswerWithin = configs.Duration(100 * time.Millisecond) }})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	d := mustReverse(t, s, v.ID, `"amount":"8.00"`)
	if d.Number != 1 || d.Amount != "8.00" || d.StandingAmount != "12.00" {
		t.Fatalf("duty %+v", d)
	}
	wantPostings(t, s, v.ID, heldTwenty) // until the scheme has acknowledged it
	if m := readMoney(t, s, v.ID); m.State != "approved" || m.ReversedAmount != "8.00" || m.RemainingAmount != "12.00" || m.StateVersion != 3 || len(m.Reversals) != 1 {
		t.Fatalf("authorization %+v", m)
	}
	awaitDuties(t, s, v.ID)
	wantPostings(t, s, v.ID, heldTwenty, "release 3 pending settlement>customer 800")
	_, err := askReversal(t.Context(), s, v.ID, "too-much", `"amount":"12.01"`)
	mustRefuse(t, err, gateway.CodeAmountExceedsRemaining, 409)
	last := mustReverse(t, s, v.ID, `"amount":"12.00"`)
	if last.StandingAmount != "0.00" {
		t.Fatalf("duty %+v", last)
	}
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID, heldTwenty, "release 3 pending settlement>customer 800", "release 4 pending settlement>customer 1200")
	_, err = askReversal(t.Context(), s, v.ID, "nothing-left", `"amount":"0.01"`)
	mustRefuse(t, err, gateway.CodeAuthorizationReversed, 409)
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPartialReversalIsRefusedWhereTheSchemeTakesNone(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Reversal.Partial = "refuse" }})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	_, err := askReversal(t.Context(), s, v.ID, "rev-1", `"amount":"8.00"`)
	mustRefuse(t, err, gateway.CodePartialReversalRefused, 409)
	c := mustCapture(t, s, v.ID, "5.00", nil)
	mustReverse(t, s, v.ID, `"capture_id":"`+c.ID.String()+`"`)
	awaitDuties(t, s, v.ID)
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_Expired(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	expire(t, s, 10*time.Minute)
	if m := readMoney(t, s, v.ID); m.State != "expired" || m.RemainingAmount != "" || m.StateVersion != 3 {
		t.Fatalf("authorization %+v", m)
	}
	wantPostings(t, s, v.ID, heldTwenty, "release 2 pending settlement>customer 2000")
	verifyLedger(t, s)
}

func TestPosting_Capture(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	mustCapture(t, s, v.ID, "5.00", nil)
	wantPostings(t, s, v.ID, heldTwenty, "release 3 pending settlement>customer 500", "debit 1 posted customer>settlement 500")
	mustCapture(t, s, v.ID, "6.00", new(true))
	want := []string{heldTwenty, "release 3 pending settlement>customer 500", "debit 1 posted customer>settlement 500",
		"release 4 pending settlement>customer 600", "debit 2 posted customer>settlement 600", "release 2 pending settlement>customer 900"}
	wantPostings(t, s, v.ID, want...)
	awaitDuties(t, s, v.ID)
	wantPostings(t, s, v.ID, want...)
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_FinancialApproval(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: financial})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if m := readMoney(t, s, v.ID); m.State != "approved" || m.CapturedAmount != "20.00" || m.RemainingAmount != "" {
		t.Fatalf("authorization %+v", m)
	}
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty, debitedTwenty)
	if n, err := s.Gateway.ExpireHolds(t.Context(), gatewaytest.LinkName, time.Now().Add(30*24*time.Hour)); n != 0 || err != nil {
		t.Fatalf("%d of what is not held expired, %v", n, err)
	}
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_FinancialDeclinedOrSilent(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: financial, Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: financials, First: 1}, Then: refused("51")}, sim.Rule{When: sim.Match{MTI: financials}, Then: silent})})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if v.State != "declined" {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty)
	v = s.MustAuthorize(t, "key-2", twenty(nil))
	if v.State != "timed_out" || v.Reversal == nil {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, heldTwenty)
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty)
	sent := received(s, v.STAN, iso8583.MTIReversalAdvice)
	if original, err := iso8583.ParseOriginalDataElements(sent[0].OriginalDataElements); err != nil || original.MTI != iso8583.MTIFinancialRequest {
		t.Fatalf("DE 90 names %+v, %v", original, err)
	}
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_ReversalOfAPostedAmount(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: financial})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	mustReverse(t, s, v.ID, "")
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty, debitedTwenty, "compensate 13 posted settlement>customer 2000 !")
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_ReversalOfACapture(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	mustCapture(t, s, v.ID, "3.00", nil)
	second := mustCapture(t, s, v.ID, "5.00", nil)
	mustReverse(t, s, v.ID, `"capture_id":"`+second.ID.String()+`"`)
	awaitDuties(t, s, v.ID)
	wantPostings(t, s, v.ID, heldTwenty, "release 3 pending settlement>customer 300", "debit 1 posted customer>settlement 300",
		"release 4 pending settlement>customer 500", "debit 2 posted customer>settlement 500", "compensate 23 posted settlement>customer 500 !")
	m := readMoney(t, s, v.ID)
	if m.State != "approved" || m.CapturedAmount != "8.00" || m.ReturnedAmount != "5.00" || m.RemainingAmount != "12.00" {
		t.Fatalf("authorization %+v", m)
	}
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestPosting_Refund(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: financials, Amount: "20.51"}, Then: refused("51")},
		sim.Rule{When: sim.Match{MTI: financials, Amount: "20.91"}, Then: lost})})
	refund := func(amount string) gatewaytest.View {
		return s.MustAuthorize(t, "key-"+amount, gatewaytest.Purchase(amount, map[string]any{"type": "refund"}))
	}
	v := refund("20.00")
	if v.State != "approved" {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, "return 1 posted settlement>customer 2000")
	mustReverse(t, s, v.ID, "")
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID, "return 1 posted settlement>customer 2000", "compensate 15 posted customer>settlement 2000 !")
	checkScheme(t, s, v.ID)
	standing := refund("20.01")
	checkScheme(t, s, standing.ID)
	declined := refund("20.51")
	if declined.State != "declined" {
		t.Fatalf("answer %+v", declined)
	}
	wantPostings(t, s, declined.ID)
	unknown := refund("20.91")
	if unknown.State != "timed_out" || unknown.Reversal == nil {
		t.Fatalf("answer %+v", unknown)
	}
	s.AwaitState(t, unknown.ID, "reversed")
	wantPostings(t, s, unknown.ID)
	verifyLedger(t, s)
}

func TestPosting_Cash(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.Types[gateway.Cash] = gateway.TypeConfig{MTI: "0200", ProcessingCode: "010000"}
	}})
	v := s.MustAuthorize(t, "key-1", twenty(map[string]any{"type": "cash"}))
	if v.State != "approved" {
		t.Fatalf("answer %+v", v)
	}
	wantPostings(t, s, v.ID, heldTwenty, releasedTwenty, debitedTwenty)
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

// TestPosting_BalanceInquiry: nothing, whatever becomes of it, and no reversal unless the profile asks for one.
func TestPosting_BalanceInquiry(t *testing.T) {
	t.Parallel()
	balances := "1001978C000000012345" + "1002978D000000000050" + "nonsense of 20 chars" + "0001392C000000000700" + "10"
	inquiry := map[string]any{"type": "balance_inquiry", "amount": nil}
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: authorizations, First: 1}, Then: sim.Action{Set: map[iso8583.Element]string{iso8583.AdditionalAmounts: balances}}},
		sim.Rule{When: sim.Match{MTI: authorizations, First: 1}, Then: refused("51")},
		sim.Rule{When: sim.Match{MTI: authorizations}, Then: lost})})
	approved := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("", inquiry))
	want := []gateway.Balance{{AccountType: "10", AmountType: "01", Currency: "EUR", Sign: "C", Amount: "123.45"},
		{AccountType: "10", AmountType: "02", Currency: "EUR", Sign: "D", Amount: "0.50"}, {AccountType: "00", AmountType: "01", Currency: "JPY", Sign: "C", Amount: "700"}}
	m := readMoney(t, s, approved.ID)
	if approved.State != "approved" || len(m.Balances) != len(want) || m.RemainingAmount != "" || m.CapturedAmount != "" {
		t.Fatalf("answer %+v, balances %+v", approved, m.Balances)
	}
	for i := range want {
		if m.Balances[i] != want[i] {
			t.Errorf("balance %+v, want %+v", m.Balances[i], want[i])
		}
	}
	declined := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("", inquiry))
	if declined.State != "declined" {
		t.Fatalf("answer %+v", declined)
	}
	silent := s.MustAuthorize(t, "key-3", gatewaytest.Purchase("", inquiry))
	if silent.State != "timed_out" || silent.Outcome != "unknown" || silent.Retry != "new_key" || silent.Reversal != nil {
		t.Fatalf("answer %+v", silent)
	}
	for _, v := range []gatewaytest.View{approved, declined, silent} {
		wantPostings(t, s, v.ID)
		_, err := askReversal(t.Context(), s, v.ID, "rev-"+v.ID.String(), "")
		mustRefuse(t, err, gateway.CodeNothingToUndo, 409)
	}
	if n := s.Count(t, `SELECT count(*) FROM duty`); n != 0 || s.Sent(iso8583.MTIReversalAdvice) != 0 {
		t.Fatalf("%d duties", n)
	}
	verifyLedger(t, s)
}

func TestPosting_BalanceInquiryThatTheProfileReverses(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}),
		Link: func(l *gateway.LinkConfig) {
			l.Types[gateway.BalanceInquiry] = gateway.TypeConfig{MTI: "0100", ProcessingCode: "310000", ReverseOnSilence: true}
		},
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("", map[string]any{"type": "balance_inquiry", "amount": nil}))
	if v.State != "timed_out" || v.Retry != "never" || v.Reversal == nil {
		t.Fatalf("answer %+v", v)
	}
	s.AwaitState(t, v.ID, "reversed")
	wantPostings(t, s, v.ID)
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

// TestHoldEndsWithTheLastOfItsParts: one part is acknowledged late in the batch in which another is not acknowledged.
func TestHoldEndsWithTheLastOfItsParts(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("30")},
		sim.Rule{When: sim.Match{MTI: reversals}, Then: lost})})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	duty := func(d gateway.DutyView, state string) {
		s.Eventually(t, state, func() bool {
			return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND state = $2 AND attempts > 0`, d.ID, state) == 1
		})
	}
	first := mustReverse(t, s, v.ID, `"amount":"8.00"`)
	duty(first, "suspended")
	second := mustReverse(t, s, v.ID, `"amount":"12.00"`)
	duty(second, "owed")
	for _, step := range []struct {
		outcomes map[uuid.UUID]reversal.Outcome
		state    string
	}{
		{map[uuid.UUID]reversal.Outcome{first.ID: reversal.AttemptAcknowledged, second.ID: reversal.AttemptSilent}, "approved"},
		{map[uuid.UUID]reversal.Outcome{second.ID: reversal.AttemptAcknowledged}, "reversed"},
	} {
		if err := s.Gateway.ResolveTogether(t.Context(), step.outcomes); err != nil {
			t.Fatal(err)
		}
		if now := s.Read(t, v.ID); now.State != step.state {
			t.Fatalf("%s, want %s", now.State, step.state)
		}
	}
	wantPostings(t, s, v.ID, heldTwenty, "release 3 pending settlement>customer 800", "release 4 pending settlement>customer 1200")
	verifyLedger(t, s)
}
