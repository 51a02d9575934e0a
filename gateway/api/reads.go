package api

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/ledger"
)

// listExceptions shows the tenant's open exceptions, newest first.
func (a *API) listExceptions(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, pageParameters)
	limit, before := q.limit(), q.cursorID()
	if err := q.err(); err != nil {
		return err
	}
	found, err := a.gateway.Exceptions(r.Context(), c.tenant, before, limit+1)
	if err != nil {
		return err
	}
	next := ""
	if len(found) > limit {
		found = found[:limit]
		next = idCursor(found[limit-1].ID)
	}
	return writeList(w, found, next)
}

// accountBody is one account of the book. Normal is the side that raises its balance.
type accountBody struct {
	ID       int32              `json:"id"`
	Link     string             `json:"link"`
	Kind     ledger.AccountKind `json:"kind"`
	Currency string             `json:"currency"`
	Normal   ledger.Side        `json:"normal"`
}

func (a *API) listAccounts(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, pageParameters)
	limit := q.limit()
	if err := q.err(); err != nil {
		return err
	}
	accounts, next, err := ledger.ListAccounts(r.Context(), a.pool, c.tenant, q.values.Get("cursor"), limit)
	if err != nil {
		return ledgerError(err)
	}
	items := make([]accountBody, len(accounts))
	for i, account := range accounts {
		items[i] = accountBody{ID: account.ID, Link: account.Link, Kind: account.Kind, Currency: account.Currency.Alpha, Normal: account.Normal()}
	}
	return writeList(w, items, next)
}

// balanceBody is an account's balance; amounts are decimal text.
type balanceBody struct {
	Account   int32      `json:"account"`
	Currency  string     `json:"currency"`
	At        *time.Time `json:"at"`
	Posted    string     `json:"posted"`
	Held      string     `json:"held"`
	Available string     `json:"available"`
}

// getBalance gives the balance now, or from everything booked up to and including `at`.
func (a *API) getBalance(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, balanceParameters)
	at := q.at()
	if err := q.err(); err != nil {
		return err
	}
	account, err := a.account(r, c)
	if err != nil {
		return err
	}
	balance, err := ledger.BalanceAt(r.Context(), a.pool, account, at)
	if err != nil {
		return ledgerError(err)
	}
	body := balanceBody{Account: account.ID, Currency: account.Currency.Alpha,
		Posted: balance.Posted.Text(), Held: balance.Held.Text(), Available: balance.Available.Text()}
	if !at.IsZero() {
		body.At = &at
	}
	return writeJSON(w, body)
}

// entryBody is one posting, seen from the account that was asked for.
type entryBody struct {
	ID              int64       `json:"id"`
	Key             string      `json:"key"`
	Resource        string      `json:"resource"`
	BookedAt        time.Time   `json:"booked_at"`
	ValueDate       string      `json:"value_date"`
	Layer           string      `json:"layer"`
	Step            string      `json:"step"`
	Side            ledger.Side `json:"side"`
	Amount          string      `json:"amount"`
	Currency        string      `json:"currency"`
	OtherAccount    int32       `json:"other_account"`
	Correction      bool        `json:"correction"`
	ClientReference string      `json:"client_reference"`
	SourceRef       string      `json:"source_ref"`
}

func (a *API) listEntries(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, pageParameters)
	limit := q.limit()
	if err := q.err(); err != nil {
		return err
	}
	account, err := a.account(r, c)
	if err != nil {
		return err
	}
	entries, next, err := ledger.Entries(r.Context(), a.pool, account.ID, q.values.Get("cursor"), limit)
	if err != nil {
		return ledgerError(err)
	}
	items := make([]entryBody, len(entries))
	for i, e := range entries {
		side, other := ledger.DebitSide, e.CreditAccount
		if e.CreditAccount == account.ID {
			side, other = ledger.CreditSide, e.DebitAccount
		}
		items[i] = entryBody{
			ID: e.ID, Key: e.Key(), Resource: gateway.AuthorizationPath(e.Intent), BookedAt: e.BookedAt, ValueDate: e.ValueDate.Format(time.DateOnly),
			Layer: e.Layer.String(), Step: e.Step.String(), Side: side, Amount: e.Money.Text(), Currency: e.Money.Currency.Alpha,
			OtherAccount: other, Correction: e.Correction, ClientReference: e.ClientReference, SourceRef: e.SourceRef,
		}
	}
	return writeList(w, items, next)
}

// account finds the account of the path among the caller's own; another tenant's does not exist for it.
func (a *API) account(r *http.Request, c caller) (ledger.Account, error) {
	id, err := strconv.ParseInt(r.PathValue("account"), 10, 32)
	if err != nil || id < 1 {
		return ledger.Account{}, &gateway.Error{Code: gateway.CodeNotFound}
	}
	account, err := ledger.AccountByID(r.Context(), a.pool, int32(id))
	if err != nil {
		return ledger.Account{}, ledgerError(err)
	}
	if account.Tenant != c.tenant {
		return ledger.Account{}, &gateway.Error{Code: gateway.CodeNotFound}
	}
	return account, nil
}

func ledgerError(err error) error {
	switch {
	case errors.Is(err, ledger.ErrNoAccount):
		return &gateway.Error{Code: gateway.CodeNotFound}
	case errors.Is(err, ledger.ErrCursor):
		return &gateway.Error{Code: gateway.CodeMalformedParameter,
			Faults: []gateway.FieldFault{{Field: "cursor", Rule: "must be the next_cursor of the page before"}}}
	}
	return gateway.Errorf(gateway.CodeDatabaseUnavailable, err, "")
}
