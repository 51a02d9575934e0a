package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sealsPerPage bounds how many seals are in memory; their postings are read as a stream.
const sealsPerPage = 512

var errNoSuchSeal = errors.New("no such seal")

// Verify proves that history was not edited, as of one moment: it computes the hash chain again from seal number from on
// (1 or less is all of it; a later start trusts the seal before it), and compares the books with themselves: trial balance,
// accounts of all postings, stored totals against postings, holds against releases. What is wrong stands in the report; the
// error is for what could not be read. Someone who may rewrite the whole chain can forge it: keep HeadHash elsewhere.
func Verify(ctx context.Context, pool *pgxpool.Pool, from int64) (Report, error) {
	var report Report
	err := readSnapshot(ctx, pool, func(tx pgx.Tx) error {
		if err := verifyChain(ctx, tx, max(from, 1), &report); err != nil {
			return err
		}
		return verifyBooks(ctx, tx, &report)
	})
	if err != nil {
		return Report{}, fmt.Errorf("verify ledger: %w", err)
	}
	return report, nil
}

func verifyChain(ctx context.Context, tx pgx.Tx, from int64, report *Report) error {
	head, err := selectHead(ctx, tx)
	if err != nil {
		return err
	}
	report.Head, report.HeadHash = head.Seq, head.Hash
	walk, err := startWalk(ctx, tx, from)
	if err != nil {
		return err
	}
	for walk.broken == nil {
		page, err := selectSeals(ctx, tx, walk.previous.Seq)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		if err := walkPage(ctx, tx, walk, page); err != nil {
			return err
		}
	}
	report.Seals, report.Postings, report.Broken = walk.seals, walk.postings, walk.broken
	const count = `SELECT count(*) FROM ledger_posting WHERE (tx, id) > (@head_tx::xid8, @head_id::int8)`
	return tx.QueryRow(ctx, count, pgx.NamedArgs{"head_tx": head.ThroughTx, "head_id": head.ThroughID}).Scan(&report.Unsealed)
}

// startWalk reads the seal before the first one to check. The chain's own start is known, so it is checked, not trusted.
func startWalk(ctx context.Context, tx pgx.Tx, from int64) (*chainWalk, error) {
	seals, err := selectSeals(ctx, tx, from-2)
	if err != nil {
		return nil, err
	}
	walk := &chainWalk{}
	switch {
	case len(seals) > 0 && seals[0].Seq == from-1:
		walk.previous = seals[0]
	case from == 1:
		walk.breakAt(seal{}, SealMissing, 0)
		return walk, nil
	default:
		return nil, fmt.Errorf("read seal %d: %w", from-1, errNoSuchSeal)
	}
	start := walk.previous
	if from == 1 && (start.ThroughTx != 0 || start.ThroughID != 0 || !bytes.Equal(start.Hash, make([]byte, len(start.Hash)))) {
		walk.breakAt(start, ContentEdited, 0)
	}
	return walk, nil
}

func selectSeals(ctx context.Context, tx pgx.Tx, after int64) ([]seal, error) {
	const query = `SELECT ` + sealColumns + ` FROM ledger_seal WHERE seq > @after ORDER BY seq LIMIT @limit`
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{"after": after, "limit": sealsPerPage})
	if err != nil {
		return nil, fmt.Errorf("read seals: %w", err)
	}
	seals, err := pgx.CollectRows(rows, pgx.RowToStructByPos[seal])
	if err != nil {
		return nil, fmt.Errorf("read seals: %w", err)
	}
	return seals, nil
}

// walkPage streams the postings of a page of seals once, in order, and gives each to the seal whose range it lies in.
func walkPage(ctx context.Context, tx pgx.Tx, walk *chainWalk, page []seal) error {
	const query = `
		SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE (tx, id) > (@from_tx::xid8, @from_id::int8) AND (tx, id) <= (@through_tx::xid8, @through_id::int8)
		ORDER BY tx, id`
	last := page[len(page)-1]
	rows, err := tx.Query(ctx, query, pgx.NamedArgs{
		"from_tx": walk.previous.ThroughTx, "from_id": walk.previous.ThroughID,
		"through_tx": last.ThroughTx, "through_id": last.ThroughID,
	})
	if err != nil {
		return fmt.Errorf("read sealed postings: %w", err)
	}
	defer rows.Close()
	next := rows.Next()
	for _, s := range page {
		if !walk.link(s) {
			return nil
		}
		h := newSealHash(s.PreviousHash, s.Seq, s.SealedAt)
		for next {
			e, err := scanEntry(rows)
			if err != nil {
				return fmt.Errorf("read sealed postings: %w", err)
			}
			if !s.covers(e) {
				break
			}
			h.add(e)
			next = rows.Next()
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read sealed postings: %w", err)
		}
		if !walk.close(s, h) {
			return nil
		}
	}
	return nil
}

func verifyBooks(ctx context.Context, tx pgx.Tx, report *Report) error {
	head, err := selectHead(ctx, tx)
	if err != nil {
		return err
	}
	if report.TrialBalances, err = selectTrialBalance(ctx, tx); err != nil {
		return fmt.Errorf("read trial balance: %w", err)
	}
	if report.Stray, err = selectStrayPostings(ctx, tx); err != nil {
		return fmt.Errorf("read stray postings: %w", err)
	}
	if report.Differences, err = selectDifferences(ctx, tx, head); err != nil {
		return fmt.Errorf("compare balances: %w", err)
	}
	if report.Overreleases, err = selectOverreleases(ctx, tx); err != nil {
		return fmt.Errorf("read releases: %w", err)
	}
	return nil
}
