package reversal_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

// age sets since when a duty is owed.
func age(t *testing.T, db *pgtest.DB, id uuid.UUID, since time.Time) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), `UPDATE duty SET created_at = $2 WHERE id = $1`, id, since); err != nil {
		t.Fatal(err)
	}
}

func callAttention(t *testing.T, db *pgtest.DB, link string, before, now time.Time) (n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it waits for no lock, so this is for a fault only
	defer cancel()
	err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) (err error) {
		n, err = reversal.CallAttention(ctx, tx, link, before, now)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func count(t *testing.T, db *pgtest.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// openExceptions counts those of one duty.
func openExceptions(t *testing.T, db *pgtest.DB, id uuid.UUID, kind string) int {
	t.Helper()
	return count(t, db, `SELECT count(*) FROM exception WHERE subject_id = $1 AND kind = $2 AND closed_at IS NULL`, id, kind)
}

func TestAttentionIsCalledForAge(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	before := now.Add(-15 * time.Minute)
	var ids []uuid.UUID
	for i := range 5 {
		ids = append(ids, uuid.New())
		owe(t, db, ids[i], original(t, db, i+1), now.Add(-time.Hour))
		age(t, db, ids[i], before.Add(-time.Second))
	}
	old, young, closed, suspended, called := ids[0], ids[1], ids[2], ids[3], ids[4]
	age(t, db, young, before)
	resolve(t, db, result{id: closed, outcome: reversal.AttemptAcknowledged})
	resolve(t, db, result{id: suspended, claimed: now.Add(-time.Hour), outcome: reversal.AttemptRefused, attention: true})
	resolve(t, db, result{id: called, claimed: now.Add(-time.Hour), outcome: reversal.AttemptSilent, nextAt: now, attention: true})

	if n := callAttention(t, db, "visa-b", before, now); n != 0 {
		t.Fatalf("%d duties of another link", n)
	}
	schedule := read(t, db, old)
	if n := callAttention(t, db, linkName, before, now); n != 1 {
		t.Fatalf("called for %d duties, want the old one alone", n)
	}
	after := read(t, db, old)
	if !after.Attention || after.State != reversal.Owed || after.Version != schedule.Version || !after.NextAt.Equal(schedule.NextAt) || after.Attempts != 0 {
		t.Errorf("the old duty is %+v, was %+v", after, schedule)
	}
	if n := count(t, db, `SELECT count(*) FROM exception WHERE subject_id = $1 AND kind = 'reversal_unacknowledged' AND tenant = 'bank-a' AND link = $2
		AND opened_at = $3 AND detail LIKE '%attention_after%'`, old, linkName, now); n != 1 {
		t.Errorf("%d exceptions", n)
	}
	if n := count(t, db, `SELECT count(*) FROM event WHERE subject_id = $1 AND kind = 'reversal.needs_attention' AND detail = 'reversal_unacknowledged' AND tenant = 'bank-a'`, old); n != 1 {
		t.Errorf("%d events", n)
	}
	if n := callAttention(t, db, linkName, before, now.Add(time.Second)); n != 0 {
		t.Errorf("called again for %d duties", n)
	}
	if n := count(t, db, `SELECT count(*) FROM exception`) + count(t, db, `SELECT count(*) FROM event`); n != 2 {
		t.Errorf("%d exceptions and events, want one of each", n)
	}
}

// TestAttentionIsCalledOnce: a duty whose exception is open already gets no second one, and no second event.
func TestAttentionIsCalledOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now, id := moment(), uuid.New()
	owe(t, db, id, original(t, db, 1), now)
	age(t, db, id, now.Add(-time.Hour))
	if _, err := db.Pool.Exec(t.Context(), `INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
		VALUES ($1, 'reversal_unacknowledged', 'bank-a', $2, $3, '', now())`, uuid.New(), linkName, id); err != nil {
		t.Fatal(err)
	}
	if n := callAttention(t, db, linkName, now, now); n != 1 || !read(t, db, id).Attention {
		t.Fatalf("marked %d", n)
	}
	if n := openExceptions(t, db, id, "reversal_unacknowledged") + count(t, db, `SELECT count(*) FROM event`); n != 1 {
		t.Fatalf("%d exceptions and events, want the first exception alone", n)
	}
}

func TestAttentionIsBoundedOldestFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	const limit, all = 500, 620
	template := original(t, db, 1)
	_, err := db.Pool.Exec(t.Context(), `WITH made AS (
			INSERT INTO card_authorization SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid(), 'rrn', lpad((n + 1000)::text, 12, '0')))).*
			FROM card_authorization a, generate_series(1, $2) n WHERE a.id = $1 RETURNING id, rrn::int AS n)
		INSERT INTO duty (id, authorization_id, kind, tenant, link, state, state_version, reason, next_at, created_at, updated_at)
		SELECT gen_random_uuid(), id, 'reversal', 'bank-a', $3, 'owed', 1, 'timeout', $4, $4::timestamptz - make_interval(secs => n), $4 FROM made`, template, all, linkName, now)
	if err != nil {
		t.Fatal(err)
	}
	if n := callAttention(t, db, linkName, now, now); n != limit {
		t.Fatalf("called for %d duties at once, want %d", n, limit)
	}
	if n := count(t, db, `SELECT count(*) FROM duty WHERE needs_attention AND created_at > (SELECT min(created_at) FROM duty WHERE NOT needs_attention)`); n != 0 {
		t.Errorf("%d duties came before older ones", n)
	}
	if n := callAttention(t, db, linkName, now, now); n != all-limit {
		t.Fatalf("then for %d, want the other %d", n, all-limit)
	}
	if n := count(t, db, `SELECT count(DISTINCT subject_id) FROM exception`); n != all {
		t.Errorf("%d exceptions", n)
	}
}

// TestAttentionWaitsForNobody: a duty that somebody is claiming or resolving is taken by the next call.
func TestAttentionWaitsForNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now, held, free := moment(), uuid.New(), uuid.New()
	for i, id := range []uuid.UUID{held, free} {
		owe(t, db, id, original(t, db, i+1), now.Add(time.Duration(i)*time.Second))
		age(t, db, id, now.Add(-time.Hour))
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if _, err := reversal.Claim(t.Context(), tx, linkName, 1, now, now.Add(time.Minute), 1); err != nil {
			return err
		}
		if n := callAttention(t, db, linkName, now, now); n != 1 || !read(t, db, free).Attention {
			t.Errorf("called for %d duties while another was held", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := callAttention(t, db, linkName, now, now); n != 1 || !read(t, db, held).Attention {
		t.Fatalf("then called for %d duties", n)
	}
}
