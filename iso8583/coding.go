package iso8583

// coding is how the characters of a value or of a length stand on the wire.
type coding uint8

const (
	ascii      coding = iota // a byte each
	ebcdic                   // a byte each, code page 037
	packed                   // binary coded decimal: two digits a byte
	binaryCode               // bytes as they are; of a length, an unsigned number with its highest byte first
)

var codingsByName = map[string]coding{"ascii": ascii, "ebcdic": ebcdic, "bcd": packed, "binary": binaryCode}

const codingNames = "ascii, ebcdic, bcd or binary"

// filler is what fills the byte that an odd number of packed digits leaves half empty.
type filler uint8

const (
	leftZero filler = iota // a zero in front: numbers
	rightF                 // an F behind: card numbers and tracks of some hosts
)

var fillersByName = map[string]filler{"left-zero": leftZero, "right-f": rightF}

const (
	fillerF   = 0xF
	separator = 0xD // between the parts of a packed track; in text D, or = as a card's stripe has it
)

// ebcdicRows are code page 037's printable ASCII characters, by the byte of the first one; what is not in a row has no printable ASCII
// character, or is a control character.
var ebcdicRows = [...]struct {
	first      byte
	characters string
}{
	{0x40, " "}, {0x4B, ".<(+|"}, {0x50, "&"}, {0x5A, "!$*);"}, {0x60, "-/"}, {0x6B, ",%_>?"}, {0x79, "`:#@'=\""},
	{0x81, "abcdefghi"}, {0x91, "jklmnopqr"}, {0xA1, "~stuvwxyz"}, {0xB0, "^"}, {0xBA, "[]"},
	{0xC0, "{ABCDEFGHI"}, {0xD0, "}JKLMNOPQR"}, {0xE0, "\\"}, {0xE2, "STUVWXYZ"}, {0xF0, "0123456789"},
}

// toASCII has 0 for what cannot be printed; fromASCII has 0 for what code page 037 lacks, which is no printable character.
var toASCII, fromASCII = func() (to, from [256]byte) {
	for _, row := range ebcdicRows {
		for i := range len(row.characters) {
			to[row.first+byte(i)] = row.characters[i]
			from[row.characters[i]] = row.first + byte(i)
		}
	}
	return to, from
}()

// packedCharacters are the characters of the 16 half bytes; those from ten on are no digits, and only a track's separator is a value.
const packedCharacters = "0123456789:;<D>?"

// appendPacked packs digits, and separators of a track. The caller has checked the characters.
func appendPacked[T string | []byte](dst []byte, digits T, fill filler) []byte {
	i := 0
	if len(digits)%2 == 1 && fill == leftZero {
		dst = append(dst, half(digits[0]))
		i = 1
	}
	for ; i+1 < len(digits); i += 2 {
		dst = append(dst, half(digits[i])<<4|half(digits[i+1]))
	}
	if i < len(digits) {
		dst = append(dst, half(digits[i])<<4|fillerF)
	}
	return dst
}

func half(c byte) byte {
	if c == 'D' || c == '=' {
		return separator
	}
	return c - '0'
}

// appendUnpacked gives the characters of packed digits. What is no digit or separator comes as a character that no value has, and a wrong
// filler as part of the value, so that the caller's check finds it and no two different values look the same.
func appendUnpacked(dst, b []byte, odd bool, fill filler) []byte {
	if len(b) == 0 {
		return dst
	}
	if odd && fill == leftZero {
		if b[0]>>4 != 0 {
			dst = append(dst, packedCharacters[b[0]>>4])
		}
		dst = append(dst, packedCharacters[b[0]&0xF])
		b, odd = b[1:], false
	}
	last := len(b)
	if odd {
		last--
	}
	for _, c := range b[:last] {
		dst = append(dst, packedCharacters[c>>4], packedCharacters[c&0xF])
	}
	if odd {
		dst = append(dst, packedCharacters[b[last]>>4])
		if b[last]&0xF != fillerF {
			dst = append(dst, packedCharacters[b[last]&0xF])
		}
	}
	return dst
}
