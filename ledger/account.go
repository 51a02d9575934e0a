package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// AccountKind is what an account stands for, seen from the bank.
type AccountKind string

// The kinds of accounts, each per tenant, link and currency.
const (
	Customer   AccountKind = "customer"   // the tenant's side: what we owe it
	Settlement AccountKind = "settlement" // what the scheme owes us; negative when we owe the scheme
	Suspense   AccountKind = "suspense"   // moved without a hold, until someone explains it
)

// Side is one of the two sides of a posting.
type Side string

// The sides.
const (
	DebitSide  Side = "debit"
	CreditSide Side = "credit"
)

// Normal is the side that raises a balance of this kind: what we owe is raised by credits, what is owed to us by debits.
func (k AccountKind) Normal() Side {
	if k == Customer {
		return CreditSide
	}
	return DebitSide
}

// Account is one account of the book. It never changes once made.
type Account struct {
	ID       int32
	Tenant   string
	Link     string
	Kind     AccountKind
	Currency Currency
}

// Normal is the side that raises the account's balance.
func (a Account) Normal() Side { return a.Kind.Normal() }

// ErrNoAccount says that no such account exists.
var ErrNoAccount = errors.New("no such account")

// maxCachedAccounts bounds the cache of account ids. A full cache is emptied: ids are cheap to read again.
const maxCachedAccounts = 16384

// Accounts finds and makes accounts, and remembers their ids. It is safe for concurrent use, also across daemons.
type Accounts struct {
	pool    *pgxpool.Pool
	finding chan struct{} // room for one: many first requests at once are one look-up, not a rush for connections

	mu  sync.RWMutex // protects the following
	ids map[accountName]int32
}

type accountName struct {
	tenant, link string
	kind         AccountKind
	currency     string
}

// NewAccounts makes the cache over pool, which must be allowed to insert accounts.
func NewAccounts(pool *pgxpool.Pool) *Accounts {
	return &Accounts{pool: pool, finding: make(chan struct{}, 1), ids: make(map[accountName]int32)}
}

// ID is the id of the tenant's account of this kind and currency on the link, made at first use.
func (a *Accounts) ID(ctx context.Context, tenant, link string, kind AccountKind, currency Currency) (int32, error) {
	name := accountName{tenant: tenant, link: link, kind: kind, currency: currency.Alpha}
	if id, ok := a.cached(name); ok {
		return id, nil
	}
	if err := name.validate(); err != nil {
		return 0, fmt.Errorf("find account: %w", err)
	}
	select {
	case a.finding <- struct{}{}:
		defer func() { <-a.finding }()
	case <-ctx.Done():
		return 0, fmt.Errorf("find account: %w", ctx.Err())
	}
	if id, ok := a.cached(name); ok {
		return id, nil
	}
	id, err := findOrInsertAccount(ctx, a.pool, name)
	if err != nil {
		return 0, fmt.Errorf("find account: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.ids) >= maxCachedAccounts {
		clear(a.ids)
	}
	a.ids[name] = id
	return id, nil
}

func (a *Accounts) cached(name accountName) (id int32, ok bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	id, ok = a.ids[name]
	return id, ok
}

func (n accountName) validate() error {
	_, known := CurrencyByAlpha(n.currency)
	switch {
	case !withinBytes(n.tenant, maxTenantBytes):
		return fmt.Errorf("tenant is empty or longer than %d bytes", maxTenantBytes)
	case !withinBytes(n.link, maxLinkBytes):
		return fmt.Errorf("link is empty or longer than %d bytes", maxLinkBytes)
	case n.kind != Customer && n.kind != Settlement && n.kind != Suspense:
		return errors.New("kind is unknown")
	case !known:
		return errors.New("currency is unknown")
	}
	return nil
}
