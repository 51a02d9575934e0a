package iso8583

import "fmt"

// rule is one element's line of a dialect: what its values may be and how they stand on the wire.
type rule struct {
	format       format
	coding       coding
	signCoding   coding // of the C or D in front of packed digits
	filler       filler // of packed digits
	prefix       uint8  // digits of the length in front of the value; 0 for a fixed length
	lengthCoding coding
	countsBytes  bool   // the length in front counts the wire's bytes, not characters: of packed digits, half as many
	length       uint16 // exact for a fixed length, otherwise the most; characters of text, bytes of a binary value

	// What follows from the above, for the walk.
	walk        walkKind
	prefixBytes uint8
	most        uint16 // bytes of a fixed value; otherwise the most that the length in front may say
}

// walkKind is how the walk finds the end of a value.
type walkKind uint8

const (
	walkAbsent   walkKind = iota // the dialect does not have the element
	walkFixed                    // after so many bytes
	walkFixedOdd                 // the same, half a byte of packed digits being filler
	walkDigits                   // by a length of ASCII digits, a character a byte
	walkLength                   // by any other length
)

func (r rule) compiled() rule {
	r.prefixBytes = prefixBytes(r.prefix, r.lengthCoding)
	r.most = r.length
	if r.prefix == fixed || r.countsBytes {
		r.most = uint16(r.wireSize(int(r.length)))
	}
	switch {
	case r.prefix == fixed && r.coding == packed && r.oddDigits(int(r.length)):
		r.walk = walkFixedOdd
	case r.prefix == fixed:
		r.walk = walkFixed
	case r.lengthCoding == ascii && r.coding != packed:
		r.walk = walkDigits
	default:
		r.walk = walkLength
	}
	return r
}

// locate finds where a value of a variable length begins and ends, and whether half a byte of it is filler. The end may be beyond the
// message. rule is what is wrong with the length, "" when nothing is.
func (r *rule) locate(body []byte, offset int) (start, end int, odd bool, rule string) {
	start = offset + int(r.prefixBytes)
	if start > len(body) {
		return 0, 0, false, ruleEndsBeyond
	}
	length := 0
	if r.walk == walkDigits {
		for _, c := range body[offset:start] {
			d := c - '0'
			if d > 9 {
				return 0, 0, false, ruleLengthDigits
			}
			length = length*10 + int(d)
		}
	} else {
		var ok bool
		if length, ok = r.readLength(body[offset:start]); !ok {
			return 0, 0, false, ruleLengthDigits
		}
	}
	switch {
	case length > int(r.most):
		return 0, 0, false, r.beyondMost(length)
	case r.coding != packed:
		return start, start + length, false, ""
	case !r.countsBytes:
		return start, start + r.wireSize(length), r.oddDigits(length), ""
	}
	// Nothing but the last half byte tells how many digits there are.
	end = start + length
	odd = r.filler == rightF && length > 0 && end <= len(body) && body[end-1]&0xF == fillerF
	if n := r.textSize(length, odd); n > int(r.length) && end <= len(body) {
		return 0, 0, false, r.tooLong(n, "characters")
	}
	return start, end, odd, ""
}

func (r *rule) beyondMost(n int) string {
	unit := "characters"
	if r.format.isBinary() || r.countsBytes {
		unit = "bytes"
	}
	return fmt.Sprintf("at most %d %s, not %d", r.most, unit, n)
}

// prefixBytes is how many bytes a length of so many digits takes. As a binary number, one byte holds what two digits hold, and more.
func prefixBytes(digits uint8, c coding) uint8 {
	switch {
	case c == packed:
		return (digits + 1) / 2
	case c == binaryCode && digits == lllvar:
		return 2
	case c == binaryCode && digits > 0:
		return 1
	}
	return digits
}

// mostOf is the greatest number that a length of so many digits can say.
func mostOf(digits uint8, c coding) int {
	if c == binaryCode && (digits == lvar || digits == llvar) {
		return maxBinaryLength
	}
	return mostByPrefix[digits]
}

const maxBinaryLength = 1<<8 - 1 // of one byte

// packedDigits is how many of n characters are packed: all but a sign.
func (r *rule) packedDigits(n int) int {
	if r.format == signed && n > 0 {
		return n - 1
	}
	return n
}

func (r *rule) oddDigits(n int) bool { return r.packedDigits(n)%2 == 1 }

// wireSize is how many bytes n characters, or bytes of a binary value, take without the length in front.
func (r *rule) wireSize(n int) int {
	if r.coding != packed {
		return n
	}
	digits := r.packedDigits(n)
	return n - digits + (digits+1)/2
}

// textSize is the other way round, with odd telling that half a byte is filler.
func (r *rule) textSize(bytes int, odd bool) int {
	if r.coding != packed || bytes == 0 {
		return bytes
	}
	n := 2 * bytes
	if r.format == signed {
		n--
	}
	if odd {
		n--
	}
	return n
}

// readLength reads the number in front of a value; false when it is not what the profile says it is made of. There are prefixBytes bytes.
func (r *rule) readLength(b []byte) (n int, ok bool) {
	b = b[:r.prefixBytes]
	switch r.lengthCoding {
	case packed:
		for _, c := range b {
			high, low := c>>4, c&0xF
			if high > 9 || low > 9 {
				return 0, false
			}
			n = n*100 + int(high*10+low)
		}
	case binaryCode:
		for _, c := range b {
			n = n<<8 | int(c)
		}
	default:
		zero := byte('0')
		if r.lengthCoding == ebcdic {
			zero = ebcdicZero
		}
		for _, c := range b {
			d := c - zero
			if d > 9 {
				return 0, false
			}
			n = n*10 + int(d)
		}
	}
	return n, true
}

func (r *rule) appendLength(dst []byte, n int) []byte {
	size := int(r.prefixBytes)
	for range size {
		dst = append(dst, 0)
	}
	b := dst[len(dst)-size:]
	for i := size - 1; i >= 0; i-- {
		switch r.lengthCoding {
		case packed:
			b[i] = byte(n/10%10<<4 | n%10)
			n /= 100
		case binaryCode:
			b[i] = byte(n)
			n >>= 8
		case ebcdic:
			b[i] = ebcdicZero + byte(n%10)
			n /= 10
		default:
			b[i] = '0' + byte(n%10)
			n /= 10
		}
	}
	return dst
}

// appendWire writes a value that checkValue has passed: the length in front, then the value.
func (r *rule) appendWire(dst, value []byte) []byte {
	if r.prefix != 0 {
		n := len(value)
		if r.countsBytes {
			n = r.wireSize(n)
		}
		dst = r.appendLength(dst, n)
	}
	switch r.coding {
	case ebcdic:
		for _, c := range value {
			dst = append(dst, fromASCII[c])
		}
		return dst
	case packed:
		if r.format == signed && len(value) > 0 {
			sign := value[0]
			if r.signCoding == ebcdic {
				sign = fromASCII[sign]
			}
			dst, value = append(dst, sign), value[1:]
		}
		return appendPacked(dst, value, r.filler)
	}
	return append(dst, value...)
}

// appendText gives the characters of a value on the wire, or its bytes. What the coding does not have comes as characters that the
// format refuses.
func (r *rule) appendText(dst, wire []byte, odd bool) []byte {
	switch r.coding {
	case ebcdic:
		for _, c := range wire {
			dst = append(dst, toASCII[c])
		}
		return dst
	case packed:
		if r.format == signed && len(wire) > 0 {
			sign := wire[0]
			if r.signCoding == ebcdic {
				sign = toASCII[sign]
			}
			dst, wire = append(dst, sign), wire[1:]
		}
		return appendUnpacked(dst, wire, odd, r.filler)
	}
	return append(dst, wire...)
}

// checkRead holds a value that appendText gave against the format; n is how long it must be.
func (r *rule) checkRead(e Element, value []byte, n int) error {
	if r.coding == packed {
		if len(value) != n {
			return &ElementError{e, ruleFiller}
		}
		if r.format == track {
			for _, c := range value {
				if classes[c] != digit && c != packedCharacters[separator] {
					return &ElementError{e, rulePackedTrack}
				}
			}
			return nil
		}
	}
	return checkFormat(r.format, e, value)
}

// checkValue holds a value to send against format and length, and against what the wire can carry of it.
func checkValue[T string | []byte](r *rule, e Element, value T) error {
	if err := r.checkLength(e, len(value)); err != nil {
		return err
	}
	if r.coding == packed {
		if r.countsBytes && r.filler == leftZero && r.prefix != 0 && r.oddDigits(len(value)) {
			return &ElementError{e, ruleEvenDigits}
		}
		if r.format == track {
			for i := range len(value) {
				if c := value[i]; classes[c] != digit && c != 'D' && c != '=' {
					return &ElementError{e, rulePackedTrack}
				}
			}
			return nil
		}
	}
	return checkFormat(r.format, e, value)
}

func (r *rule) checkLength(e Element, n int) error {
	unit := "characters"
	if r.format.isBinary() {
		unit = "bytes"
	}
	switch {
	case r.prefix == 0 && n != int(r.length):
		return &ElementError{e, fmt.Sprintf("exactly %d %s, not %d", r.length, unit, n)}
	case n > int(r.length):
		return &ElementError{e, r.tooLong(n, unit)}
	}
	return nil
}

func (r *rule) tooLong(n int, unit string) string {
	return fmt.Sprintf("at most %d %s, not %d", r.length, unit, n)
}

const (
	ebcdicZero = 0xF0

	ruleFiller      = "its filler is not the profile's"
	rulePackedTrack = "digits and the separator D (or =) only, since it is packed"
	ruleEvenDigits  = "an even number of digits, since its length counts bytes and a zero in front would be one of them"
)
