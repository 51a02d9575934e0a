package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// effect is what an approval does to the customer's money. It follows from the type and from the message class that the link's
// profile maps it to, both of which are fixed when the authorisation is recorded.
type effect int

const (
	holds   effect = iota // 0100: the amount is held until it is captured, reversed or expires
	debits                // 0200: held while it is on its way, then moved at once
	credits               // a refund: moved towards the customer, nothing is held
	nothing               // a balance inquiry
)

// withoutHold are the types for which nothing is held when they are recorded, as SQL.
const withoutHold = `'refund', 'balance_inquiry'`

// effectSQL is the effect of a row named a, as a word.
const effectSQL = `CASE WHEN a.type = 'refund' THEN 'credits' WHEN a.type = 'balance_inquiry' THEN 'nothing'
	WHEN substr(a.mti, 2, 1) = '2' THEN 'debits' ELSE 'holds' END`

// financialClass is the second digit of a message type that moves money by itself.
const financialClass = 2

func (a *Authorization) effect() effect {
	mti, err := iso8583.ParseMTI(a.MTI)
	switch {
	case a.Type == Refund:
		return credits
	case a.Type == BalanceInquiry:
		return nothing
	case err == nil && mti.Class() == financialClass:
		return debits
	}
	return holds
}

// held is the amount that is held while the authorisation is pending or timed out.
func (a *Authorization) held() int64 {
	if e := a.effect(); e == holds || e == debits {
		return a.AmountMinor
	}
	return 0
}

// remaining is what is left of an approved hold to capture or to take back: nothing once it is captured, reversed or expired, or
// is to be reversed as a whole.
func (a *Authorization) remaining() int64 {
	if a.State != Approved || a.Reversal != nil || a.ApprovedMinor == nil || a.effect() != holds {
		return 0
	}
	return *a.ApprovedMinor - a.CapturedMinor - a.ReversedMinor
}

// The numbers of an authorisation's releases (ledger step release): the decision's, the one that ends what is left of an approved
// hold, and from releaseOfDuty on those of captures and partial reversals. A hold therefore ends once, whoever ends it.
const (
	releaseAtDecision int16 = 1
	releaseOfRest     int16 = 2
	releaseOfDuty     int16 = 2 // plus the duty's number, which starts at 1
)

// The transactions of an authorisation's postings. What was booked without a hold stands apart, so that it is undone by itself.
const (
	transactionOwn    int16 = 0
	transactionUnheld int16 = 1
)

// maxDutiesOfOne bounds the captures and partial reversals of one authorisation; the ledger's compensation numbers have room for 3276.
const maxDutiesOfOne = 999

// businessDate reads a date off the wire: YYMMDD (1993), or MMDD, which gets the year that brings it nearest to a moment.
func businessDate(text string, near time.Time) (time.Time, error) {
	if len(text) == len("YYMMDD") {
		return time.Parse("060102", text)
	}
	var best time.Time
	for year := near.Year() - 1; year <= near.Year()+1; year++ {
		day, err := time.Parse("20060102", fmt.Sprintf("%04d%s", year, text))
		if err == nil && (best.IsZero() || day.Sub(near).Abs() < best.Sub(near).Abs()) {
			best = day
		}
	}
	if best.IsZero() {
		return best, errors.New("not MMDD or YYMMDD")
	}
	return best, nil
}
