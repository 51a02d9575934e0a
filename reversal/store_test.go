package reversal_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

const linkName = "visa-a"

// original inserts an authorisation that was given up.
func original(t *testing.T, db *pgtest.DB, stan int) uuid.UUID {
	t.Helper()
	id := uuid.New()
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO card_authorization (id, tenant, client_reference, link, type, state, state_version, mti, stan, rrn,
		transmission_date_time, amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account,
		settlement_account, owner_epoch, created_at, deadline_at, updated_at, answer_status)
		VALUES (@id, 'bank-a', @stan, @link, 'purchase', 'timed_out', 2, '0100', @stan, lpad(@stan, 12, '0'), '0101000000', 1000, 'EUR',
		'411111******1111', '', 'k1', '', '{}', 1, 2, 1, now(), now(), now(), 201)`,
		pgx.NamedArgs{"id": id, "stan": fmt.Sprintf("%06d", stan), "link": linkName})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// owe runs OweFrom for one duty and reports whether a row was added.
func owe(t *testing.T, db *pgtest.DB, id, authorization uuid.UUID, nextAt time.Time) bool {
	t.Helper()
	tag, err := db.Pool.Exec(t.Context(), `WITH duty AS (SELECT @id::uuid AS id, @authorization::uuid AS authorization_id, 'bank-a'::text AS tenant,
		@link::text AS link, 'timeout'::text AS reason, @next_at::timestamptz AS next_at, now() AS at) `+reversal.OweFrom("duty"),
		pgx.NamedArgs{"id": id, "authorization": authorization, "link": linkName, "next_at": nextAt})
	if err != nil {
		t.Fatal(err)
	}
	return tag.RowsAffected() == 1
}

func claim(t *testing.T, db *pgtest.DB, epoch int64, now time.Time, limit int) []reversal.Duty {
	t.Helper()
	var claimed []reversal.Duty
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) (err error) {
		claimed, err = reversal.Claim(t.Context(), tx, linkName, epoch, now, now.Add(time.Minute), limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// result is one row that ResolveFrom takes.
type result struct {
	id        uuid.UUID
	attempt   int32
	claimed   time.Time // until; zero when no claim is known
	outcome   reversal.Outcome
	code      *string
	nextAt    time.Time
	attention bool
}

// resolve runs ResolveFrom; from is the state before, empty when no row moved.
func resolve(t *testing.T, db *pgtest.DB, r result) (from, to reversal.State) {
	t.Helper()
	err := db.Pool.QueryRow(t.Context(), `WITH u AS (SELECT @id::uuid AS id, @attempt::int4 AS attempt, @claimed::timestamptz AS claimed_until, @outcome::text AS outcome, @code::text AS response_code,
		@next_at::timestamptz AS next_at, now() AS at, @attention::bool AS attention), resolved AS (`+reversal.ResolveFrom("u", "ARRAY[@id::uuid]")+`)
		SELECT coalesce(max(from_state), ''), coalesce(max(state), '') FROM resolved`,
		pgx.NamedArgs{"id": r.id, "attempt": r.attempt, "claimed": pgtype.Timestamptz{Time: r.claimed, Valid: !r.claimed.IsZero()}, "outcome": string(r.outcome), "code": r.code, "next_at": r.nextAt, "attention": r.attention}).Scan(&from, &to)
	if err != nil {
		t.Fatal(err)
	}
	return from, to
}

// row is a duty as it stands.
type row struct {
	State     reversal.State
	Version   int32
	Attempts  int32
	NextAt    time.Time
	Epoch     *int64
	Code      *string
	Attention bool
}

func read(t *testing.T, db *pgtest.DB, id uuid.UUID) (r row) {
	t.Helper()
	err := db.Pool.QueryRow(t.Context(), `SELECT state, state_version, attempts, next_at, claim_epoch, response_code, needs_attention FROM duty WHERE id = $1`, id).
		Scan(&r.State, &r.Version, &r.Attempts, &r.NextAt, &r.Epoch, &r.Code, &r.Attention)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func moment() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func TestS22_AnAuthorizationKeepsItsFirstDuty(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	authorization, first := original(t, db, 1), uuid.New()
	if !owe(t, db, first, authorization, moment()) {
		t.Fatal("the first duty was not owed")
	}
	if owe(t, db, uuid.New(), authorization, moment()) {
		t.Fatal("a second duty was owed")
	}
	if r := read(t, db, first); r.State != reversal.Owed || r.Version != 1 || r.Attempts != 0 || r.Attention {
		t.Fatalf("duty %+v", r)
	}
}

func TestClaimCountsTheAttemptAndKeepsOthersAway(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	var due []uuid.UUID
	for i := range 3 {
		due = append(due, uuid.New())
		owe(t, db, due[i], original(t, db, i+1), now.Add(time.Duration(i-3)*time.Second))
	}
	notYet := uuid.New()
	owe(t, db, notYet, original(t, db, 9), now.Add(time.Second))

	claimed := claim(t, db, 7, now, 2)
	if len(claimed) != 2 {
		t.Fatalf("%d claimed, want 2", len(claimed))
	}
	for _, d := range claimed {
		if d.ID == due[2] || d.Attempt != 1 || d.Link != linkName || d.Reason != reversal.Timeout || d.Tenant != "bank-a" || d.AuthorizationID == uuid.Nil {
			t.Fatalf("claimed %+v, want the oldest first", d)
		}
		if r := read(t, db, d.ID); r.Attempts != 1 || r.Epoch == nil || *r.Epoch != 7 || !r.NextAt.Equal(now.Add(time.Minute)) {
			t.Fatalf("a claimed duty is %+v", r)
		}
	}
	if again := claim(t, db, 8, now, 10); len(again) != 1 || again[0].ID != due[2] {
		t.Fatalf("the other daemon claimed %+v, want the third alone", again)
	}
	if later := claim(t, db, 8, now.Add(time.Minute), 10); len(later) != 4 {
		t.Fatalf("%d claimed once the claims ran out, want all 4", len(later))
	}
}

func TestClaimSkipsWhatAnotherIsClaiming(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	a, b := uuid.New(), uuid.New()
	owe(t, db, a, original(t, db, 1), now.Add(-2*time.Second))
	owe(t, db, b, original(t, db, 2), now.Add(-time.Second))
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		first, err := reversal.Claim(t.Context(), tx, linkName, 1, now, now.Add(time.Minute), 1)
		if err != nil {
			return err
		}
		if second := claim(t, db, 2, now, 10); len(first) != 1 || len(second) != 1 || first[0].ID == second[0].ID {
			return fmt.Errorf("one claimed %v, the other %v", first, second)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	code := func(c string) *string { return &c }
	next := moment().Add(time.Hour)
	for i, c := range []struct {
		name     string
		attempts int32 // counted before
		state    reversal.State
		result   result
		from, to reversal.State
		left     int32 // attempts afterwards
		version  int32
		attent   bool
		moved    bool // the schedule
	}{
		{"acknowledged", 1, reversal.Owed, result{attempt: 1, outcome: reversal.AttemptAcknowledged, code: code("00")}, reversal.Owed, reversal.Acknowledged, 1, 2, false, false},
		{"acknowledged by an old attempt", 3, reversal.Owed, result{attempt: 1, outcome: reversal.AttemptAcknowledged, code: code("25")}, reversal.Owed, reversal.Acknowledged, 3, 2, false, false},
		{"acknowledged while suspended", 1, reversal.Suspended, result{attempt: 1, outcome: reversal.AttemptAcknowledged, code: code("00")}, reversal.Suspended, reversal.Acknowledged, 1, 2, false, false},
		{"acknowledged twice", 1, reversal.Acknowledged, result{attempt: 1, outcome: reversal.AttemptAcknowledged}, "", "", 1, 1, false, false},
		{"refused", 2, reversal.Owed, result{attempt: 2, outcome: reversal.AttemptRefused, code: code("30"), attention: true}, reversal.Owed, reversal.Suspended, 2, 2, true, false},
		{"refused by an old attempt", 2, reversal.Owed, result{attempt: 1, outcome: reversal.AttemptRefused, attention: true}, "", "", 2, 1, false, false},
		{"refused while suspended", 1, reversal.Suspended, result{attempt: 1, outcome: reversal.AttemptRefused, attention: true}, "", "", 1, 1, false, false},
		{"silence", 4, reversal.Owed, result{attempt: 4, outcome: reversal.AttemptSilent, nextAt: next}, reversal.Owed, reversal.Owed, 4, 1, false, true},
		{"silence past the threshold", 4, reversal.Owed, result{attempt: 4, outcome: reversal.AttemptSilent, nextAt: next, attention: true}, reversal.Owed, reversal.Owed, 4, 1, true, true},
		{"silence of an old attempt", 4, reversal.Owed, result{attempt: 3, outcome: reversal.AttemptSilent, nextAt: next, attention: true}, "", "", 4, 1, false, false},
		{"unsent is not counted", 2, reversal.Owed, result{attempt: 2, outcome: reversal.AttemptUnsent, nextAt: next}, reversal.Owed, reversal.Owed, 1, 1, false, true},
		{"silence after the end", 1, reversal.Acknowledged, result{attempt: 1, outcome: reversal.AttemptSilent, nextAt: next}, "", "", 1, 1, false, false},
	} {
		id := uuid.New()
		owe(t, db, id, original(t, db, i+1), moment())
		if _, err := db.Pool.Exec(t.Context(), `UPDATE duty SET attempts = $2, state = $3, closed_as = CASE WHEN $3 = 'acknowledged' THEN 'acknowledged' END, claim_epoch = 1 WHERE id = $1`, id, c.attempts, string(c.state)); err != nil {
			t.Fatal(err)
		}
		c.result.id, c.result.claimed = id, read(t, db, id).NextAt
		from, to := resolve(t, db, c.result)
		r := read(t, db, id)
		if from != c.from || to != c.to {
			t.Errorf("%s: moved from %q to %q, want %q to %q", c.name, from, to, c.from, c.to)
		}
		if r.Attempts != c.left || r.Version != c.version || r.Attention != c.attent || r.NextAt.Equal(next) != c.moved {
			t.Errorf("%s: left %+v", c.name, r)
		}
		if (r.Epoch == nil) != (c.to != "") {
			t.Errorf("%s: the claim is %v", c.name, r.Epoch)
		}
		if c.to != "" && c.result.code != nil && (r.Code == nil || *r.Code != *c.result.code) {
			t.Errorf("%s: response code %v", c.name, r.Code)
		}
	}
}

// TestResultOfAnEarlierClaimUndoesNothing: an attempt of which nothing left gives its number back, so the next claim has it too.
// What is written down again for the first claim must not touch the second.
func TestResultOfAnEarlierClaimUndoesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	for i, outcome := range []reversal.Outcome{reversal.AttemptUnsent, reversal.AttemptSilent, reversal.AttemptRefused} {
		now, id := moment(), uuid.New()
		owe(t, db, id, original(t, db, i+1), now)
		first := claim(t, db, 1, now, 1)[0]
		unsent := result{id: id, attempt: first.Attempt, claimed: first.NextAt, outcome: reversal.AttemptUnsent, nextAt: now.Add(time.Second)}
		if _, to := resolve(t, db, unsent); to != reversal.Owed {
			t.Fatalf("the first claim's result left %q", to)
		}
		if from, _ := resolve(t, db, unsent); from != "" {
			t.Fatal("the first claim's result moved the duty twice")
		}
		second := claim(t, db, 1, now.Add(time.Second), 1)[0]
		if second.Attempt != first.Attempt || second.NextAt.Equal(first.NextAt) {
			t.Fatalf("claims %+v and %+v, want one number and two times", first, second)
		}
		before := read(t, db, id)
		again := unsent
		again.outcome, again.attention = outcome, true
		if from, to := resolve(t, db, again); from != "" || to != "" {
			t.Errorf("%s of the first claim moved the duty from %q to %q", outcome, from, to)
		}
		if diff := cmp.Diff(before, read(t, db, id)); diff != "" {
			t.Errorf("%s of the first claim changed the second (-before +after):\n%s", outcome, diff)
		}
		if from, _ := resolve(t, db, result{id: id, attempt: second.Attempt, outcome: reversal.AttemptSilent, nextAt: now}); from != "" {
			t.Error("silence without a claim moved the duty")
		}
		silent := result{id: id, attempt: second.Attempt, claimed: second.NextAt, outcome: reversal.AttemptSilent, nextAt: now.Add(time.Hour)}
		if from, _ := resolve(t, db, silent); from != reversal.Owed || !read(t, db, id).NextAt.Equal(silent.nextAt) {
			t.Errorf("the second claim's own result moved nothing: %+v", read(t, db, id))
		}
		if _, to := resolve(t, db, result{id: id, attempt: 1, outcome: reversal.AttemptAcknowledged}); to != reversal.Acknowledged {
			t.Errorf("an acknowledgement that knows no claim left %q", to)
		}
	}
}

func TestReleaseClaimsOfEndedDaemonsOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	for i, id := range ids {
		owe(t, db, id, original(t, db, i+1), now)
		claim(t, db, int64(i+1), now, 1)
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return reversal.ReleaseClaims(t.Context(), tx, []int64{1}, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	released := claim(t, db, 3, now, 10)
	if len(released) != 1 || released[0].ID != ids[0] || released[0].Attempt != 2 {
		t.Fatalf("released %+v, want the ended daemon's duty for its second attempt", released)
	}
}

func TestNextDueAndBacklog(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	ctx, now := context.Background(), moment()
	if due, err := reversal.NextDue(ctx, db.Pool, linkName); err != nil || !due.IsZero() {
		t.Fatalf("nothing is owed, but due at %s, %v", due, err)
	}
	var ids []uuid.UUID
	for i := range 4 {
		ids = append(ids, uuid.New())
		owe(t, db, ids[i], original(t, db, i+1), now.Add(time.Duration(10+i)*time.Minute))
	}
	resolve(t, db, result{id: ids[0], outcome: reversal.AttemptAcknowledged})
	resolve(t, db, result{id: ids[1], claimed: now.Add(11 * time.Minute), outcome: reversal.AttemptRefused, attention: true})
	if due, err := reversal.NextDue(ctx, db.Pool, linkName); err != nil || !due.Equal(now.Add(12*time.Minute)) {
		t.Fatalf("due at %s, %v, want the third", due, err)
	}
	if due, err := reversal.NextDue(ctx, db.Pool, "other"); err != nil || !due.IsZero() {
		t.Fatalf("another link's duty is due here at %s, %v", due, err)
	}
	backlog, err := reversal.SelectBacklog(ctx, db.Pool)
	if err != nil || len(backlog) != 2 {
		t.Fatalf("backlog %+v, %v", backlog, err)
	}
	if b := backlog[0]; b.Link != linkName || b.State != reversal.Owed || b.Count != 2 || b.Attention != 0 || b.OldestAt.IsZero() {
		t.Errorf("owed: %+v", b)
	}
	if b := backlog[1]; b.State != reversal.Suspended || b.Count != 1 || b.Attention != 1 {
		t.Errorf("suspended: %+v", b)
	}
}

// TestNothingToUndoClosesAReopenedDutyOnlyAsItsClaimSays: said of an earlier attempt, it is older than what reopened the duty.
func TestNothingToUndoClosesAReopenedDutyOnlyAsItsClaimSays(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	now := moment()
	for stan, c := range []struct {
		outcome reversal.Outcome
		claimed bool
		closes  bool
	}{{reversal.AttemptNothingToUndo, false, false}, {reversal.AttemptNothingToUndo, true, true}, {reversal.AttemptAcknowledged, false, true}} {
		id := uuid.New()
		owe(t, db, id, original(t, db, stan+1), now)
		claimed := claim(t, db, 1, now, 1)[0]
		if _, err := db.Pool.Exec(t.Context(), `UPDATE duty SET reopened = 1 WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		r := result{id: id, attempt: 1, outcome: c.outcome}
		if c.claimed {
			r.claimed = claimed.NextAt
		}
		if from, _ := resolve(t, db, r); (from == reversal.Owed) != c.closes {
			t.Errorf("%+v: moved from %q", c, from)
		}
	}
}
