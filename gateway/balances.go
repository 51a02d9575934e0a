package gateway

import (
	"strconv"

	"github.com/schemegate/schemegate/ledger"
)

// Balance is one amount of the scheme's own that came with the answer (DE 54), as decimal text in its own currency.
type Balance struct {
	AccountType string `json:"account_type"` // two digits: 00 unspecified, 10 savings, 20 checking, 30 credit
	AmountType  string `json:"amount_type"`  // two digits: 01 ledger balance, 02 available, 40 cash, ...
	Currency    string `json:"currency"`     // ISO 4217 alphabetic
	Sign        string `json:"sign"`         // C or D
	Amount      string `json:"amount"`
}

const (
	balanceGroupSize = 20 // characters of one amount in DE 54
	maxBalances      = 6  // of 120 characters
)

// parseBalances reads DE 54: groups of account type (2), amount type (2), currency (3), sign (1) and amount (12). A group that cannot be
// read says nothing about the others and is left out: balances are news, and decide nothing.
func parseBalances(text string) []Balance {
	var balances []Balance
	for ; len(text) >= balanceGroupSize && len(balances) < maxBalances; text = text[balanceGroupSize:] {
		if b, ok := parseBalance(text[:balanceGroupSize]); ok {
			balances = append(balances, b)
		}
	}
	return balances
}

func parseBalance(group string) (Balance, bool) {
	currency, ok := ledger.CurrencyByNumeric(group[4:7])
	sign := group[7:8]
	minor, err := strconv.ParseInt(group[8:], 10, 64)
	if !ok || err != nil || group[8] == '-' || group[8] == '+' || sign != "C" && sign != "D" || !twoDigits.MatchString(group[:2]) || !twoDigits.MatchString(group[2:4]) {
		return Balance{}, false
	}
	return Balance{AccountType: group[:2], AmountType: group[2:4], Currency: currency.Alpha, Sign: sign,
		Amount: ledger.Money{Minor: minor, Currency: currency}.Text()}, true
}
