package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// sealedBook has five seals of two postings each, and one posting that is not sealed.
func sealedBook(t *testing.T) *book {
	t.Helper()
	b := newBook(t)
	for range 5 {
		intent := uuid.New()
		b.post(noon, b.posting(intent, Hold, 1, Pending, 1000), b.posting(intent, Debit, 1, Posted, 400))
		b.sealAll()
	}
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1000))
	report := b.verify()
	if !report.OK() || report.Seals != 5 || report.Postings != 10 || report.Unsealed != 1 || len(report.HeadHash) != 32 {
		t.Fatalf("the fixture is %+v", report)
	}
	return b
}

// inSeal selects the postings under one seal, for a WHERE clause.
func inSeal(seq int) string {
	return fmt.Sprintf(`(tx, id) > (SELECT through_tx, through_id FROM ledger_seal WHERE seq = %d) AND
		(tx, id) <= (SELECT through_tx, through_id FROM ledger_seal WHERE seq = %d)`, seq-1, seq)
}

func firstInSeal(seq int) string {
	return `(tx, id) = (SELECT tx, id FROM ledger_posting WHERE ` + inSeal(seq) + ` ORDER BY tx, id LIMIT 1)`
}

func TestVerifyFindsTampering(t *testing.T) {
	t.Parallel()
	const all = `amount_minor, booked_at, debit_account, credit_account, value_date, transaction, step, layer, correction, currency, tenant, source_ref`
	tests := []struct {
		name, forgery string
		seq           int64
		fault         SealFault
		found         int32
	}{
		{"amount edited", `UPDATE ledger_posting SET amount_minor = amount_minor + 1 WHERE ` + firstInSeal(3), 3, ContentEdited, 2},
		{"posting deleted", `DELETE FROM ledger_posting WHERE ` + firstInSeal(2), 2, PostingsMissing, 1},
		{"seal's postings deleted", `DELETE FROM ledger_posting WHERE ` + inSeal(5), 5, PostingsMissing, 0},
		{"first posting deleted", `DELETE FROM ledger_posting WHERE ` + firstInSeal(1), 1, PostingsMissing, 1},
		{"posting inserted in the past", `
			INSERT INTO ledger_posting (id, tx, number, intent, client_reference, ` + all + `) OVERRIDING SYSTEM VALUE
			SELECT -1, tx, 1, gen_random_uuid(), 'forged', ` + all + ` FROM ledger_posting WHERE ` + firstInSeal(4), 4, PostingsInserted, 3},
		{"posting inserted before the first", `
			INSERT INTO ledger_posting (id, tx, number, intent, client_reference, ` + all + `) OVERRIDING SYSTEM VALUE
			SELECT 1000000, '1', 1, gen_random_uuid(), 'forged', ` + all + ` FROM ledger_posting WHERE ` + firstInSeal(4), 1, PostingsInserted, 3},
		{"posting moved behind the chain", `UPDATE ledger_posting SET tx = pg_current_xact_id() WHERE ` + firstInSeal(2), 2, PostingsMissing, 1},
		{"posting replaced by another", `
			WITH gone AS (DELETE FROM ledger_posting WHERE ` + firstInSeal(3) + ` RETURNING *)
			INSERT INTO ledger_posting (id, tx, number, intent, client_reference, ` + all + `) OVERRIDING SYSTEM VALUE
			SELECT id, tx, 1, gen_random_uuid(), 'forged', ` + all + ` FROM gone`, 3, ContentEdited, 2},
		{"seal's hash edited", `UPDATE ledger_seal SET hash = sha256('forged') WHERE seq = 3`, 3, ContentEdited, 2},
		{"seal's previous hash edited", `UPDATE ledger_seal SET previous_hash = sha256('forged') WHERE seq = 3`, 3, ChainBroken, 0},
		{"seal's time edited", `UPDATE ledger_seal SET sealed_at = sealed_at - interval '1 day' WHERE seq = 2`, 2, ContentEdited, 2},
		{"seal's count edited", `UPDATE ledger_seal SET postings = 3 WHERE seq = 2`, 2, PostingsMissing, 2},
		{"seal in the middle deleted", `DELETE FROM ledger_seal WHERE seq = 3`, 3, SealMissing, 0},
		{"seal moved before its predecessor", `
			UPDATE ledger_seal SET through_tx = '1' WHERE seq = 4`, 4, SealUnordered, 0},
		{"start of the chain deleted", `DELETE FROM ledger_seal WHERE seq = 0`, 0, SealMissing, 0},
		{"start of the chain edited", `UPDATE ledger_seal SET hash = sha256('forged') WHERE seq = 0`, 0, ContentEdited, 0},
		{"start of the chain moved past a posting", `
			UPDATE ledger_seal SET (through_tx, through_id) = (SELECT tx, id FROM ledger_posting ORDER BY tx, id LIMIT 1) WHERE seq = 0`,
			0, ContentEdited, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := sealedBook(t)
			mustExec(t, b.forger(), tt.forgery)
			report := b.verify()
			broken := report.Broken
			if broken == nil || broken.Seq != tt.seq || broken.Fault != tt.fault || broken.Found != tt.found {
				t.Fatalf("found %+v, want seal %d, %q, %d postings", broken, tt.seq, tt.fault, tt.found)
			}
			if report.OK() || !strings.Contains(report.Faults()[0], string(tt.fault)) {
				t.Errorf("the report's first line does not name the fault: %v", report.Faults())
			}
		})
	}
}

// Each column is under the seal: changing any of them, and nothing else, breaks the chain.
func TestVerifyFindsAnEditOfAnyColumn(t *testing.T) {
	t.Parallel()
	b := sealedBook(t)
	forger := b.forger()
	rows, err := forger.Query(b.ctx, `SELECT column_name::text FROM information_schema.columns WHERE table_name = 'ledger_posting'`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	edits := map[string]string{
		"amount_minor": "amount_minor + 1", "booked_at": "booked_at + interval '1 microsecond'", "debit_account": "debit_account + 100",
		"credit_account": "credit_account + 100", "value_date": "value_date + 1", "transaction": "transaction + 1", "step": "5",
		"number": "number + 1", "layer": "3 - layer", "intent": "gen_random_uuid()", "currency": "'USD'", "tenant": "'umbrella'",
		"client_reference": "client_reference || 'x'", "source_ref": "source_ref || 'x'",
		// The mark cannot change alone: a constraint ties it to the step.
		"correction": "true, step = 6",
	}
	mustExec(t, forger, `CREATE TABLE kept AS SELECT * FROM ledger_posting`)
	for _, column := range columns {
		if column == "tx" || column == "id" {
			continue // the place in the order: TestVerifyFindsTampering moves postings
		}
		edit, known := edits[column]
		if !known {
			t.Errorf("column %s is not tried here", column)
			continue
		}
		mustExec(t, forger, fmt.Sprintf(`UPDATE ledger_posting SET %s = %s WHERE %s`, column, edit, firstInSeal(3)))
		if broken := b.verify().Broken; broken == nil || broken.Seq != 3 {
			t.Errorf("an edit of %s is found as %+v, want seal 3", column, broken)
		}
		mustExec(t, forger, `DELETE FROM ledger_posting`)
		mustExec(t, forger, `INSERT INTO ledger_posting OVERRIDING SYSTEM VALUE SELECT * FROM kept`)
		if report := b.verify(); !report.OK() {
			t.Fatalf("restored rows do not verify: %v", report.Faults())
		}
	}
}

func TestVerifyFromALaterSeal(t *testing.T) {
	t.Parallel()
	b := sealedBook(t)
	mustExec(t, b.forger(), `UPDATE ledger_posting SET amount_minor = amount_minor + 1 WHERE `+firstInSeal(2))
	for from, want := range map[int64]int64{1: 1, 2: 0} { // seals that hold before the broken one
		report, err := Verify(b.ctx, b.pool, from)
		if err != nil || report.Broken == nil || report.Broken.Seq != 2 || report.Seals != want {
			t.Errorf("from %d: %+v (%v), want seal 2 broken after %d", from, report, err, want)
		}
	}
	report, err := Verify(b.ctx, b.pool, 3)
	if err != nil || report.Broken != nil || report.Seals != 3 || report.Postings != 6 {
		t.Errorf("from 3: %+v (%v), want the last three seals to hold", report, err)
	}
	if report, err := Verify(b.ctx, b.pool, 6); err != nil || report.Broken != nil || report.Seals != 0 {
		t.Errorf("from behind the end: %+v (%v), want nothing to check", report, err)
	}
	if _, err := Verify(b.ctx, b.pool, 100); !errors.Is(err, errNoSuchSeal) {
		t.Errorf("from a seal that does not exist: %v", err)
	}
}

func TestVerifyReadsManyPagesOfSeals(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const seals = sealsPerPage + 5
	b.inTx(func(tx pgx.Tx) error {
		postings := make([]Posting, seals)
		for i := range postings {
			postings[i] = b.posting(uuid.New(), Debit, 1, Posted, 1)
		}
		_, err := Post(b.ctx, tx, postings, noon)
		return err
	})
	// One seal per posting: what a quiet ledger becomes over a day.
	b.eventually("the postings can be sealed", func() (all bool) {
		b.inTx(func(tx pgx.Tx) error {
			head, err := selectHead(b.ctx, tx)
			if err != nil {
				return err
			}
			entries, err := selectSealable(b.ctx, tx, head)
			if all = len(entries) == seals; err != nil || !all {
				return err
			}
			for i := range entries {
				next := nextSeal(head, entries[i:i+1], noon)
				if err := insertSeal(b.ctx, tx, next); err != nil {
					return err
				}
				if err := addDailyTotals(b.ctx, tx, head, next); err != nil {
					return err
				}
				head = next
			}
			return nil
		})
		return all
	})
	if report := b.verify(); !report.OK() || report.Seals != seals || report.Postings != seals {
		t.Errorf("%d seals over %d postings hold, want %d; faults %v", report.Seals, report.Postings, seals, report.Faults())
	}
	mustExec(t, b.forger(), `UPDATE ledger_posting SET source_ref = 'forged' WHERE `+firstInSeal(seals-1))
	if broken := b.verify().Broken; broken == nil || broken.Seq != seals-1 {
		t.Errorf("found %+v, want seal %d on the second page", broken, seals-1)
	}
}

// What no hash covers is found by comparing the books with themselves.
func TestVerifyComparesTheBooks(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, forgery, fault string }{
		{"daily total edited", `UPDATE ledger_daily_total SET debit_minor = debit_minor + 1 WHERE account = 1 AND layer = 2`,
			"account 1 posted on 2026-03-14: projected debit 2001 credit 0, recomputed debit 2000 credit 0"},
		{"daily total deleted", `DELETE FROM ledger_daily_total WHERE account = 1 AND layer = 2`,
			"account 1 posted on 2026-03-14: projected debit 0 credit 0, recomputed debit 2000 credit 0"},
		{"daily total invented", `INSERT INTO ledger_daily_total VALUES (1, 2, '2026-03-15', 5, 0)`,
			"account 1 posted on 2026-03-15: projected debit 5 credit 0, recomputed debit 0 credit 0"},
		{"end of the chain cut off", `DELETE FROM ledger_seal WHERE seq = 5`,
			"account 1 posted on 2026-03-14: projected debit 2000 credit 0, recomputed debit 1600 credit 0"},
		{"account's currency edited", `UPDATE ledger_account SET currency = 'USD' WHERE id = 1`, "11 postings name an account"},
		{"account deleted", `DELETE FROM ledger_account WHERE id = 1`, "trial balance EUR posted: debits 0, credits 2000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := sealedBook(t)
			mustExec(t, b.forger(), tt.forgery)
			faults := b.verify().Faults()
			if !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, tt.fault) }) {
				t.Errorf("faults %v, want one with %q", faults, tt.fault)
			}
		})
	}
}

func TestVerifyFindsAReleaseOfMoreThanWasHeld(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	good, bad := uuid.New(), uuid.New()
	for _, intent := range []uuid.UUID{good, bad} {
		b.post(noon, b.posting(intent, Hold, 1, Pending, 1000), back(b.posting(intent, Release, 1, Pending, 700)))
	}
	b.post(noon, back(b.posting(good, Release, 2, Pending, 300)), back(b.posting(bad, Release, 2, Pending, 301)))
	report := b.verify()
	want := Overrelease{Intent: bad, Account: b.customer.ID, Minor: 1}
	if len(report.Overreleases) != 1 || report.Overreleases[0] != want || report.OK() {
		t.Errorf("found %+v, want %+v", report.Overreleases, want)
	}
}

func TestTrialBalance(t *testing.T) {
	t.Parallel()
	b := sealedBook(t)
	balances, err := ReadTrialBalance(b.ctx, b.pool)
	want := []TrialBalance{{"EUR", Pending, 6000, 6000}, {"EUR", Posted, 2000, 2000}}
	if err != nil || !slices.Equal(balances, want) {
		t.Errorf("trial balance is %v (%v), want %v", balances, err, want)
	}
}

func TestCompareNamesWhatDiffers(t *testing.T) {
	t.Parallel()
	b := sealedBook(t)
	if differences, err := Compare(b.ctx, b.pool); err != nil || len(differences) != 0 {
		t.Fatalf("honest books differ: %v (%v)", differences, err)
	}
	mustExec(t, b.forger(), `UPDATE ledger_daily_total SET credit_minor = 7 WHERE account = $1 AND layer = 1`, b.settlement.ID)
	differences, err := Compare(b.ctx, b.pool)
	want := Difference{
		Account: b.settlement.ID, Layer: Pending, BookedOn: time.Date(2026, 3, 14, 0, 0, 0, 0, time.UTC),
		ProjectedCredit: 7, RecomputedCredit: 5000,
	}
	if err != nil || len(differences) != 1 || differences[0] != want {
		t.Errorf("differences %+v (%v), want %+v", differences, err, want)
	}
}
