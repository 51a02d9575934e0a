package iso8583

// format is what a data element's bytes may be, in the standard's notation.
type format uint8

const (
	noFormat     format = iota // the dialect does not have the element
	numeric                    // n: digits
	alphanumeric               // an: letters and digits, and spaces, with which peers pad
	anyText                    // ans: printable ASCII
	track                      // z: printable ASCII; its inner layout is nobody's business here, since terminals send what the magnet says
	signed                     // x+n: C or D, then digits
	opaque                     // b: any bytes
	berTLV                     // tlv: binary that must be well-formed BER-TLV, kept as it is
)

var formatsByName = map[string]format{
	"n": numeric, "an": alphanumeric, "ans": anyText, "z": track, "x+n": signed, "b": opaque, "tlv": berTLV,
}

const formatNames = "n, an, ans, z, x+n, b or tlv"

// isBinary tells that values are bytes, not text.
func (f format) isBinary() bool { return f == opaque || f == berTLV }

// Character classes, as bits.
const (
	digit = 1 << iota
	letter
	space
	special
)

var allowed = [...]uint8{
	numeric: digit, alphanumeric: digit | letter | space, anyText: digit | letter | space | special,
	track: digit | letter | space | special, signed: digit,
}

var formatRules = [...]string{
	numeric: "digits only", alphanumeric: "letters, digits and spaces only", anyText: "printable ASCII only",
	track: "printable ASCII only", signed: "C or D, then digits",
}

// classes has no class for control characters, NUL and what is not ASCII, so no text format lets them through.
var classes = func() (table [256]uint8) {
	for c := ' '; c <= '~'; c++ {
		switch {
		case c >= '0' && c <= '9':
			table[c] = digit
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
			table[c] = letter
		case c == ' ':
			table[c] = space
		default:
			table[c] = special
		}
	}
	return table
}()

// checkFormat holds a value against the element's format; its length is checked elsewhere.
func checkFormat[T string | []byte](f format, e Element, value T) error {
	switch f {
	case opaque:
		return nil
	case berTLV:
		if err := checkBERTLV(value); err != nil {
			return &ElementError{e, err.Error()}
		}
		return nil
	case signed:
		if len(value) > 0 && value[0] != 'C' && value[0] != 'D' {
			return &ElementError{e, formatRules[signed]}
		}
		value = value[min(1, len(value)):]
	}
	mask := allowed[f]
	for i := range len(value) {
		if classes[value[i]]&mask == 0 {
			return &ElementError{e, formatRules[f]}
		}
	}
	return nil
}

// digitsOnly tells whether text holds nothing but digits; "" does.
func digitsOnly(text string) bool { return checkFormat(numeric, 0, text) == nil }
