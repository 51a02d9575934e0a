package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestPostedRowReadsBackWhole(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.posting(uuid.New(), Debit, 2, Posted, 1050)
	p.Transaction = 7
	p.ValueDate = time.Date(2026, 3, 16, 0, 0, 0, 0, time.UTC)
	b.post(noon, p)
	got, err := EntryByKey(b.ctx, b.pool, p.StepKey())
	if err != nil {
		t.Fatal(err)
	}
	if got.Posting != p || !got.BookedAt.Equal(noon) || got.ID == 0 || got.Tx == 0 {
		t.Errorf("posted %+v, read %+v", p, got)
	}
	other := p.StepKey()
	other.Number++
	if _, err := EntryByKey(b.ctx, b.pool, other); !errors.Is(err, ErrNoPosting) {
		t.Errorf("a key never posted gives %v, want ErrNoPosting", err)
	}
}

func TestSameKeyIsPostedOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.posting(uuid.New(), Hold, 1, Pending, 1050)
	b.post(noon, p)
	changed := p
	changed.Money.Minor, changed.ClientReference = 9999, "another reference"
	if hits := b.postHits(noon, p, changed); hits != 2 {
		t.Errorf("a repeat and a changed repeat give %d hits, want 2", hits)
	}
	if hits := b.postHits(noon, changed, b.posting(uuid.New(), Hold, 1, Pending, 5)); hits != 1 {
		t.Errorf("a repeat beside a new posting gives %d hits, want 1", hits)
	}
	b.checkBalance(b.customer, time.Time{}, "0.00 10.55 -10.55")
}

func TestSecondGuardHoldsByClientReference(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	first := b.posting(uuid.New(), Hold, 1, Pending, 1050)
	b.post(noon, first)
	again := first
	again.Intent = uuid.New()
	if hits := b.postHits(noon, again); hits != 1 {
		t.Errorf("the same reference under another intent gives %d hits, want 1", hits)
	}
	otherTenant := again
	otherTenant.Tenant = "umbrella"
	otherLeg := again
	otherLeg.Transaction = 1
	if hits := b.postHits(noon, otherTenant); hits != 0 {
		t.Error("another tenant's equal reference is refused")
	}
	otherLeg.Intent = uuid.New()
	if hits := b.postHits(noon, otherLeg); hits != 0 {
		t.Error("another transaction of the same reference is refused")
	}
}

func TestConcurrentCopiesPostOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	intent := uuid.New()
	const copies = 16
	results := make(chan int, copies)
	for range copies {
		go func() {
			hits := -1
			err := pgx.BeginFunc(b.ctx, b.pool, func(tx pgx.Tx) (err error) {
				hits, err = Post(b.ctx, tx, []Posting{
					b.posting(intent, Release, 1, Pending, 1050), b.posting(intent, Debit, 1, Posted, 1050),
				}, noon)
				return err
			})
			if err != nil {
				t.Error(err)
			}
			results <- hits
		}()
	}
	hits := 0
	for range copies {
		hits += <-results
	}
	if want := 2 * (copies - 1); hits != want {
		t.Errorf("%d copies give %d hits, want %d", copies, hits, want)
	}
}

func TestPostRefusesBeforeSending(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.inTx(func(tx pgx.Tx) error {
		if _, err := Post(b.ctx, tx, []Posting{b.posting(uuid.New(), Hold, 1, Pending, 0)}, noon); err == nil {
			t.Error("an amount of 0 is posted")
		}
		if _, err := Post(b.ctx, tx, make([]Posting, maxPostingsPerStatement+1), noon); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("too many postings give %v", err)
		}
		// The transaction is still good: nothing was sent that could fail it.
		_, err := Post(b.ctx, tx, []Posting{b.posting(uuid.New(), Hold, 1, Pending, 1)}, noon)
		return err
	})
	b.checkBalance(b.customer, time.Time{}, "0.00 0.01 -0.01")
}

// The gateway's way of posting: a source built inside a larger statement.
func TestPostFromInsideAnotherStatement(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	intents := []uuid.UUID{uuid.New(), uuid.New()}
	b.post(noon, b.posting(intents[1], Debit, 1, Posted, 5))
	query := `
		WITH winner AS (
			SELECT * FROM unnest($1::uuid[]) AS u (id)
		), movement AS (
			SELECT id AS intent, 0::int2 AS transaction, step, 1::int2 AS number, layer, debit AS debit_account,
				credit AS credit_account, 1050::int8 AS amount_minor, 'EUR'::text AS currency, '2026-03-14'::date AS value_date,
				$4::timestamptz AS booked_at, 'test' AS source_ref, false AS correction, 'acme' AS tenant, id::text AS client_reference
			FROM winner CROSS JOIN (VALUES (2::int2, 1::int2, $3::int4, $2::int4), (3::int2, 2::int2, $2::int4, $3::int4))
				AS leg (step, layer, debit, credit)
		), posted AS (` + PostFrom("movement") + `)
		SELECT intent, transaction, step, number FROM posted ORDER BY step`
	rows, err := b.pool.Query(b.ctx, query, intents, b.customer.ID, b.settlement.ID, noon)
	if err != nil {
		t.Fatal(err)
	}
	posted := map[string]bool{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (key StepKey, err error) {
		err = row.Scan(&key.Intent, &key.Transaction, &key.Step, &key.Number)
		posted[key.String()] = true
		return key, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(posted) != 3 || posted[StepKey{Intent: intents[1], Step: Debit, Number: 1}.String()] {
		t.Errorf("posted %v, want all but the one that was there", posted)
	}
}

func TestConstraintsRefuseWhatValidateWould(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	good := map[string]string{
		"amount_minor": "1", "booked_at": "now()", "debit_account": "1", "credit_account": "2", "value_date": "now()",
		"transaction": "0", "step": "1", "number": "1", "layer": "1", "correction": "false", "intent": "gen_random_uuid()",
		"currency": "'EUR'", "tenant": "'acme'", "client_reference": "gen_random_uuid()::text", "source_ref": "'test'",
	}
	insert := func(column, value string) error {
		var columns, values []string
		for c, v := range good {
			if c == column {
				v = value
			}
			columns, values = append(columns, c), append(values, v)
		}
		_, err := b.pool.Exec(b.ctx, fmt.Sprintf(`INSERT INTO ledger_posting (%s) VALUES (%s)`, strings.Join(columns, ", "), strings.Join(values, ", ")))
		return err
	}
	if err := insert("", ""); err != nil {
		t.Fatalf("a good row is refused: %v", err)
	}
	tests := []struct{ column, value, constraint string }{
		{"amount_minor", "0", "ledger_posting_amount_positive"},
		{"amount_minor", "-1", "ledger_posting_amount_positive"},
		{"credit_account", "1", "ledger_posting_two_accounts"},
		{"layer", "3", "ledger_posting_layer_known"},
		{"step", "7", "ledger_posting_step_known"},
		{"number", "0", "ledger_posting_number_positive"},
		{"transaction", "-1", "ledger_posting_transaction_not_negative"},
		{"correction", "true", "ledger_posting_correction_compensates"},
		{"step", "6", "ledger_posting_correction_compensates"},
	}
	for _, tt := range tests {
		var pgErr *pgconn.PgError
		if err := insert(tt.column, tt.value); !errors.As(err, &pgErr) || pgErr.ConstraintName != tt.constraint {
			t.Errorf("%s = %s gives %v, want a breach of %s", tt.column, tt.value, err, tt.constraint)
		}
	}
	for column := range good {
		var pgErr *pgconn.PgError
		if err := insert(column, "NULL"); !errors.As(err, &pgErr) || pgErr.Code != "23502" {
			t.Errorf("%s = NULL gives %v, want a not-null breach", column, err)
		}
	}
}

func TestReverseMirrorsOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.posting(uuid.New(), Debit, 1, Posted, 1050)
	p.ValueDate = time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	b.post(noon, p)
	later := noon.Add(48 * time.Hour)
	for attempt, wantHits := range []int{0, 1} {
		b.inTx(func(tx pgx.Tx) error {
			hits, err := Reverse(b.ctx, tx, p.StepKey(), "operator decision 12", later)
			if hits != wantHits {
				t.Errorf("attempt %d gives %d hits, want %d", attempt, hits, wantHits)
			}
			return err
		})
	}
	key, err := CompensationOf(p.StepKey())
	if err != nil {
		t.Fatal(err)
	}
	mirror, err := EntryByKey(b.ctx, b.pool, key)
	if err != nil {
		t.Fatal(err)
	}
	want := back(p)
	want.Step, want.Number, want.Correction, want.SourceRef = Compensate, 13, true, "operator decision 12"
	if mirror.Posting != want || !mirror.BookedAt.Equal(later) {
		t.Errorf("mirrored as %+v booked at %s, want %+v booked at %s", mirror.Posting, mirror.BookedAt, want, later)
	}
	b.checkBalance(b.customer, noon, "-10.50 0.00 -10.50")
	b.checkBalance(b.customer, time.Time{}, "0.00 0.00 0.00")
}

func TestReverseOfNothingIsAnError(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.inTx(func(tx pgx.Tx) error {
		if _, err := Reverse(b.ctx, tx, StepKey{Intent: uuid.New(), Step: Debit, Number: 1}, "test", noon); !errors.Is(err, ErrNoPosting) {
			t.Errorf("an unknown key gives %v, want ErrNoPosting", err)
		}
		if _, err := Reverse(b.ctx, tx, StepKey{Intent: uuid.New(), Step: Debit, Number: 1}, "", noon); err == nil {
			t.Error("a correction without a source is posted")
		}
		return nil
	})
}

// A refund and a correction move the same money back; only the correction is marked, and only it has a mirrored original.
func TestCorrectionIsToldApartFromRefund(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	bought, mistaken := b.posting(uuid.New(), Debit, 1, Posted, 1050), b.posting(uuid.New(), Debit, 1, Posted, 1050)
	refund := back(b.posting(uuid.New(), Return, 1, Posted, 1050))
	b.post(noon, bought, mistaken, refund)
	b.inTx(func(tx pgx.Tx) error {
		_, err := Reverse(b.ctx, tx, mistaken.StepKey(), "test", noon)
		return err
	})
	rows, err := b.pool.Query(b.ctx, `SELECT intent FROM ledger_posting WHERE correction`)
	if err != nil {
		t.Fatal(err)
	}
	corrected, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(corrected) != 1 || corrected[0] != mistaken.Intent {
		t.Errorf("marked as corrections: %v (%v), want one of %s", corrected, err, mistaken.Intent)
	}
	b.checkBalance(b.customer, time.Time{}, "0.00 0.00 0.00")
}

func TestAppendOnly(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1050))
	b.sealAll()
	owner := b.owner()
	columns := map[string]string{"ledger_posting": "amount_minor", "ledger_seal": "postings", "ledger_account": "tenant"}
	for table, column := range columns {
		for _, statement := range []string{
			fmt.Sprintf(`UPDATE %s SET %s = %s`, table, column, column), `DELETE FROM ` + table, `TRUNCATE ` + table,
		} {
			var pgErr *pgconn.PgError
			if _, err := b.pool.Exec(b.ctx, statement); !errors.As(err, &pgErr) || pgErr.Code != "42501" {
				t.Errorf("%s as the writer gives %v, want insufficient privilege", statement, err)
			}
			if _, err := owner.Exec(b.ctx, statement); err == nil || !strings.Contains(err.Error(), "append-only: ") {
				t.Errorf("%s as the owner gives %v, want the trigger's refusal", statement, err)
			}
		}
	}
	if _, err := b.pool.Exec(b.ctx, `DELETE FROM ledger_daily_total`); err == nil {
		t.Error("the writer may delete daily totals")
	}
	b.checkBalance(b.customer, time.Time{}, "0.00 10.50 -10.50")
}

func TestWriterCannotChooseItsPlaceInTheOrder(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const insert = `
		INSERT INTO ledger_posting (%s amount_minor, booked_at, debit_account, credit_account, value_date, transaction, step,
			number, layer, correction, intent, currency, tenant, client_reference, source_ref)
		OVERRIDING SYSTEM VALUE VALUES (%s 1, now(), 1, 2, now(), 0, 1, 1, 1, false, gen_random_uuid(), 'EUR', 'acme', gen_random_uuid()::text, 'test')`
	if _, err := b.pool.Exec(b.ctx, fmt.Sprintf(insert, "", "")); err != nil {
		t.Fatalf("the plain row is refused: %v", err)
	}
	for column, value := range map[string]string{"tx,": "'3',", "id,": "1,"} {
		var pgErr *pgconn.PgError
		if _, err := b.pool.Exec(b.ctx, fmt.Sprintf(insert, column, value)); !errors.As(err, &pgErr) || pgErr.Code != "42501" {
			t.Errorf("naming %s gives %v, want insufficient privilege", column, err)
		}
	}
}
