package reversal_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

// suspended makes a duty that the scheme refused at its second attempt, with the history and the exception of that.
func suspended(t *testing.T, db *pgtest.DB, stan int, now time.Time) reversal.Duty {
	t.Helper()
	id, code := uuid.New(), "30"
	owe(t, db, id, original(t, db, stan), now)
	first := claim(t, db, 1, now, 1)[0]
	resolve(t, db, result{id: id, attempt: 1, claimed: first.NextAt, outcome: reversal.AttemptSilent, nextAt: now})
	second := claim(t, db, 1, now, 1)[0]
	if from, to := resolve(t, db, result{id: id, attempt: 2, claimed: second.NextAt, outcome: reversal.AttemptRefused, code: &code, attention: true}); from != reversal.Owed || to != reversal.Suspended {
		t.Fatalf("refused from %q to %q", from, to)
	}
	if _, err := db.Pool.Exec(t.Context(), `WITH history AS (
			INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
			VALUES ($1, 1, 'reversal', NULL, 'owed', 'timeout', $3::timestamptz - interval '1 hour'), ($1, 2, 'reversal', 'owed', 'suspended', 'refused', $3))
		INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at) VALUES ($2, 'reversal_refused', 'bank-a', 'visa-a', $1, '', $3)`,
		id, uuid.New(), now); err != nil {
		t.Fatal(err)
	}
	return second
}

func resume(t *testing.T, db *pgtest.DB, id uuid.UUID, reason string, now time.Time) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return reversal.Resume(t.Context(), tx, id, reason, now) })
}

func TestSuspendedIsResumedAndAcknowledged(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment().Add(time.Second) // a person comes later than what was refused
	refused, other := suspended(t, db, 1, now.Add(-time.Hour)), suspended(t, db, 2, now)
	age(t, db, refused.ID, now.Add(-24*time.Hour))
	if err := resume(t, db, refused.ID, "  the scheme has fixed its table  ", now); err != nil {
		t.Fatal(err)
	}
	r := read(t, db, refused.ID)
	if r.State != reversal.Owed || r.Version != 3 || r.Attempts != 2 || r.Attention || !r.NextAt.Equal(now) || r.Epoch != nil || *r.Code != "30" {
		t.Fatalf("resumed as %+v", r)
	}
	if n := count(t, db, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND state_version = 3 AND subject = 'reversal' AND from_state = 'suspended'
		AND to_state = 'owed' AND reason = 'the scheme has fixed its table' AND at = $2`, refused.ID, now); n != 1 {
		t.Errorf("%d rows of history", n)
	}
	if n := openExceptions(t, db, refused.ID, "reversal_refused"); n != 0 {
		t.Errorf("%d exceptions are open", n)
	}
	if r := read(t, db, other.ID); r.State != reversal.Suspended || openExceptions(t, db, other.ID, "reversal_refused") != 1 {
		t.Errorf("the other duty is %+v", r)
	}
	// What the refused attempt's step would write when it ran again now must not suspend the duty once more.
	if from, to := resolve(t, db, result{id: refused.ID, attempt: 2, claimed: refused.NextAt, outcome: reversal.AttemptRefused, attention: true}); from != "" {
		t.Errorf("the old refusal moved it to %q", to)
	}
	next := claim(t, db, 2, now, 10)
	if len(next) != 1 || next[0].ID != refused.ID || next[0].Attempt != 3 {
		t.Fatalf("claimed %+v, want the third attempt at once", next)
	}
	if from, to := resolve(t, db, result{id: refused.ID, attempt: 3, claimed: next[0].NextAt, outcome: reversal.AttemptAcknowledged}); from != reversal.Owed || to != reversal.Acknowledged {
		t.Fatalf("acknowledged from %q to %q", from, to)
	}
	if r := read(t, db, refused.ID); r.Version != 4 {
		t.Errorf("closed as %+v", r)
	}
}

// TestResumedDutyIsNotAnOldOne: its age counts from the person's decision.
func TestResumedDutyIsNotAnOldOne(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	id := suspended(t, db, 1, moment().Add(-time.Hour)).ID
	now := moment().Add(time.Second) // a person comes later than what was refused
	age(t, db, id, now.Add(-24*time.Hour))
	if err := resume(t, db, id, "told to go on", now); err != nil {
		t.Fatal(err)
	}
	if n := callAttention(t, db, linkName, now, now); n != 0 {
		t.Fatal("called at once for what a person has just resumed")
	}
	if n := callAttention(t, db, linkName, now.Add(time.Microsecond), now.Add(time.Hour)); n != 1 || openExceptions(t, db, id, "reversal_unacknowledged") != 1 {
		t.Fatalf("called for %d duties once it was old again", n)
	}
}

func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	if err := resume(t, db, uuid.New(), "no such one", now); !errors.Is(err, reversal.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	id := suspended(t, db, 1, now).ID
	for name, reason := range map[string]string{
		"none": " ", "too long": strings.Repeat("é", 201), "two lines": "a\nb", "not UTF-8": "\xff", "card number": "for 4111111111111111",
		"card number in groups": "for 4111 1111-1111 1111",
	} {
		if err := resume(t, db, id, reason, now); err == nil || errors.Is(err, reversal.ErrNotSuspended) || strings.Contains(err.Error(), "1111") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := read(t, db, id); r.State != reversal.Suspended || r.Version != 2 {
		t.Fatalf("refused reasons left %+v", r)
	}
	if err := resume(t, db, id, strings.Repeat("é", 199)+"1", now); err != nil {
		t.Fatalf("the longest reason: %v", err)
	}
	if err := resume(t, db, id, "again", now); !errors.Is(err, reversal.ErrNotSuspended) || !strings.Contains(err.Error(), "owed") {
		t.Errorf("owed: %v", err)
	}
	resolve(t, db, result{id: id, outcome: reversal.AttemptAcknowledged})
	if err := resume(t, db, id, "again", now); !errors.Is(err, reversal.ErrNotSuspended) || !strings.Contains(err.Error(), "acknowledged") {
		t.Errorf("acknowledged: %v", err)
	}
	if n := count(t, db, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND from_state = 'suspended'`, id); n != 1 {
		t.Errorf("%d rows of history", n)
	}
}

// TestResumeLeavesNothingOfARolledBackTransaction: the caller's transaction has all of it or nothing.
func TestResumeLeavesNothingOfARolledBackTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now, undone := moment(), errors.New("undone")
	id := suspended(t, db, 1, now).ID
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return errors.Join(reversal.Resume(t.Context(), tx, id, "tried", now), undone)
	})
	if err == nil || err.Error() != "undone" {
		t.Fatal(err)
	}
	if r := read(t, db, id); r.State != reversal.Suspended || r.Version != 2 || !r.Attention || openExceptions(t, db, id, "reversal_refused") != 1 {
		t.Fatalf("left %+v", r)
	}
	if n := count(t, db, `SELECT count(*) FROM state_history WHERE subject_id = $1`, id); n != 2 {
		t.Fatalf("%d rows of history", n)
	}
}

// TestTwoPersonsResumeOnce: who comes second waits for the first, and hears what the duty then is.
func TestTwoPersonsResumeOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	id := suspended(t, db, 1, now).ID
	owner, err := pgx.Connect(t.Context(), db.URL) // who sees what other sessions wait for
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(context.Background())
	second := make(chan error, 1)
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := reversal.Resume(t.Context(), tx, id, "the first", now); err != nil {
			return err
		}
		go func() { second <- resume(t, db, id, "the second", now) }()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			var waiting int
			if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
				return err
			}
			if waiting > 0 {
				return nil
			}
			if time.Now().After(deadline) {
				return errors.New("the second does not wait")
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, reversal.ErrNotSuspended) {
		t.Errorf("the second: %v", err)
	}
	if r := read(t, db, id); r.State != reversal.Owed || r.Version != 3 {
		t.Fatalf("left %+v", r)
	}
}

func TestSelectOpenPagesByLinkAndAge(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	var want []uuid.UUID
	for i := range 5 {
		id := uuid.New()
		want = append(want, id)
		owe(t, db, id, original(t, db, i+1), now.Add(time.Hour))
		age(t, db, id, now.Add(time.Duration(i/2-9)*time.Minute)) // two share their moment
	}
	refused := suspended(t, db, 6, now).ID
	want = append(want, refused)
	closed := uuid.New()
	owe(t, db, closed, original(t, db, 7), now)
	resolve(t, db, result{id: closed, outcome: reversal.AttemptAcknowledged})

	pages := func(state reversal.State) (all []reversal.Open) {
		for after := (reversal.Open{}); ; after = all[len(all)-1] {
			page, err := reversal.SelectOpen(t.Context(), db.Pool, state, after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if all = append(all, page...); len(page) < 2 {
				return all
			}
		}
	}
	all := pages("")
	seen := map[uuid.UUID]bool{}
	for i, r := range all {
		seen[r.ID] = true
		if i > 0 && r.CreatedAt.Before(all[i-1].CreatedAt) {
			t.Errorf("%s comes after a younger one", r.ID)
		}
	}
	if len(all) != len(want) || len(seen) != len(want) || seen[closed] {
		t.Fatalf("%d rows of %d duties, want %d", len(all), len(seen), len(want))
	}
	if owed := pages(reversal.Owed); len(owed) != 5 || owed[0].State != reversal.Owed || owed[0].ResponseCode != "" || !owed[0].NextAt.Equal(now.Add(time.Hour)) {
		t.Errorf("owed: %+v", owed)
	}
	if list := pages(reversal.Suspended); len(list) != 1 || list[0].ID != refused || list[0].Attempts != 2 || list[0].ResponseCode != "30" || list[0].Link != linkName || list[0].AuthorizationID == uuid.Nil {
		t.Errorf("suspended: %+v", list)
	}
}
