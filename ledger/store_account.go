package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// findOrInsertAccount reads first, since an INSERT that conflicts burns an id. What a concurrent INSERT made is read back in
// a statement of its own: the first statement's snapshot cannot see it.
func findOrInsertAccount(ctx context.Context, pool *pgxpool.Pool, name accountName) (int32, error) {
	id, err := selectAccountID(ctx, pool, name)
	if !errors.Is(err, pgx.ErrNoRows) {
		return id, err
	}
	const insert = `
		INSERT INTO ledger_account (tenant, link, kind, currency)
		VALUES (@tenant, @link, @kind, @currency)
		ON CONFLICT DO NOTHING`
	if _, err := pool.Exec(ctx, insert, name.args()); err != nil {
		return 0, err
	}
	return selectAccountID(ctx, pool, name)
}

func selectAccountID(ctx context.Context, pool *pgxpool.Pool, name accountName) (int32, error) {
	const query = `
		SELECT id FROM ledger_account
		WHERE tenant = @tenant AND link = @link AND kind = @kind AND currency = @currency`
	var id int32
	err := pool.QueryRow(ctx, query, name.args()).Scan(&id)
	return id, err
}

func (n accountName) args() pgx.NamedArgs {
	return pgx.NamedArgs{"tenant": n.tenant, "link": n.link, "kind": string(n.kind), "currency": n.currency}
}

// AccountByID reads one account; ErrNoAccount when there is none.
func AccountByID(ctx context.Context, pool *pgxpool.Pool, id int32) (Account, error) {
	const query = `SELECT id, tenant, link, kind, currency FROM ledger_account WHERE id = @id`
	rows, err := pool.Query(ctx, query, pgx.NamedArgs{"id": id})
	if err != nil {
		return Account{}, fmt.Errorf("read account: %w", err)
	}
	account, err := pgx.CollectExactlyOneRow(rows, scanAccount)
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{}, fmt.Errorf("read account %d: %w", id, ErrNoAccount)
	}
	if err != nil {
		return Account{}, fmt.Errorf("read account: %w", err)
	}
	return account, nil
}

// ListAccounts reads a page of a tenant's accounts (of all tenants when tenant is empty), newest first. The cursor is that of
// the page before, or empty; next is empty on the last page. Limit is held to 1..MaxPage.
func ListAccounts(ctx context.Context, pool *pgxpool.Pool, tenant, cursor string, limit int) (accounts []Account, next string, err error) {
	before, err := parseAccountCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	limit = clampLimit(limit)
	const query = `
		SELECT id, tenant, link, kind, currency FROM ledger_account
		WHERE (@tenant::text = '' OR tenant = @tenant) AND id < @before
		ORDER BY id DESC LIMIT @limit`
	rows, err := pool.Query(ctx, query, pgx.NamedArgs{"tenant": tenant, "before": before, "limit": limit + 1})
	if err != nil {
		return nil, "", fmt.Errorf("list accounts: %w", err)
	}
	accounts, err = pgx.CollectRows(rows, scanAccount)
	if err != nil {
		return nil, "", fmt.Errorf("list accounts: %w", err)
	}
	if len(accounts) > limit {
		accounts = accounts[:limit]
		next = encodeCursor(strconv.Itoa(int(accounts[limit-1].ID)))
	}
	return accounts, next, nil
}

func scanAccount(row pgx.CollectableRow) (Account, error) {
	var account Account
	var kind, currency string
	err := row.Scan(&account.ID, &account.Tenant, &account.Link, &kind, &currency)
	account.Kind = AccountKind(kind)
	account.Currency = storedCurrency(currency)
	return account, err
}

// storedCurrency keeps a code that the table no longer lists: what was once booked stays readable, in minor units.
func storedCurrency(alpha string) Currency {
	if currency, ok := CurrencyByAlpha(alpha); ok {
		return currency
	}
	return Currency{Alpha: alpha}
}
