package gateway_test

import (
	"context"
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

// checkCompletions holds the messages of one capture against the rules of identity: one 0220, then nothing but equal 0221s.
func checkCompletions(t testing.TB, sent []sim.Record) {
	t.Helper()
	for i, r := range sent {
		want := "0221"
		if i == 0 {
			want = "0220"
		}
		if r.MTI != want || r.STAN != sent[0].STAN || r.RRN != sent[0].RRN || r.TransmissionDateTime != sent[0].TransmissionDateTime ||
			r.AmountMinor != sent[0].AmountMinor || r.OriginalDataElements != sent[0].OriginalDataElements || i > 1 && r.Digest != sent[1].Digest {
			t.Fatalf("completion %d of %d is %+v, the first %+v", i+1, len(sent), r, sent[0])
		}
	}
}

func capturedDuty(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) gateway.DutyView {
	t.Helper()
	duties, err := s.Gateway.Duties(context.Background(), gatewaytest.Tenant, id)
	if err != nil || len(duties) != 1 {
		t.Fatalf("duties %+v, %v", duties, err)
	}
	return duties[0]
}

// TestCompletionIsRepeatedOnSilenceAndNeverReversed: lost, answered "later", then taken.
func TestCompletionIsRepeatedOnSilenceAndNeverReversed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: completions, First: 3}, Then: lost},
			sim.Rule{When: sim.Match{MTI: completions, First: 2}, Then: refused("91")}),
		Link: silence(func(p *reversal.Policy) {
			p.AnswerWithin, p.MaxGap, p.AttentionAttempts = configs.Duration(40*time.Millisecond), configs.Duration(20*time.Millisecond), 2
		}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	c := mustCapture(t, s, v.ID, "", nil)
	s.Eventually(t, "a person called", func() bool {
		return s.Count(t, `SELECT count(*) FROM event WHERE subject_id = $1 AND kind = 'capture.needs_attention'`, c.ID) == 1
	})
	awaitDuties(t, s, v.ID)
	sent := s.Received(iso8583.MTIFinancialAdvice, iso8583.MTIFinancialAdviceRepeat)
	if len(sent) < 6 {
		t.Fatalf("%d completions", len(sent))
	}
	checkCompletions(t, sent)
	if n := len(s.Received(iso8583.MTIReversalAdvice, iso8583.MTIReversalAdviceRepeat)); n != 0 {
		t.Fatalf("%d reversals of a completion", n)
	}
	d := capturedDuty(t, s, v.ID)
	if d.State != reversal.Acknowledged || d.NeedsAttention || openExceptions(t, s, c.ID, "capture_unacknowledged") != 0 {
		t.Fatalf("duty %+v", d)
	}
	wantPostings(t, s, v.ID, "hold 1 pending customer>settlement 2000", "release 3 pending settlement>customer 2000", "debit 1 posted customer>settlement 2000")
	verifyLedger(t, s)
}

// TestCompletionAnswers: a format error parks it for a person, a code that the profile knows as done closes it.
func TestCompletionAnswers(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: completions, Amount: "30.00"}, Then: refused("30")},
		sim.Rule{When: sim.Match{MTI: completions, Amount: "94.00"}, Then: refused("94")},
		sim.Rule{When: sim.Match{MTI: completions, Amount: "25.00"}, Then: refused("25")})})
	for name, c := range map[string]struct {
		amount   string
		state    reversal.State
		closedAs string
		code     string
	}{
		"format error":     {"30.00", reversal.Suspended, "", "30"},
		"unable to locate": {"25.00", reversal.Suspended, "", "25"},
		"taken before":     {"94.00", reversal.Acknowledged, "acknowledged", "94"},
		"taken":            {"10.00", reversal.Acknowledged, "acknowledged", "00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase(c.amount, nil))
			capture := mustCapture(t, s, v.ID, "", nil)
			s.Eventually(t, string(c.state), func() bool { return capturedDuty(t, s, v.ID).State == c.state })
			d := capturedDuty(t, s, v.ID)
			if d.ClosedAs != c.closedAs || d.ResponseCode != c.code || d.Attempts != 1 || d.NeedsAttention != (c.state == reversal.Suspended) {
				t.Fatalf("duty %+v", d)
			}
			want := 0
			if c.state == reversal.Suspended {
				want = 1
			}
			if n := openExceptions(t, s, capture.ID, "capture_refused"); n != want {
				t.Fatalf("%d exceptions", n)
			}
			if m := readMoney(t, s, v.ID); m.State != "captured" || m.CapturedAmount != c.amount {
				t.Fatalf("authorization %+v", m)
			}
		})
	}
}

// TestCompletionSurvivesARestart: recorded, perhaps sent, and then the daemon ends before an answer. The next life goes on with the
// same STAN under the repeat's type.
func TestCompletionSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: completions}, Then: lost}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(100 * time.Millisecond) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	unsent := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("21.00", nil))
	mustCapture(t, s, v.ID, "", nil)
	s.Eventually(t, "the first completion", func() bool { return s.Sent(iso8583.MTIFinancialAdvice) == 1 })
	body := captureBody("", nil)
	first, err := capture(t.Context(), s, unsent.ID, "cap-2", body)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	setRules(t, s)
	s.Start(t)
	awaitDuties(t, s, v.ID)
	awaitDuties(t, s, unsent.ID)
	byAmount := map[int64][]sim.Record{}
	for _, r := range s.Received(iso8583.MTIFinancialAdvice, iso8583.MTIFinancialAdviceRepeat) {
		byAmount[r.AmountMinor] = append(byAmount[r.AmountMinor], r)
	}
	checkCompletions(t, byAmount[2000])
	checkCompletions(t, byAmount[2100])
	if len(byAmount[2000]) < 2 || len(byAmount[2100]) < 1 {
		t.Fatalf("completions %+v", byAmount)
	}
	again, err := capture(t.Context(), s, unsent.ID, "cap-2", body)
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) {
		t.Fatalf("after the restart the repeat got %s, %v", again.Body, err)
	}
	verifyLedger(t, s)
}

// TestDutiesOfOneAuthorizationGoInTheirOrder: a capture's reversal never overtakes it, and names what was sent.
func TestDutiesOfOneAuthorizationGoInTheirOrder(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: completions, First: 2}, Then: lost}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(60 * time.Millisecond) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	c := mustCapture(t, s, v.ID, "7.00", nil)
	first := mustReverse(t, s, v.ID, `"capture_id":"`+c.ID.String()+`"`)
	joined := mustReverse(t, s, v.ID, `"capture_id":"`+c.ID.String()+`"`)
	if joined.ID != first.ID || joined.Number != 2 || first.Undoes == nil || *first.Undoes != c.ID || first.Amount != "7.00" {
		t.Fatalf("undone twice: %+v and %+v", first, joined)
	}
	_, err := askReversal(t.Context(), s, v.ID, "undo-3", `"capture_id":"`+first.ID.String()+`"`)
	mustRefuse(t, err, gateway.CodeNotFound, 404)
	awaitDuties(t, s, v.ID)
	sent := s.Received(iso8583.MTIFinancialAdvice, iso8583.MTIFinancialAdviceRepeat, iso8583.MTIReversalAdvice)
	completion, undo := sent[:len(sent)-1], sent[len(sent)-1]
	checkCompletions(t, completion)
	original, err := iso8583.ParseOriginalDataElements(undo.OriginalDataElements)
	if err != nil || len(completion) < 3 || undo.MTI != "0420" || original.MTI != iso8583.MTIFinancialAdvice || original.STAN != completion[0].STAN ||
		original.TransmissionDateTime != completion[0].TransmissionDateTime || undo.AmountMinor != 700 || undo.STAN == completion[0].STAN || undo.STAN == v.STAN {
		t.Fatalf("the reversal is %+v after %+v, %v", undo, completion, err)
	}
	m := readMoney(t, s, v.ID)
	if m.State != "approved" || m.CapturedAmount != "7.00" || m.ReturnedAmount != "7.00" || m.RemainingAmount != "13.00" || len(m.Captures) != 1 || len(m.Reversals) != 1 {
		t.Fatalf("authorization %+v", m)
	}
	verifyLedger(t, s)
}

// TestDutyIsNeverOlderThanThoseBeforeIt, whatever the clock says: they are sent in the order of their age.
func TestDutyIsNeverOlderThanThoseBeforeIt(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	c := mustCapture(t, s, v.ID, "7.00", nil)
	awaitDuties(t, s, v.ID)
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE duty SET created_at = created_at + interval '1 hour' WHERE id = $1`, c.ID); err != nil {
		t.Fatal(err)
	}
	undo := mustReverse(t, s, v.ID, `"capture_id":"`+c.ID.String()+`"`)
	part := mustReverse(t, s, v.ID, `"amount":"4.00"`)
	if part.StandingAmount != "16.00" { // of what was approved; that a part of it is captured does not matter
		t.Fatalf("duty %+v", part)
	}
	if n := s.Count(t, `SELECT count(*) FROM duty c JOIN duty d ON d.created_at >= c.created_at WHERE c.id = $1 AND d.id IN ($2, $3)`, c.ID, undo.ID, part.ID); n != 2 {
		t.Fatal("a duty is older than the one before it")
	}
	awaitDuties(t, s, v.ID)
	verifyLedger(t, s)
}
