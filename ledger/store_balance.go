package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// maxReported bounds each list of faults in a report. One is enough to act on.
const maxReported = 100

// BalanceAt is the account's balance from everything booked up to and including at, or from everything when at is zero. It is
// projected: sealed daily totals, plus the part of the day, plus what is not sealed yet.
func BalanceAt(ctx context.Context, pool *pgxpool.Pool, account Account, at time.Time) (Balance, error) {
	var totals []layerTotals
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) error {
		head, err := selectHead(ctx, tx)
		if err != nil {
			return err
		}
		totals, err = selectProjectedTotals(ctx, tx, account.ID, at, head)
		return err
	})
	if err != nil {
		return Balance{}, fmt.Errorf("read balance: %w", err)
	}
	return balanceOf(account, totals), nil
}

// RecomputedBalanceAt is what BalanceAt must return, computed from the account's postings alone.
func RecomputedBalanceAt(ctx context.Context, pool *pgxpool.Pool, account Account, at time.Time) (Balance, error) {
	var totals []layerTotals
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) (err error) {
		totals, err = selectRecomputedTotals(ctx, tx, account.ID, at)
		return err
	})
	if err != nil {
		return Balance{}, fmt.Errorf("recompute balance: %w", err)
	}
	return balanceOf(account, totals), nil
}

func selectRecomputedTotals(ctx context.Context, tx pgx.Tx, account int32, at time.Time) ([]layerTotals, error) {
	const query = `
		SELECT layer, sum(debit)::int8, sum(credit)::int8 FROM (
			SELECT layer, amount_minor AS debit, 0 AS credit FROM ledger_posting
			WHERE debit_account = @account AND booked_at <= @at
			UNION ALL
			SELECT layer, 0, amount_minor FROM ledger_posting
			WHERE credit_account = @account AND booked_at <= @at
		) AS side GROUP BY layer`
	moment, _ := upToMoment(at)
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{"account": account, "at": moment})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[layerTotals])
}

// upToMoment gives the last moment that counts and the start of its UTC day. For zero both are infinity, so that whole days
// and the unsealed tail are all there is.
func upToMoment(at time.Time) (moment, dayStart pgtype.Timestamptz) {
	if at.IsZero() {
		infinity := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
		return infinity, infinity
	}
	at = at.UTC()
	day := time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
	return pgtype.Timestamptz{Time: at, Valid: true}, pgtype.Timestamptz{Time: day, Valid: true}
}

// selectProjectedTotals adds up three parts that do not overlap: whole sealed days before the day of at; that day's postings,
// sealed or not; and earlier days' postings that are not sealed. The tail is read in sealing order behind a fence (OFFSET 0),
// or the planner might walk the account's whole history for it.
func selectProjectedTotals(ctx context.Context, tx pgx.Tx, account int32, at time.Time, head seal) ([]layerTotals, error) {
	const query = `
		WITH tail AS MATERIALIZED (
			SELECT layer, debit_account, credit_account, amount_minor, booked_at FROM ledger_posting
			WHERE (tx, id) > (@head_tx::xid8, @head_id::int8)
			ORDER BY tx, id OFFSET 0
		)
		SELECT layer, sum(debit)::int8, sum(credit)::int8 FROM (
			SELECT layer, debit_minor AS debit, credit_minor AS credit FROM ledger_daily_total
			WHERE account = @account AND booked_on < (@day_start::timestamptz AT TIME ZONE 'UTC')::date
			UNION ALL
			SELECT layer, amount_minor, 0 FROM ledger_posting
			WHERE debit_account = @account AND booked_at BETWEEN @day_start AND @at
			UNION ALL
			SELECT layer, 0, amount_minor FROM ledger_posting
			WHERE credit_account = @account AND booked_at BETWEEN @day_start AND @at
			UNION ALL
			SELECT layer, CASE WHEN debit_account = @account THEN amount_minor ELSE 0 END,
				CASE WHEN credit_account = @account THEN amount_minor ELSE 0 END
			FROM tail WHERE @account IN (debit_account, credit_account) AND booked_at < @day_start
		) AS part GROUP BY layer`
	moment, dayStart := upToMoment(at)
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{
		"account": account, "at": moment, "day_start": dayStart, "head_tx": head.ThroughTx, "head_id": head.ThroughID,
	})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[layerTotals])
}

// Compare lists the accounts and days whose stored totals are not what the sealed postings sum up to, at most a hundred.
// Since every projected balance is made of these totals and of postings, nothing listed means that all balances agree.
func Compare(ctx context.Context, pool *pgxpool.Pool) ([]Difference, error) {
	var differences []Difference
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) error {
		head, err := selectHead(ctx, tx)
		if err != nil {
			return err
		}
		differences, err = selectDifferences(ctx, tx, head)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("compare balances: %w", err)
	}
	return differences, nil
}

func selectDifferences(ctx context.Context, tx pgx.Tx, head seal) ([]Difference, error) {
	const query = `
		WITH side AS (
			SELECT debit_account AS account, layer, booked_at, amount_minor AS debit, 0 AS credit FROM ledger_posting
			WHERE (tx, id) <= (@head_tx::xid8, @head_id::int8)
			UNION ALL
			SELECT credit_account, layer, booked_at, 0, amount_minor FROM ledger_posting
			WHERE (tx, id) <= (@head_tx::xid8, @head_id::int8)
		), recomputed AS (
			SELECT account, layer, (booked_at AT TIME ZONE 'UTC')::date AS booked_on,
				sum(debit)::int8 AS debit, sum(credit)::int8 AS credit
			FROM side GROUP BY 1, 2, 3
		)
		SELECT account, layer, booked_on, COALESCE(t.debit_minor, 0), COALESCE(t.credit_minor, 0),
			COALESCE(r.debit, 0), COALESCE(r.credit, 0)
		FROM recomputed AS r FULL JOIN ledger_daily_total AS t USING (account, layer, booked_on)
		WHERE (t.debit_minor, t.credit_minor) IS DISTINCT FROM (r.debit, r.credit)
		ORDER BY booked_on, account, layer LIMIT @limit`
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{
		"head_tx": head.ThroughTx, "head_id": head.ThroughID, "limit": maxReported,
	})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Difference])
}

// ReadTrialBalance sums every currency and layer over all accounts.
func ReadTrialBalance(ctx context.Context, pool *pgxpool.Pool) ([]TrialBalance, error) {
	var balances []TrialBalance
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) (err error) {
		balances, err = selectTrialBalance(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read trial balance: %w", err)
	}
	return balances, nil
}

// selectTrialBalance counts a side only where its account exists in the posting's currency; a side without one leaves the
// sum unbalanced.
func selectTrialBalance(ctx context.Context, tx pgx.Tx) ([]TrialBalance, error) {
	const query = `
		SELECT p.currency, p.layer,
			COALESCE(sum(p.amount_minor) FILTER (WHERE d.id IS NOT NULL), 0)::int8,
			COALESCE(sum(p.amount_minor) FILTER (WHERE c.id IS NOT NULL), 0)::int8
		FROM ledger_posting AS p
		LEFT JOIN ledger_account AS d ON d.id = p.debit_account AND d.currency = p.currency
		LEFT JOIN ledger_account AS c ON c.id = p.credit_account AND c.currency = p.currency
		GROUP BY p.currency, p.layer ORDER BY p.currency, p.layer`
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[TrialBalance])
}

// selectStrayPostings counts postings with a side whose account does not exist or has another currency. The trial balance
// alone would miss one that strays on both sides.
func selectStrayPostings(ctx context.Context, tx pgx.Tx) (int64, error) {
	const query = `
		SELECT count(*) FROM ledger_posting AS p
		LEFT JOIN ledger_account AS d ON d.id = p.debit_account AND d.currency = p.currency
		LEFT JOIN ledger_account AS c ON c.id = p.credit_account AND c.currency = p.currency
		WHERE d.id IS NULL OR c.id IS NULL`
	var count int64
	err := tx.QueryRow(ctx, query).Scan(&count)
	return count, err
}

// selectOverreleases finds holds that gave back more than they took: a customer's pending postings of one intent and
// transaction may never sum up in its favour.
func selectOverreleases(ctx context.Context, tx pgx.Tx) ([]Overrelease, error) {
	const query = `
		SELECT intent, transaction, account, sum(released)::int8 FROM (
			SELECT intent, transaction, debit_account AS account, -amount_minor AS released FROM ledger_posting WHERE layer = 1
			UNION ALL
			SELECT intent, transaction, credit_account, amount_minor FROM ledger_posting WHERE layer = 1
		) AS side
		JOIN ledger_account AS a ON a.id = side.account AND a.kind = 'customer'
		GROUP BY 1, 2, 3 HAVING sum(released) > 0
		ORDER BY 1, 2, 3 LIMIT @limit`
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{"limit": maxReported})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Overrelease])
}

// readSnapshot runs fn in one read-only transaction whose statements all see the same moment.
func readSnapshot(ctx context.Context, pool *pgxpool.Pool, fn func(tx pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, options, fn)
}
