package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrNoPosting says that no posting has the key.
var ErrNoPosting = errors.New("no such posting")

// maxPostingsPerStatement keeps a transaction within what distributed engines also take.
const maxPostingsPerStatement = 1000

// PostFrom is the INSERT that posts the rows of a common table expression named source, as SQL text for the caller's own
// statement; source is a name from the caller's code, never input. The rows must have the columns
//
//	intent uuid, transaction int2, step int2, number int2, layer int2, debit_account int4, credit_account int4,
//	amount_minor int8, currency text, value_date date, booked_at timestamptz, source_ref text, correction bool,
//	tenant text, client_reference text
//
// It returns intent, transaction, step and number of each row it posted. A row that is missing from the answer hit a unique
// index, which means that an earlier guard failed: count it in Metrics.UniqueIndexHits.
func PostFrom(source string) string {
	return InsertFrom(source) + `
	ON CONFLICT DO NOTHING
	RETURNING intent, transaction, step, number`
}

// InsertFrom is the same INSERT for a source whose postings must all be new: one that a unique index refuses fails the statement,
// with the index's name as the constraint (IsGuard). It costs less, and whoever wanted the posting has not got it.
func InsertFrom(source string) string {
	return `
	INSERT INTO ledger_posting (intent, transaction, step, number, layer, debit_account, credit_account, amount_minor, currency,
		value_date, booked_at, source_ref, correction, tenant, client_reference)
	SELECT intent, transaction, step, number, layer, debit_account, credit_account, amount_minor, currency,
		value_date, booked_at, source_ref, correction, tenant, client_reference
	FROM ` + source
}

// IsGuard reports whether a violated constraint is one of the two guards that keep a posting single.
func IsGuard(constraint string) bool {
	return constraint == "ledger_posting_step_once" || constraint == "ledger_posting_reference_once"
}

var postStatement = `
	WITH source AS (
		SELECT * FROM unnest(@intent::uuid[], @transaction::int2[], @step::int2[], @number::int2[], @layer::int2[],
			@debit_account::int4[], @credit_account::int4[], @amount_minor::int8[], @currency::text[], @value_date::date[],
			@source_ref::text[], @correction::bool[], @tenant::text[], @client_reference::text[])
		AS u (intent, transaction, step, number, layer, debit_account, credit_account, amount_minor, currency, value_date,
			source_ref, correction, tenant, client_reference)
		CROSS JOIN (SELECT @booked_at::timestamptz AS booked_at) AS booking
	), posted AS (` + PostFrom("source") + `)
	SELECT count(*) FROM posted`

// Post posts all of postings in one statement, within tx. Hits is how many were there already, by key or by client
// reference; each is a failed guard upstream and belongs into Metrics.UniqueIndexHits. A posting that breaks a rule fails the
// call before anything is sent.
func Post(ctx context.Context, tx pgx.Tx, postings []Posting, bookedAt time.Time) (hits int, err error) {
	if len(postings) == 0 {
		return 0, nil
	}
	if len(postings) > maxPostingsPerStatement {
		return 0, fmt.Errorf("post: more than %d postings in one statement", maxPostingsPerStatement)
	}
	for _, p := range postings {
		if err := p.Validate(); err != nil {
			return 0, fmt.Errorf("post %s: %w", p.Key(), err)
		}
	}
	var posted int
	if err := tx.QueryRow(ctx, postStatement, postArgs(postings, bookedAt)).Scan(&posted); err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	return len(postings) - posted, nil
}

// postArgs sorts by key: concurrent statements that meet the same keys then wait for each other in one direction.
func postArgs(postings []Posting, bookedAt time.Time) pgx.NamedArgs {
	sorted := slices.SortedFunc(slices.Values(postings), func(a, b Posting) int {
		return cmp.Or(bytes.Compare(a.Intent[:], b.Intent[:]), cmp.Compare(a.Transaction, b.Transaction),
			cmp.Compare(a.Step, b.Step), cmp.Compare(a.Number, b.Number))
	})
	n := len(sorted)
	// []uuid.UUID would go through driver.Valuer, at several times the cost.
	intents := make(pgtype.FlatArray[pgtype.UUID], n)
	transactions, steps, numbers, layers := make([]int16, n), make([]int16, n), make([]int16, n), make([]int16, n)
	debits, credits, amounts := make([]int32, n), make([]int32, n), make([]int64, n)
	currencies, valueDates, sources := make([]string, n), make([]time.Time, n), make([]string, n)
	corrections, tenants, references := make([]bool, n), make([]string, n), make([]string, n)
	for i, p := range sorted {
		intents[i] = pgtype.UUID{Bytes: p.Intent, Valid: true}
		transactions[i], steps[i], numbers[i], layers[i] = p.Transaction, int16(p.Step), p.Number, int16(p.Layer)
		debits[i], credits[i], amounts[i] = p.DebitAccount, p.CreditAccount, p.Money.Minor
		currencies[i], valueDates[i], sources[i] = p.Money.Currency.Alpha, p.ValueDate, p.SourceRef
		corrections[i], tenants[i], references[i] = p.Correction, p.Tenant, p.ClientReference
	}
	return pgx.NamedArgs{
		"intent": intents, "transaction": transactions, "step": steps, "number": numbers, "layer": layers,
		"debit_account": debits, "credit_account": credits, "amount_minor": amounts, "currency": currencies,
		"value_date": valueDates, "source_ref": sources, "correction": corrections, "tenant": tenants,
		"client_reference": references, "booked_at": bookedAt,
	}
}

var reverseStatement = `
	WITH original AS (
		SELECT * FROM ledger_posting
		WHERE intent = @intent AND transaction = @transaction AND step = @step AND number = @number
	), mirror AS (
		SELECT intent, transaction, @mirror_step::int2 AS step, @mirror_number::int2 AS number, layer,
			credit_account AS debit_account, debit_account AS credit_account, amount_minor, currency, value_date,
			@booked_at::timestamptz AS booked_at, @source_ref::text AS source_ref, true AS correction, tenant, client_reference
		FROM original
	), posted AS (` + PostFrom("mirror") + `)
	SELECT (SELECT count(*) FROM original), (SELECT count(*) FROM posted)`

// Reverse posts the mirror of the posting with this key: the same amount, layer and value date, the sides exchanged, marked as
// a correction, under the key CompensationOf(original). It is for what should not stand; a refund is new business and is
// posted as such. Hits is 1 when the mirror was there already; ErrNoPosting when the original is not.
func Reverse(ctx context.Context, tx pgx.Tx, original StepKey, sourceRef string, bookedAt time.Time) (hits int, err error) {
	mirror, err := CompensationOf(original)
	if err != nil {
		return 0, fmt.Errorf("reverse %s: %w", original, err)
	}
	if !withinBytes(sourceRef, maxSourceRefBytes) {
		return 0, fmt.Errorf("reverse %s: source reference is empty or longer than %d bytes", original, maxSourceRefBytes)
	}
	var found, posted int
	err = tx.QueryRow(ctx, reverseStatement, pgx.NamedArgs{
		"intent": original.Intent, "transaction": original.Transaction, "step": int16(original.Step), "number": original.Number,
		"mirror_step": int16(mirror.Step), "mirror_number": mirror.Number, "source_ref": sourceRef, "booked_at": bookedAt,
	}).Scan(&found, &posted)
	if err != nil {
		return 0, fmt.Errorf("reverse %s: %w", original, err)
	}
	if found == 0 {
		return 0, fmt.Errorf("reverse %s: %w", original, ErrNoPosting)
	}
	return found - posted, nil
}
