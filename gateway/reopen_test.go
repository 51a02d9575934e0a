package gateway_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// suspense is what stands in suspense for one authorisation, in minor units: above zero where the scheme took more than we hold for.
func suspense(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) int {
	t.Helper()
	return s.Count(t, `SELECT coalesce(sum(CASE WHEN debit.kind = 'suspense' THEN p.amount_minor WHEN credit.kind = 'suspense' THEN -p.amount_minor END), 0)
		FROM ledger_posting p JOIN ledger_account debit ON debit.id = p.debit_account JOIN ledger_account credit ON credit.id = p.credit_account WHERE p.intent = $1`, id)
}

// lateCopies makes the scheme approve an authorisation late, and three times.
func lateCopies(code string) sim.Rule {
	return sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Delay: configs.Duration(2 * lateDelay), Deliver: sim.DeliverTwice, Copies: 3, ResponseCode: code}}
}

// TestLateApprovalReopensAReversalWithNothingToUndo: the reversal overtook its original. It goes out again as a repeat, and the amount
// stands in suspense until it is acknowledged, once however often the approval comes.
func TestLateApprovalReopensAReversalWithNothingToUndo(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("25")},
		sim.Rule{When: sim.Match{MTI: reversals}, Then: sim.Action{Delay: configs.Duration(answerDelay)}}, lateCopies(""))})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	closed := s.AwaitState(t, v.ID, "reversed")
	if closed.Reversal.ClosedAs != "nothing_to_undo" || held(t, s, v.ID) != 0 {
		t.Fatalf("closed as %+v", closed.Reversal)
	}
	s.Eventually(t, "reopened", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND reopened = 1`, v.Reversal.ID) == 1
	})
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1 AND transaction = 1 AND step = 3 AND layer = 2 AND amount_minor = 1234`, v.ID); n != 1 {
		t.Fatalf("%d debits against suspense", n)
	}
	s.Eventually(t, "closed again", func() bool { return s.Read(t, v.ID).Reversal.State == "acknowledged" })
	s.Eventually(t, "all copies kept", func() bool {
		return journaled(t, s, v.ID, "0110", "late") == 1 && journaled(t, s, v.ID, "0110", "duplicate") == 2
	})
	now := s.Read(t, v.ID)
	if now.State != "reversed" || now.Reversal.ClosedAs != "acknowledged" || now.Reversal.Attempts != 2 || suspense(t, s, v.ID) != 0 {
		t.Fatalf("now %s, %+v, %d in suspense", now.State, now.Reversal, suspense(t, s, v.ID))
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND from_state = 'acknowledged' AND to_state = 'owed' AND reason = 'reversal_reopened'`, v.Reversal.ID); n != 1 {
		t.Fatalf("%d rows of history", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1`, v.ID); n != now.StateVersion {
		t.Fatalf("%d rows of history for version %d", n, now.StateVersion)
	}
	if sent := checkReversals(t, s, v); len(sent) != 2 {
		t.Fatalf("%d messages", len(sent))
	}
	if openExceptions(t, s, v.ID, "approved_after_reversal") != 1 || s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.late_response' AND subject_id = $1`, v.ID) != 3 {
		t.Fatal("not one exception, or not three events")
	}
	s.CheckBooks(t)
}

// TestCopyOfAnApprovalIsADuplicateWhateverBecameOfTheReversal: one that comes once the reversal is owed again, or done, is no news.
func TestCopyOfAnApprovalIsADuplicateWhateverBecameOfTheReversal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("25")}, sim.Rule{When: sim.Match{MTI: reversals}, Then: lost},
		sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Delay: configs.Duration(2 * lateDelay)}})})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	s.Eventually(t, "reopened", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND reopened = 1`, v.Reversal.ID) == 1
	})
	lateAnswer(t, s, v)
	s.Eventually(t, "a copy while it is owed", func() bool { return journaled(t, s, v.ID, "0110", "duplicate") == 1 })
	setRules(t, s)
	s.Eventually(t, "closed again", func() bool { return s.Read(t, v.ID).Reversal.State == "acknowledged" })
	lateAnswer(t, s, v)
	s.Eventually(t, "a copy when it is done", func() bool { return journaled(t, s, v.ID, "0110", "duplicate") == 2 })
	if n := s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND reopened = 1 AND state = 'acknowledged'`, v.Reversal.ID); n != 1 || suspense(t, s, v.ID) != 0 {
		t.Fatalf("%d reversals done, %d in suspense", n, suspense(t, s, v.ID))
	}
	if journaled(t, s, v.ID, "0110", "late") != 1 || openExceptions(t, s, v.ID, "approved_after_reversal") != 1 {
		t.Fatal("not one late approval, or not one exception")
	}
	s.CheckBooks(t)
}

// TestStaleNothingToUndoDoesNotCloseAReopenedReversal: a copy of the answer that closed the reversal, or the answer to one of its earlier
// attempts, comes behind the approval that reopened it. It speaks of the time before; the money is still out there.
func TestStaleNothingToUndoDoesNotCloseAReopenedReversal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(
			sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("25")}, sim.Rule{When: sim.Match{MTI: reversals}, Then: lost},
			sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Delay: configs.Duration(2 * lateDelay)}}),
		Link: silence(func(p *reversal.Policy) {
			p.AnswerWithin, p.FirstGap, p.MaxGap = configs.Duration(100*time.Millisecond), configs.Duration(time.Hour), configs.Duration(time.Hour)
		}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	s.Eventually(t, "reopened, and sent again in vain", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND reopened = 1 AND attempts = 2 AND claim_epoch IS NULL`, v.Reversal.ID) == 1
	})
	stale := sentBack(s, v.STAN, iso8583.MTIReversalAdviceResponse)
	if len(stale) != 1 || stale[0].ResponseCode != "25" {
		t.Fatalf("the scheme answered %+v", stale)
	}
	lateAnswerAs(t, s, v, iso8583.MTIReversalAdviceResponse, "25")
	s.Eventually(t, "the copy is kept", func() bool { return journaled(t, s, v.ID, "0430", "late") == 1 })
	if now := s.Read(t, v.ID); now.Reversal.State != "owed" || suspense(t, s, v.ID) != 1234 {
		t.Fatalf("the reversal is %+v, %d in suspense", now.Reversal, suspense(t, s, v.ID))
	}
	setRules(t, s)
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE duty SET next_at = now() WHERE id = $1`, v.Reversal.ID); err != nil {
		t.Fatal(err)
	}
	s.Eventually(t, "closed again", func() bool { return s.Read(t, v.ID).Reversal.State == "acknowledged" })
	if now := s.Read(t, v.ID); now.Reversal.ClosedAs != "acknowledged" || suspense(t, s, v.ID) != 0 {
		t.Fatalf("the reversal is %+v, %d in suspense", now.Reversal, suspense(t, s, v.ID))
	}
	s.CheckBooks(t)
}

// TestLateApprovalOfADeclinedOne: the scheme contradicts itself. The amount stands in suspense, a person is called, and a reversal
// can be asked for.
func TestLateApprovalOfADeclinedOne(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	// The scheme has approved; here it stands as declined.
	rewrite(t, s, v.ID, "declined", "05")
	lateAnswer(t, s, v)
	s.Eventually(t, "exception", func() bool { return openExceptions(t, s, v.ID, "answer_contradicts_decision") == 1 })
	if suspense(t, s, v.ID) != 1234 || wholes(t, s, v.ID) != 0 {
		t.Fatalf("%d in suspense, %d reversals", suspense(t, s, v.ID), wholes(t, s, v.ID))
	}
	s.MustReverse(t, "undo-1", v.ID, nil)
	s.Eventually(t, "undone", func() bool { r := s.Read(t, v.ID).Reversal; return r != nil && r.State == "acknowledged" })
	now := s.Read(t, v.ID)
	if now.State != "declined" || now.Reversal.ClosedAs != "acknowledged" || suspense(t, s, v.ID) != 0 {
		t.Fatalf("now %s, %+v, %d in suspense", now.State, now.Reversal, suspense(t, s, v.ID))
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 {
		t.Fatalf("%d messages", len(sent))
	}
}

// TestLateApprovalOfWhatWasNotSentIsUndone: nobody was told of it.
func TestLateApprovalOfWhatWasNotSentIsUndone(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	rewrite(t, s, v.ID, "not_sent", "")
	lateAnswer(t, s, v)
	s.Eventually(t, "undone", func() bool { r := s.Read(t, v.ID).Reversal; return r != nil && r.State == "acknowledged" })
	now := s.Read(t, v.ID)
	if now.State != "not_sent" || now.Reversal.Reason != "approved_after_decision" || now.Reversal.ClosedAs != "acknowledged" || suspense(t, s, v.ID) != 0 {
		t.Fatalf("now %s, %+v, %d in suspense", now.State, now.Reversal, suspense(t, s, v.ID))
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 || openExceptions(t, s, v.ID, "answer_contradicts_decision") != 1 {
		t.Fatalf("%d messages, %d exceptions", len(sent), openExceptions(t, s, v.ID, "answer_contradicts_decision"))
	}
}

// rewrite makes an approved authorisation stand as another state, with its hold gone, as after an answer that was another.
func rewrite(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, state, code string) {
	t.Helper()
	for _, statement := range []string{
		`UPDATE card_authorization SET state = '` + state + `', response_code = nullif('` + code + `', ''), approved_minor = NULL, approval_code = NULL WHERE id = $1`,
		`INSERT INTO ledger_posting (amount_minor, booked_at, debit_account, credit_account, value_date, transaction, step, number, layer, correction, intent, currency, tenant, client_reference, source_ref)
			SELECT amount_minor, booked_at, credit_account, debit_account, value_date, 0, 2, 1, layer, false, intent, currency, tenant, client_reference, source_ref FROM ledger_posting WHERE intent = $1`,
	} {
		if _, err := s.DB.Pool.Exec(t.Context(), statement, id); err != nil {
			t.Fatal(err)
		}
	}
}

// lateAnswer gives the gateway a copy of the approval, as a line does that has nobody waiting for it.
func lateAnswer(t testing.TB, s *gatewaytest.Stand, v gatewaytest.View) {
	t.Helper()
	lateAnswerAs(t, s, v, iso8583.MTIAuthorizationResponse, "00")
}

// lateAnswerAs is the same for another type and response code.
func lateAnswerAs(t testing.TB, s *gatewaytest.Stand, v gatewaytest.View, mti iso8583.MTI, code string) {
	t.Helper()
	spec := s.Gateway.Spec(gatewaytest.LinkName)
	m := spec.NewMessage(mti)
	for e, value := range map[iso8583.Element]string{iso8583.PAN: gatewaytest.PAN, iso8583.AmountTransaction: "000000001234", iso8583.STAN: v.STAN,
		iso8583.TransmissionDateTime: v.DateTime, iso8583.RRN: v.RRN, iso8583.ResponseCode: code, iso8583.TerminalID: "TERM0001"} {
		if err := m.Set(e, value); err != nil {
			t.Fatal(err)
		}
	}
	body, err := spec.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	s.Gateway.TakeLate(gatewaytest.LinkName, body)
}

// TestS03_LateDeclineWithdrawsAnUnsentReversalByProfile, and only there and then.
func TestS03_LateDeclineWithdrawsAnUnsentReversalByProfile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		delay    time.Duration
		closedAs string
		sent     int
	}{"unsent": {time.Hour, "withdrawn", 0}, "sent before": {0, "nothing_to_undo", 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) {
				p.LateDeclineWithdraws, p.ReversalDelay = true, configs.Duration(c.delay)
			})})
			v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.98", nil))
			now := s.AwaitState(t, v.ID, "reversed")
			if v.State != "timed_out" || now.Reversal.ClosedAs != c.closedAs || held(t, s, v.ID) != 0 {
				t.Fatalf("closed as %+v, %d held", now.Reversal, held(t, s, v.ID))
			}
			s.Eventually(t, "decline kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
			if sent := checkReversals(t, s, v); len(sent) != c.sent {
				t.Fatalf("%d messages", len(sent))
			}
			if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1`, v.ID); n != now.StateVersion {
				t.Fatalf("%d rows of history for version %d", n, now.StateVersion)
			}
			s.CheckBooks(t)
		})
	}
}

// TestS15_NothingToUndoClosesTheReversalAndKeepsWhy: the scheme never saw the original, or had undone it before.
func TestS15_NothingToUndoClosesTheReversalAndKeepsWhy(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"21", "25", "94"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
				sim.Rule{When: sim.Match{MTI: reversals}, Then: refused(code)}, sim.Rule{When: sim.Match{MTI: authorizations}, Then: lost})})
			v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
			now := s.AwaitState(t, v.ID, "reversed")
			if now.Reversal.ClosedAs != "nothing_to_undo" || now.Reversal.ResponseCode != code || now.Reversal.Attempts != 1 || held(t, s, v.ID) != 0 {
				t.Fatalf("closed as %+v, %d held", now.Reversal, held(t, s, v.ID))
			}
			if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND to_state = 'acknowledged' AND reason = 'nothing_to_undo' AND response_code = $2`, v.Reversal.ID, code); n != 1 {
				t.Fatal("history does not say why")
			}
			s.CheckBooks(t)
		})
	}
}

// TestLateApprovalOfARefundStandsTheOtherWayRound in suspense, and its reversal mirrors it.
func TestLateApprovalOfARefundStandsTheOtherWayRound(t *testing.T) {
	t.Parallel()
	refunds := lateCopies("")
	refunds.When.MTI = []string{"0200"}
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("25")},
		sim.Rule{When: sim.Match{MTI: reversals}, Then: sim.Action{Delay: configs.Duration(answerDelay)}}, refunds)})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", map[string]any{"type": "refund"}))
	s.AwaitState(t, v.ID, "reversed")
	s.Eventually(t, "reopened", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND reopened = 1`, v.Reversal.ID) == 1
	})
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting p JOIN ledger_account a ON a.id = p.credit_account AND a.kind = 'suspense' WHERE p.intent = $1 AND p.step = 5 AND p.amount_minor = 1234`, v.ID); n != 1 {
		t.Fatalf("%d credits to suspense", n)
	}
	s.Eventually(t, "closed again", func() bool { return s.Read(t, v.ID).Reversal.State == "acknowledged" })
	if n := suspense(t, s, v.ID); n != 0 || openExceptions(t, s, v.ID, "approved_after_reversal") != 1 {
		t.Fatalf("%d in suspense", n)
	}
}

// TestCopyOfAnAnswerAfterItsReversalIsADuplicate: what was approved, told and then undone is not approved late.
func TestCopyOfAnAnswerAfterItsReversalIsADuplicate(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	s.MustReverse(t, "undo-1", v.ID, nil)
	s.AwaitState(t, v.ID, "reversed")
	lateAnswer(t, s, v)
	s.Eventually(t, "kept", func() bool { return journaled(t, s, v.ID, "0110", "duplicate") == 1 })
	if n := s.Count(t, `SELECT (SELECT count(*) FROM exception) + (SELECT count(*) FROM event)`); n != 0 || suspense(t, s, v.ID) != 0 {
		t.Fatalf("%d exceptions and events, %d in suspense", n, suspense(t, s, v.ID))
	}
	s.CheckBooks(t)
}
