package ledger

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func currency(t testing.TB, alpha string) Currency {
	t.Helper()
	c, ok := CurrencyByAlpha(alpha)
	if !ok {
		t.Fatalf("currency %s is unknown", alpha)
	}
	return c
}

func TestParseMoneyReadsDecimalText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text, currency string
		minor          int64
		canonical      string
	}{
		{"10.50", "EUR", 1050, "10.50"},
		{"10.5", "EUR", 1050, "10.50"},
		{"10", "EUR", 1000, "10.00"},
		{"0", "EUR", 0, "0.00"},
		{"0.00", "EUR", 0, "0.00"},
		{"0.01", "EUR", 1, "0.01"},
		{"9999999999.99", "EUR", 999999999999, "9999999999.99"},
		{"1050", "JPY", 1050, "1050"},
		{"999999999999", "JPY", 999999999999, "999999999999"},
		{"1.234", "KWD", 1234, "1.234"},
		{"1.2", "KWD", 1200, "1.200"},
		{"0.0001", "CLF", 1, "0.0001"},
		{"1000000.00", "USD", 100000000, "1000000.00"},
	}
	for _, tt := range tests {
		m, err := ParseMoney(tt.text, currency(t, tt.currency))
		if err != nil {
			t.Errorf("ParseMoney(%q, %s): %v", tt.text, tt.currency, err)
			continue
		}
		if m.Minor != tt.minor || m.Text() != tt.canonical {
			t.Errorf("ParseMoney(%q, %s) = %d minor, text %q; want %d, %q", tt.text, tt.currency, m.Minor, m.Text(), tt.minor, tt.canonical)
		}
	}
}

func TestParseMoneyRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, currency, rule string }{
		{"", "EUR", "empty"},
		{"-1.00", "EUR", "only digits"},
		{"+1.00", "EUR", "only digits"},
		{"1e3", "EUR", "only digits"},
		{"1,50", "EUR", "only digits"},
		{"1 000", "EUR", "only digits"},
		{" 1", "EUR", "only digits"},
		{"1.2.3", "EUR", "only digits"},
		{"0x10", "EUR", "only digits"},
		{"NaN", "EUR", "only digits"},
		{"١٠", "EUR", "only digits"},
		{".50", "EUR", "both sides"},
		{"5.", "EUR", "both sides"},
		{".", "EUR", "both sides"},
		{"1.", "JPY", "both sides"},
		{"007", "EUR", "leading zeros"},
		{"00.50", "EUR", "leading zeros"},
		{"1.005", "EUR", "EUR has 2 decimals"},
		{"1.0", "JPY", "JPY has 0 decimals"},
		{"1.0000", "KWD", "KWD has 3 decimals"},
		{"10000000000.00", "EUR", "more than 12 digits"},
		{"10000000000", "EUR", "more than 12 digits"},
		{"1000000000000", "JPY", "more than 12 digits"},
		{strings.Repeat("9", 400), "EUR", "more than 12 digits"},
	}
	for _, tt := range tests {
		_, err := ParseMoney(tt.text, currency(t, tt.currency))
		if !errors.Is(err, ErrAmount) || !strings.Contains(err.Error(), tt.rule) {
			t.Errorf("ParseMoney(%q, %s) = %v; want ErrAmount naming %q", tt.text, tt.currency, err, tt.rule)
		}
	}
}

func TestParseMoneyNeverQuotesItsInput(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"4111111111111111", "4111111111111111=2912", "4111.111111111111"} {
		_, err := ParseMoney(text, currency(t, "EUR"))
		if err == nil || strings.Contains(err.Error(), "4111") {
			t.Errorf("error shows what was parsed: %v", err)
		}
	}
}

func TestMoneyTextRoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := Money{
			Minor:    rapid.Int64Range(0, 999999999999).Draw(t, "minor"),
			Currency: rapid.SampledFrom(currencies).Draw(t, "currency"),
		}
		back, err := ParseMoney(m.Text(), m.Currency)
		if err != nil || back != m {
			t.Fatalf("%d %s is written as %q and read as %d: %v", m.Minor, m.Currency.Alpha, m.Text(), back.Minor, err)
		}
	})
}

func TestMoneyTextOfNegativeBalances(t *testing.T) {
	t.Parallel()
	tests := []struct {
		minor    int64
		currency string
		text     string
	}{
		{-5, "EUR", "-0.05"}, {-1050, "EUR", "-10.50"}, {-7, "JPY", "-7"}, {-1, "CLF", "-0.0001"},
		{-9223372036854775808, "EUR", "-92233720368547758.08"},
	}
	for _, tt := range tests {
		if got := (Money{Minor: tt.minor, Currency: currency(t, tt.currency)}).Text(); got != tt.text {
			t.Errorf("%d %s is written as %q, want %q", tt.minor, tt.currency, got, tt.text)
		}
	}
}

func TestCurrencyTable(t *testing.T) {
	t.Parallel()
	if len(currencyByAlpha) != len(currencies) || len(currencyByNumeric) != len(currencies) {
		t.Errorf("%d entries give %d alphabetic and %d numeric codes", len(currencies), len(currencyByAlpha), len(currencyByNumeric))
	}
	previous := ""
	for _, c := range currencies {
		if len(c.Alpha) != 3 || strings.ToUpper(c.Alpha) != c.Alpha || len(c.Numeric) != 3 || !allDigits(c.Numeric) || c.Exponent < 0 || c.Exponent > 4 {
			t.Errorf("entry %+v is malformed", c)
		}
		if c.Alpha <= previous {
			t.Errorf("%s does not stand in order", c.Alpha)
		}
		previous = c.Alpha
	}
	want := []Currency{
		{"EUR", "978", 2}, {"USD", "840", 2}, {"JPY", "392", 0}, {"KRW", "410", 0}, {"ISK", "352", 0}, {"CLP", "152", 0},
		{"BHD", "048", 3}, {"JOD", "400", 3}, {"KWD", "414", 3}, {"OMR", "512", 3}, {"TND", "788", 3}, {"CLF", "990", 4},
		{"UYW", "927", 4}, {"HUF", "348", 2}, {"XOF", "952", 0}, {"XCG", "532", 2}, {"SLE", "925", 2}, {"ZWG", "924", 2},
	}
	for _, c := range want {
		byAlpha, _ := CurrencyByAlpha(c.Alpha)
		byNumeric, _ := CurrencyByNumeric(c.Numeric)
		if byAlpha != c || byNumeric != c {
			t.Errorf("%s is found as %+v and %+v, want %+v", c.Alpha, byAlpha, byNumeric, c)
		}
	}
	for _, gone := range []string{"XXX", "XTS", "XAU", "DEM", "HRK", "ANG", "eur", ""} {
		if _, ok := CurrencyByAlpha(gone); ok {
			t.Errorf("%q is a currency", gone)
		}
	}
}
