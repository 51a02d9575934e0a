package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sealNext seals in one transaction: read the head, read what follows it below the horizon, insert the seal, add to the daily
// totals. Losing the insert to another sealer is errLostSealRace, and nothing is written.
func sealNext(ctx context.Context, pool *pgxpool.Pool, now time.Time) (n int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		head, err := selectHead(ctx, tx)
		if err != nil {
			return err
		}
		entries, err := selectSealable(ctx, tx, head)
		if err != nil || len(entries) == 0 {
			return err
		}
		n = len(entries)
		next := nextSeal(head, entries, now)
		if err := insertSeal(ctx, tx, next); err != nil {
			return err
		}
		return addDailyTotals(ctx, tx, head, next)
	})
	if err != nil {
		return 0, fmt.Errorf("seal postings: %w", err)
	}
	return n, nil
}

func nextSeal(head seal, entries []Entry, now time.Time) seal {
	last := entries[len(entries)-1]
	// PostgreSQL keeps microseconds; the hash must be over what can be read back.
	now = now.UTC().Truncate(time.Microsecond)
	h := newSealHash(head.Hash, head.Seq+1, now)
	for _, e := range entries {
		h.add(e)
	}
	return seal{
		Seq: head.Seq + 1, ThroughTx: last.Tx, ThroughID: last.ID, Postings: int32(len(entries)),
		PreviousHash: head.Hash, Hash: h.finish(), SealedAt: now,
	}
}

const sealColumns = `seq, through_tx, through_id, postings, previous_hash, hash, sealed_at`

// selectHead reads the end of the chain. It fails with ErrSealAhead where no posting could sort after it.
func selectHead(ctx context.Context, tx pgx.Tx) (seal, error) {
	const query = `
		SELECT ` + sealColumns + `, through_tx >= pg_snapshot_xmax(pg_current_snapshot()) FROM ledger_seal
		ORDER BY seq DESC LIMIT 1`
	var head seal
	var ahead bool
	err := tx.QueryRow(ctx, query).Scan(&head.Seq, &head.ThroughTx, &head.ThroughID, &head.Postings, &head.PreviousHash,
		&head.Hash, &head.SealedAt, &ahead)
	if err != nil {
		return seal{}, fmt.Errorf("read last seal: %w", err)
	}
	if ahead {
		return seal{}, fmt.Errorf("read last seal: %w", ErrSealAhead)
	}
	return head, nil
}

// selectSealable reads below the horizon: every transaction with a lower id has ended, so nothing can still appear among the
// rows read, and the next seal starts where this one ends.
func selectSealable(ctx context.Context, tx pgx.Tx, head seal) ([]Entry, error) {
	const query = `
		SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE (tx, id) > (@head_tx::xid8, @head_id::int8) AND tx < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY tx, id LIMIT @limit`
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{
		"head_tx": head.ThroughTx, "head_id": head.ThroughID, "limit": maxPostingsPerSeal,
	})
	if err != nil {
		return nil, fmt.Errorf("read unsealed postings: %w", err)
	}
	entries, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, fmt.Errorf("read unsealed postings: %w", err)
	}
	return entries, nil
}

// insertSeal waits for another sealer's transaction on the same number, and then one of the two has lost.
func insertSeal(ctx context.Context, tx pgx.Tx, s seal) error {
	const insert = `
		INSERT INTO ledger_seal (` + sealColumns + `)
		VALUES (@seq, @through_tx, @through_id, @postings, @previous_hash, @hash, @sealed_at)
		ON CONFLICT DO NOTHING`
	tag, err := tx.Exec(ctx, insert, pgx.NamedArgs{
		"seq": s.Seq, "through_tx": s.ThroughTx, "through_id": s.ThroughID, "postings": s.Postings,
		"previous_hash": s.PreviousHash, "hash": s.Hash, "sealed_at": s.SealedAt,
	})
	if err != nil {
		return fmt.Errorf("insert seal: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errLostSealRace
	}
	return nil
}

// addDailyTotals adds the postings between two positions to the projection.
func addDailyTotals(ctx context.Context, tx pgx.Tx, from, through seal) error {
	const upsert = `
		WITH sealed AS (
			SELECT debit_account, credit_account, layer, amount_minor, (booked_at AT TIME ZONE 'UTC')::date AS booked_on
			FROM ledger_posting
			WHERE (tx, id) > (@from_tx::xid8, @from_id::int8) AND (tx, id) <= (@through_tx::xid8, @through_id::int8)
		), side AS (
			SELECT debit_account AS account, layer, booked_on, amount_minor AS debit, 0 AS credit FROM sealed
			UNION ALL
			SELECT credit_account, layer, booked_on, 0, amount_minor FROM sealed
		)
		INSERT INTO ledger_daily_total AS t (account, layer, booked_on, debit_minor, credit_minor)
		SELECT account, layer, booked_on, sum(debit)::int8, sum(credit)::int8 FROM side GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
		ON CONFLICT (account, layer, booked_on) DO UPDATE
		SET debit_minor = t.debit_minor + excluded.debit_minor, credit_minor = t.credit_minor + excluded.credit_minor`
	_, err := tx.Exec(ctx, upsert, pgx.NamedArgs{
		"from_tx": from.ThroughTx, "from_id": from.ThroughID, "through_tx": through.ThroughTx, "through_id": through.ThroughID,
	})
	if err != nil {
		return fmt.Errorf("add daily totals: %w", err)
	}
	return nil
}

// selectOldestUnsealed is when the first posting behind the chain's end was booked; zero when the chain covers all.
func selectOldestUnsealed(ctx context.Context, pool *pgxpool.Pool) (time.Time, error) {
	var bookedAt time.Time
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) error {
		head, err := selectHead(ctx, tx)
		if err != nil {
			return err
		}
		const query = `
			SELECT booked_at FROM ledger_posting
			WHERE (tx, id) > (@head_tx::xid8, @head_id::int8)
			ORDER BY tx, id LIMIT 1`
		rows, err := tx.Query(ctx, query, pgx.NamedArgs{"head_tx": head.ThroughTx, "head_id": head.ThroughID})
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		if err == nil && len(found) == 1 {
			bookedAt = found[0]
		}
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read oldest unsealed posting: %w", err)
	}
	return bookedAt, nil
}
