package ledger

import (
	"time"

	"github.com/google/uuid"
)

// Balance is what an account holds at a moment, in minor units of its currency.
type Balance struct {
	// Posted is what has moved. It is positive on the account's normal side: for a customer, what we owe it.
	Posted Money
	// Held is what pending postings would take from the account. It is negative when they would add to it.
	Held Money
	// Available is Posted less what is held. What is pending in the account's favour is not available yet.
	Available Money
}

// layerTotals is what both sides of an account's postings sum up to in one layer.
type layerTotals struct {
	Layer  Layer
	Debit  int64
	Credit int64
}

func balanceOf(account Account, totals []layerTotals) Balance {
	var posted, held int64
	for _, t := range totals {
		net := t.Credit - t.Debit
		if account.Normal() == DebitSide {
			net = -net
		}
		switch t.Layer {
		case Posted:
			posted += net
		case Pending:
			held -= net
		}
	}
	money := func(minor int64) Money { return Money{Minor: minor, Currency: account.Currency} }
	return Balance{Posted: money(posted), Held: money(held), Available: money(posted - max(held, 0))}
}

// Difference is a day of an account on which the stored total is not what the postings sum up to. Amounts are minor units.
type Difference struct {
	Account          int32
	Layer            Layer
	BookedOn         time.Time // the UTC day of booked_at
	ProjectedDebit   int64
	ProjectedCredit  int64
	RecomputedDebit  int64
	RecomputedCredit int64
}

// TrialBalance sums one currency and layer over all accounts. Debit and Credit differ only if a posting names an account that
// does not exist or has another currency.
type TrialBalance struct {
	Currency string
	Layer    Layer
	Debit    int64
	Credit   int64
}

// Overrelease is an intent whose pending postings gave an account more back than its hold took.
type Overrelease struct {
	Intent      uuid.UUID
	Transaction int16
	Account     int32
	Minor       int64
}
