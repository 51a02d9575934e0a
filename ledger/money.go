package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxAmountDigits is the largest amount, in digits of minor units, that a card message carries (ISO 8583 DE 4, n 12).
const MaxAmountDigits = 12

// ErrAmount is wrapped by every error of ParseMoney.
var ErrAmount = errors.New("amount is not valid")

// Money is an amount in minor units of its currency: EUR 10.50 is Minor 1050. Amounts that are posted are positive; balances
// may be negative.
type Money struct {
	Minor    int64
	Currency Currency
}

// ParseMoney reads decimal text such as "10.50": digits with at most as many decimals as the currency has, no sign, no
// exponent, no grouping, no leading zeros, at most MaxAmountDigits digits of minor units. Fewer decimals are completed, so
// "10.5" EUR is 1050. The error wraps ErrAmount, names the rule and never quotes the text, which may be anything a caller put
// into the wrong field.
func ParseMoney(text string, currency Currency) (Money, error) {
	whole, fraction, hasPoint := strings.Cut(text, ".")
	switch {
	case text == "":
		return Money{}, fmt.Errorf("parse amount: %w: empty", ErrAmount)
	case !allDigits(whole) || !allDigits(fraction):
		return Money{}, fmt.Errorf("parse amount: %w: only digits and one decimal point are allowed", ErrAmount)
	case whole == "" || (hasPoint && fraction == ""):
		return Money{}, fmt.Errorf("parse amount: %w: digits must stand on both sides of the decimal point", ErrAmount)
	case len(whole) > 1 && whole[0] == '0':
		return Money{}, fmt.Errorf("parse amount: %w: leading zeros are not allowed", ErrAmount)
	case len(fraction) > currency.Exponent:
		return Money{}, fmt.Errorf("parse amount: %w: %s has %d decimals", ErrAmount, currency.Alpha, currency.Exponent)
	}
	digits := strings.TrimLeft(whole+fraction+strings.Repeat("0", currency.Exponent-len(fraction)), "0")
	if len(digits) > MaxAmountDigits {
		return Money{}, fmt.Errorf("parse amount: %w: more than %d digits in minor units", ErrAmount, MaxAmountDigits)
	}
	if digits == "" {
		return Money{Currency: currency}, nil
	}
	minor, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return Money{}, fmt.Errorf("parse amount: %w: not a number", ErrAmount)
	}
	return Money{Minor: minor, Currency: currency}, nil
}

// Text is the amount as decimal text with all decimals of its currency: "10.50", "-0.05", JPY "1050".
func (m Money) Text() string {
	digits := strconv.FormatInt(m.Minor, 10)
	sign := ""
	if m.Minor < 0 {
		sign, digits = "-", digits[1:]
	}
	exponent := m.Currency.Exponent
	if exponent == 0 {
		return sign + digits
	}
	if len(digits) <= exponent {
		digits = strings.Repeat("0", exponent+1-len(digits)) + digits
	}
	point := len(digits) - exponent
	return sign + digits[:point] + "." + digits[point:]
}

// String is the amount with its currency, for people: "10.50 EUR".
func (m Money) String() string { return m.Text() + " " + m.Currency.Alpha }

func allDigits(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return true
}
