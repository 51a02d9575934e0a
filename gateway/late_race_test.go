package gateway_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// TestNothingToUndoIsOlderThanAnApprovalThatOvertookIt: the approval comes while the reversal is on the wire, and the reversal's answer,
// made before the scheme had seen the original, comes behind it. The amount is held at the scheme; another attempt takes it back.
func TestNothingToUndoIsOlderThanAnApprovalThatOvertookIt(t *testing.T) {
	t.Parallel()
	overtaken := refused("25")
	overtaken.Delay = configs.Duration(3 * lateDelay)
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: overtaken}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(10 * time.Second) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.92", nil))
	s.Eventually(t, "late approval kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
	if n := len(sentBack(s, v.STAN, iso8583.MTIReversalAdviceResponse)); n != 0 {
		t.Fatal("the reversal was answered before the approval came")
	}
	s.Eventually(t, "answer to the reversal kept", func() bool { return journaled(t, s, v.ID, "0430", "late") == 1 })
	if now := s.Read(t, v.ID); now.State != "timed_out" || now.Reversal.State != "owed" || now.StateVersion != v.StateVersion || held(t, s, v.ID) == 0 {
		t.Fatalf("closed by an answer that is older than the approval: %s, %+v", now.State, now.Reversal)
	}
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE duty SET next_at = now() WHERE id = $1`, v.Reversal.ID); err != nil {
		t.Fatal(err)
	}
	done := s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 2 || done.Reversal.ClosedAs != "acknowledged" || held(t, s, v.ID) != 0 || suspense(t, s, v.ID) != 0 {
		t.Fatalf("%d messages, %+v, %d held, %d in suspense", len(sent), done.Reversal, held(t, s, v.ID), suspense(t, s, v.ID))
	}
	s.CheckBooks(t)
}

// TestApprovalThatMeetsTheEndOfItsReversalReopensIt: the approval is read while "nothing to undo" is being committed.
func TestApprovalThatMeetsTheEndOfItsReversalReopensIt(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Deliver: sim.DeliverSilent}}),
		Link:   silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(time.Hour) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	tx, err := s.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	endWithNothingUndone(t, tx, v.ID)
	lateAnswer(t, s, v)
	s.Eventually(t, "the approval waits, or is kept", func() bool {
		return s.Count(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'tuple' AND relation = 'duty'::regclass
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0 ||
			journaled(t, s, v.ID, "0110", "late") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Eventually(t, "reopened", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND reopened = 1`, v.ID) == 1
	})
	s.Eventually(t, "undone", func() bool { return s.Read(t, v.ID).Reversal.State == "acknowledged" })
	if now := s.Read(t, v.ID); now.Reversal.ClosedAs != "acknowledged" || suspense(t, s, v.ID) != 0 || openExceptions(t, s, v.ID, "approved_after_reversal") != 1 {
		t.Fatalf("%+v, %d in suspense", now.Reversal, suspense(t, s, v.ID))
	}
	s.CheckBooks(t)
}

// TestReversalOfAnEarlierReleaseIsReopenedToo: its id was not derived from its authorisation's.
func TestReversalOfAnEarlierReleaseIsReopenedToo(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Deliver: sim.DeliverSilent}}),
		Link:   silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(time.Hour) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	if err := pgx.BeginFunc(t.Context(), s.DB.Pool, func(tx pgx.Tx) error {
		endWithNothingUndone(t, tx, v.ID)
		_, err := tx.Exec(t.Context(), `UPDATE duty SET id = $2 WHERE authorization_id = $1`, v.ID, uuid.New())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	lateAnswer(t, s, v)
	s.Eventually(t, "reopened and undone", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND reopened = 1 AND closed_as = 'acknowledged'`, v.ID) == 1
	})
	if n := suspense(t, s, v.ID); n != 0 {
		t.Fatalf("%d in suspense", n)
	}
}

// endWithNothingUndone writes down that the scheme holds nothing of what timed out, as the answer to its reversal does.
func endWithNothingUndone(t testing.TB, tx pgx.Tx, id uuid.UUID) {
	t.Helper()
	for _, statement := range []string{
		`UPDATE duty SET state = 'acknowledged', closed_as = 'nothing_to_undo', state_version = 2, attempts = 1 WHERE authorization_id = $1`,
		`UPDATE card_authorization SET state = 'reversed', state_version = state_version + 1 WHERE id = $1`,
		`INSERT INTO ledger_posting (amount_minor, booked_at, debit_account, credit_account, value_date, transaction, step, number, layer, correction, intent, currency, tenant, client_reference, source_ref)
			SELECT amount_minor, booked_at, credit_account, debit_account, value_date, 0, 2, 1, layer, false, intent, currency, tenant, client_reference, source_ref FROM ledger_posting WHERE intent = $1`,
	} {
		if _, err := tx.Exec(t.Context(), statement, id); err != nil {
			t.Fatal(err)
		}
	}
}
