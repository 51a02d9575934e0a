package iso8583

import (
	"fmt"
	"io"
	"strings"
)

const (
	shownHead, shownTail = 6, 4 // digits of a card number that may be seen
	minDigitsForHead     = 15   // below, head and tail together would leave too little hidden
	minDigitsForTail     = 8
	minCardDigits        = 13
	maxCardDigits        = 19
)

// CardNumber is a primary account number. However it is printed, marshalled or logged, it shows at most its first six and last four
// digits; Reveal is the one way to the digits. It is no key for a map: encoding/json writes keys of a string type as they are.
type CardNumber string

// Reveal gives the clear digits: for the wire, for sealing and for keyed hashing, never for people.
func (n CardNumber) Reveal() string { return string(n) }

// String gives the masked number.
func (n CardNumber) String() string { return MaskPAN(string(n)) }

// GoString gives the masked number.
func (n CardNumber) GoString() string { return n.String() }

// Format writes the masked number whatever the verb, hexadecimal ones included.
func (n CardNumber) Format(f fmt.State, _ rune) { io.WriteString(f, n.String()) }

// MarshalText gives the masked number.
func (n CardNumber) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// MaskPAN gives 411111******1111 for a card number; short ones show less, and what is not all digits nothing.
func MaskPAN(pan string) string {
	head, tail := 0, 0
	switch n := len(pan); {
	case !digitsOnly(pan) || n > maxCardDigits:
		return strings.Repeat("*", min(n, maxCardDigits))
	case n >= minDigitsForHead:
		head, tail = shownHead, shownTail
	case n >= minDigitsForTail:
		tail = shownTail
	}
	return pan[:head] + strings.Repeat("*", len(pan)-head-tail) + pan[len(pan)-tail:]
}

// LuhnValid tells whether the last digit is the check digit of those before it. Real card numbers without one exist, so this serves to
// suspect a card number where none should be, never to refuse one.
func LuhnValid(digits string) bool {
	if digits == "" {
		return false
	}
	sum, double := 0, false
	for i := len(digits) - 1; i >= 0; i-- {
		d := int(digits[i]) - '0'
		if d < 0 || d > 9 {
			return false
		}
		if double {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		double = !double
	}
	return sum%10 == 0
}

// maskCardNumbers masks every run of digits that could be a card number: in text that a peer or client fills freely.
func maskCardNumbers(text string) string {
	if len(text) < minCardDigits {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && classes[text[end]] == digit {
			end++
		}
		switch n := end - i; {
		case n == 0:
			b.WriteByte(text[i])
			end++
		case n > maxCardDigits, n >= minCardDigits && LuhnValid(text[i:end]):
			b.WriteString(MaskPAN(text[i:end]))
		default:
			b.WriteString(text[i:end])
		}
		i = end
	}
	return b.String()
}

const present = "present"

// appendMasked writes one element as people may see it.
func appendMasked(b *strings.Builder, e Element, x exposure, value string) {
	fmt.Fprintf(b, "DE%d=", uint8(e))
	switch x {
	case masked:
		b.WriteString(MaskPAN(value))
		return
	case verbatim:
	case shown:
		value = maskCardNumbers(value)
	default:
		b.WriteString(present)
		return
	}
	if strings.ContainsAny(value, " \"\\=") || value == "" {
		fmt.Fprintf(b, "%q", value)
		return
	}
	b.WriteString(value)
}
