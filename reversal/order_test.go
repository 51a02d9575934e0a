package reversal_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

// numbered inserts a capture, or a reversal that undoes one, as number n of an authorisation.
func numbered(t *testing.T, db *pgtest.DB, authorization uuid.UUID, n int, undoes *uuid.UUID, at time.Time) uuid.UUID {
	t.Helper()
	id, kind, reference := uuid.New(), "capture", any("ref")
	if undoes != nil {
		kind, reference = "reversal", nil
	}
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO duty (id, authorization_id, kind, number, amount_minor, undoes, client_reference, tenant, link, state, state_version,
		reason, next_at, created_at, updated_at) VALUES (@id, @authorization, @kind, @n, 100, @undoes, @reference, 'bank-a', @link, 'owed', 1, 'completion', @at, @at, @at)`,
		pgx.NamedArgs{"id": id, "authorization": authorization, "kind": kind, "n": n, "undoes": undoes, "reference": reference, "link": linkName, "at": at})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func nextDue(t *testing.T, db *pgtest.DB) time.Time {
	t.Helper()
	due, err := reversal.NextDue(t.Context(), db.Pool, linkName)
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// TestDutiesOfOneAuthorizationGoInTheirOrder, and what waits for another one wakes nobody.
func TestDutiesOfOneAuthorizationGoInTheirOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	authorization := original(t, db, 1)
	first := numbered(t, db, authorization, 1, nil, now.Add(-2*time.Second))
	numbered(t, db, authorization, 2, nil, now.Add(-time.Second))
	other := numbered(t, db, original(t, db, 2), 1, nil, now.Add(-time.Millisecond))
	claimed := claim(t, db, 1, now, 10)
	if len(claimed) != 2 || (claimed[0].ID != first && claimed[1].ID != first) || (claimed[0].ID != other && claimed[1].ID != other) {
		t.Fatalf("claimed %+v, want the first of each authorization", claimed)
	}
	if due := nextDue(t, db); !due.After(now) {
		t.Fatalf("the worker looks again at %s for a duty that waits for another", due)
	}
	resolve(t, db, result{id: first, outcome: reversal.AttemptAcknowledged})
	if claimed := claim(t, db, 1, now, 10); len(claimed) != 1 || claimed[0].Number != 2 {
		t.Fatalf("then claimed %+v, want the second", claimed)
	}
}

// TestUndoingWaitsForItsCapture: a capture that the scheme refused is no capture to undo until a person has seen to it.
func TestUndoingWaitsForItsCapture(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	authorization := original(t, db, 1)
	capture := numbered(t, db, authorization, 1, nil, now.Add(-time.Second))
	undo := numbered(t, db, authorization, 2, &capture, now)
	refused := claim(t, db, 1, now, 10)[0]
	if _, to := resolve(t, db, result{id: capture, attempt: 1, claimed: refused.NextAt, outcome: reversal.AttemptRefused}); to != reversal.Suspended {
		t.Fatalf("the refused capture is %s", to)
	}
	if claimed := claim(t, db, 1, now, 10); len(claimed) != 0 || !nextDue(t, db).IsZero() {
		t.Fatalf("claimed %+v, and the worker looks again at %s", claimed, nextDue(t, db))
	}
	if err := resume(t, db, capture, "the scheme has mended it", now); err != nil {
		t.Fatal(err)
	}
	again := claim(t, db, 1, now.Add(time.Hour), 10)
	if len(again) != 1 || again[0].ID != capture {
		t.Fatalf("claimed %+v, want the capture", again)
	}
	resolve(t, db, result{id: capture, outcome: reversal.AttemptAcknowledged})
	if claimed := claim(t, db, 1, now.Add(time.Hour), 10); len(claimed) != 1 || claimed[0].ID != undo || claimed[0].Undoes == nil || claimed[0].Undoes.ID != capture {
		t.Fatalf("claimed %+v, want what undoes it", claimed)
	}
}
