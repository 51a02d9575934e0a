package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Entry is a posting as it stands in the book.
type Entry struct {
	ID       int64
	Tx       uint64 // the transaction that wrote it; with ID its place in the sealed order
	BookedAt time.Time
	Posting
}

const entryColumns = `id, tx, booked_at, intent, transaction, step, number, layer, debit_account, credit_account,
	amount_minor, currency, value_date, source_ref, correction, tenant, client_reference`

func scanEntry(row pgx.CollectableRow) (Entry, error) {
	var e Entry
	var currency string
	err := row.Scan(&e.ID, &e.Tx, &e.BookedAt, (*[16]byte)(&e.Intent), &e.Transaction, &e.Step, &e.Number, &e.Layer,
		&e.DebitAccount, &e.CreditAccount, &e.Money.Minor, &currency, &e.ValueDate, &e.SourceRef, &e.Correction, &e.Tenant,
		&e.ClientReference)
	e.BookedAt = e.BookedAt.UTC()
	e.Money.Currency = storedCurrency(currency)
	return e, err
}

// Entries reads a page of the account's postings, on either side and in both layers, newest booking first. The cursor is that
// of the page before, or empty; next is empty on the last page. Limit is held to 1..MaxPage.
func Entries(ctx context.Context, pool *pgxpool.Pool, account int32, cursor string, limit int) (entries []Entry, next string, err error) {
	var before *entryPosition
	if cursor != "" {
		position, err := parseEntryCursor(cursor)
		if err != nil {
			return nil, "", err
		}
		before = &position
	}
	limit = clampLimit(limit)
	entries, err = selectEntries(ctx, pool, account, before, limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list entries: %w", err)
	}
	if len(entries) > limit {
		entries = entries[:limit]
		last := entries[limit-1]
		next = entryPosition{bookedAt: last.BookedAt, id: last.ID}.cursor()
	}
	return entries, next, nil
}

// selectEntries reads at most limit rows from each side's index; a posting never has the same account on both.
func selectEntries(ctx context.Context, pool *pgxpool.Pool, account int32, before *entryPosition, limit int) ([]Entry, error) {
	const query = `
		(SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE debit_account = @account AND (booked_at, id) < (@booked_at::timestamptz, @id::int8)
		ORDER BY booked_at DESC, id DESC LIMIT @limit)
		UNION ALL
		(SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE credit_account = @account AND (booked_at, id) < (@booked_at::timestamptz, @id::int8)
		ORDER BY booked_at DESC, id DESC LIMIT @limit)
		ORDER BY booked_at DESC, id DESC LIMIT @limit`
	at := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	var id int64
	if before != nil {
		at = pgtype.Timestamptz{Time: before.bookedAt, Valid: true}
		id = before.id
	}
	rows, err := pool.Query(ctx, query, pgx.NamedArgs{"account": account, "booked_at": at, "id": id, "limit": limit})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanEntry)
}

// EntryByKey reads one posting; ErrNoPosting when there is none.
func EntryByKey(ctx context.Context, pool *pgxpool.Pool, key StepKey) (Entry, error) {
	const query = `
		SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE intent = @intent AND transaction = @transaction AND step = @step AND number = @number`
	rows, err := pool.Query(ctx, query, pgx.NamedArgs{
		"intent": key.Intent, "transaction": key.Transaction, "step": int16(key.Step), "number": key.Number,
	})
	if err != nil {
		return Entry{}, fmt.Errorf("read entry: %w", err)
	}
	entry, err := pgx.CollectExactlyOneRow(rows, scanEntry)
	if errors.Is(err, pgx.ErrNoRows) {
		return Entry{}, fmt.Errorf("read entry %s: %w", key, ErrNoPosting)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("read entry: %w", err)
	}
	return entry, nil
}

// EntriesOf reads all postings of one intent in the order they were booked, at most MaxPage, for its timeline.
func EntriesOf(ctx context.Context, pool *pgxpool.Pool, intent uuid.UUID) ([]Entry, error) {
	const query = `
		SELECT ` + entryColumns + ` FROM ledger_posting
		WHERE intent = @intent ORDER BY booked_at, id LIMIT @limit`
	rows, err := pool.Query(ctx, query, pgx.NamedArgs{"intent": pgtype.UUID{Bytes: intent, Valid: true}, "limit": MaxPage})
	if err != nil {
		return nil, fmt.Errorf("list entries of intent: %w", err)
	}
	entries, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, fmt.Errorf("list entries of intent: %w", err)
	}
	return entries, nil
}
