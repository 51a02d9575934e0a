package gateway_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/reversal"
)

// ahead makes an authorisation's row, or a duty's, look as if it had been changed a moment later than now: by a daemon whose clock is
// ahead, or by a request that read its clock later and had the row's lock earlier.
func ahead(t *testing.T, s *gatewaytest.Stand, table string, id uuid.UUID) (at time.Time) {
	t.Helper()
	err := s.DB.Pool.QueryRow(t.Context(), `UPDATE `+table+` SET updated_at = date_trunc('milliseconds', clock_timestamp()) + interval '400 milliseconds'
		WHERE id = $1 RETURNING updated_at`, id).Scan(&at)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// newest is the time of a subject's newest row of history, and how many rows it has.
func newest(t *testing.T, s *gatewaytest.Stand, id uuid.UUID) (at time.Time, rows int) {
	t.Helper()
	err := s.DB.Pool.QueryRow(t.Context(), `SELECT max(at), count(*) FROM state_history WHERE subject_id = $1
		AND state_version = (SELECT max(state_version) FROM state_history WHERE subject_id = $1)`, id).Scan(&at, &rows)
	if err != nil || rows != 1 {
		t.Fatalf("%d newest rows, %v", rows, err)
	}
	return at, s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1`, id)
}

// TestHistoryNeverStepsBack: whoever has read its clock before it got a row's lock writes no time below that of the change before it.
func TestHistoryNeverStepsBack(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	hold := func(t *testing.T) gatewaytest.View {
		return s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase("20.00", nil))
	}
	for name, change := range map[string]func(t *testing.T, v gatewaytest.View){
		"capture":          func(t *testing.T, v gatewaytest.View) { mustCapture(t, s, v.ID, "5.00", nil) },
		"partial reversal": func(t *testing.T, v gatewaytest.View) { mustReverse(t, s, v.ID, `"amount":"5.00"`) },
		"reversal":         func(t *testing.T, v gatewaytest.View) { mustReverse(t, s, v.ID, "") },
		"expiry": func(t *testing.T, v gatewaytest.View) {
			if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET created_at = created_at - interval '7 days 10 minutes', deadline_at = deadline_at - interval '7 days 10 minutes'
				WHERE id = $1`, v.ID); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Gateway.ExpireHolds(t.Context(), gatewaytest.LinkName, time.Now().UTC().Truncate(time.Microsecond)); n != 1 || err != nil {
				t.Fatalf("%d expired, %v", n, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := hold(t)
			_, before := newest(t, s, v.ID)
			at := ahead(t, s, "card_authorization", v.ID)
			change(t, v)
			s.Eventually(t, "a row of history", func() bool { _, rows := newest(t, s, v.ID); return rows > before })
			awaitDuties(t, s, v.ID)
			if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND state_version > $2 AND at < $3`, v.ID, v.StateVersion, at); n != 0 {
				t.Errorf("%d rows of history before the change that they follow", n)
			}
			if n := s.Count(t, `SELECT count(*) FROM card_authorization WHERE id = $1 AND updated_at >= $2`, v.ID, at); n != 1 {
				t.Error("updated_at went back")
			}
			if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1 AND booked_at < $2 AND NOT (step = 1 AND number = 1)`, v.ID, at); n != 0 {
				t.Errorf("%d entries booked before the change that they follow", n)
			}
		})
	}
}

// TestHistoryOfADutyNeverStepsBack: the same of what an attempt came to, which is known before the row is locked.
func TestHistoryOfADutyNeverStepsBack(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: refused("30")}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	d := mustReverse(t, s, v.ID, "")
	s.Eventually(t, "suspended", func() bool { return s.Read(t, v.ID).Reversal.State == string(reversal.Suspended) })
	at, atOriginal := ahead(t, s, "duty", d.ID), ahead(t, s, "card_authorization", v.ID)
	err := pgx.BeginFunc(t.Context(), s.DB.Pool, func(tx pgx.Tx) error {
		return reversal.Resume(t.Context(), tx, d.ID, "the scheme has mended its table", time.Now())
	})
	if err != nil {
		t.Fatal(err)
	}
	s.AwaitState(t, v.ID, string(gateway.Reversed))
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND state_version > 2 AND at < $2`, d.ID, at); n != 0 {
		t.Errorf("%d rows of the duty's history before the change that they follow", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND to_state = 'reversed' AND at < $2`, v.ID, atOriginal); n != 0 {
		t.Error("the authorisation was reversed before the change that this follows")
	}
}

// TestDutyIsDueByTheClockAndNotByARowFromTheFuture: another daemon's clock may have been ahead when it changed the row.
func TestDutyIsDueByTheClockAndNotByARowFromTheFuture(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase("10.00", nil))
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET updated_at = now() + interval '1 hour' WHERE id = $1`, v.ID); err != nil {
		t.Fatal(err)
	}
	reverseAs(t, s, v.ID, `{"amount":"4.00"}`)
	reverseAs(t, s, v.ID, `{}`)
	s.AwaitState(t, v.ID, "reversed")
	awaitDuties(t, s, v.ID)
}
