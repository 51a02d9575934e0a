package iso8583

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Peeked is where the elements of one message lie in its bytes. It is made to be used again for the next message; what it gives is valid
// as long as the bytes are.
type Peeked struct {
	spec   *Spec
	body   []byte
	mti    MTI
	bitmap [2]uint64 // bit 1 is the highest of the first
	odd    [2]uint64 // the same for packed values of which half a byte is filler
	at     [elementNumber]extent
}

// extent is where one value lies in the message's bytes, the length in front of it not included.
type extent struct{ start, end uint16 }

var (
	errShortMTI     = errors.New("the message ends before its message type indicator does")
	errShortBitmap  = errors.New("the message ends within its bitmap")
	errHexBitmap    = errors.New("the bitmap is not hexadecimal")
	errThirdBitmap  = &ElementError{secondBitmap, "announces a third bitmap, which the dialect does not have"}
	errLongBody     = fmt.Errorf("a message has at most %d bytes", maxBodyBytes)
	errMTINotDigits = errors.New("the message type indicator is not 4 digits")
	errUnlistedMTI  = errors.New("is not in the profile's list")
)

const (
	ruleLengthDigits = "its length is not all digits"
	ruleEndsBeyond   = "ends beyond the message"
	firstBit         = uint64(1) << 63
	bitmapHexDigits  = 2 * bitmapBytes
	mtiPackedBytes   = mtiDigits / 2
)

// Peek walks over the message without copying or allocating: its type, which must be one the profile lists, its bitmap, and where each
// element begins and ends. Every byte must belong to an element. Values are not looked at; Decode does that. After an error p holds
// no elements, and the type if it could be read.
func (s *Spec) Peek(body []byte, p *Peeked) error {
	end, err := s.walk(body, p)
	if err == nil && end != len(body) {
		err = fmt.Errorf("peek message: %d bytes are left over after the last element", len(body)-end)
	}
	if err != nil {
		p.bitmap = [2]uint64{}
	}
	return err
}

// walk gives the offset after the last element.
func (s *Spec) walk(body []byte, p *Peeked) (int, error) {
	p.spec, p.body, p.mti, p.odd = s, body, 0, [2]uint64{}
	offset, err := s.head(body, p)
	if err != nil {
		return 0, fmt.Errorf("peek message: %w", err)
	}
	for half := range p.bitmap {
		for word := p.bitmap[half] &^ firstBit; word != 0; {
			n := bits.LeadingZeros64(word)
			bit := firstBit >> (n & 63)
			word &^= bit
			e := half*64 + n + 1
			r := &s.rules[e]
			end := offset + int(r.most)
			switch r.walk {
			case walkFixed:
			case walkFixedOdd:
				p.odd[half] |= bit
			case walkAbsent:
				return 0, peekError(e, ruleAbsent)
			default:
				var odd bool
				var rule string
				if offset, end, odd, rule = r.locate(body, offset); rule != "" {
					return 0, peekError(e, rule)
				}
				if odd {
					p.odd[half] |= bit
				}
			}
			if end > len(body) {
				return 0, peekError(e, ruleEndsBeyond)
			}
			p.at[e] = extent{uint16(offset), uint16(end)}
			offset = end
		}
	}
	return offset, nil
}

func peekError(e int, rule string) error {
	return fmt.Errorf("peek message: %w", &ElementError{Element(e), rule})
}

// head reads the message type and the bitmaps, and gives the offset after them.
func (s *Spec) head(body []byte, p *Peeked) (int, error) {
	p.bitmap = [2]uint64{}
	if len(body) > maxBodyBytes {
		return 0, errLongBody
	}
	offset := s.mtiSize()
	if len(body) < offset {
		return 0, errShortMTI
	}
	mti, ok := s.readMTI(body[:offset])
	if !ok {
		return 0, errMTINotDigits
	}
	p.mti = mti
	if !containsMTI(s.mtis, mti) {
		return 0, fmt.Errorf("message type indicator %s %w", mti, errUnlistedMTI)
	}
	for i := range p.bitmap {
		word, size, err := s.bitmapWord(body[offset:])
		if err != nil {
			return 0, err
		}
		p.bitmap[i] = word
		offset += size
		if word&firstBit == 0 {
			return offset, nil
		}
	}
	return 0, errThirdBitmap
}

// mtiSize is how many bytes of a message its type takes.
func (s *Spec) mtiSize() int {
	if s.dialect.digits == packed {
		return mtiPackedBytes
	}
	return mtiDigits
}

// readMTI reads a type from its mtiSize bytes.
func (s *Spec) readMTI(b []byte) (mti MTI, ok bool) {
	if s.dialect.digits == packed {
		for _, c := range b {
			if c>>4 > 9 || c&0xF > 9 {
				return 0, false
			}
			mti = mti<<8 | MTI(c)
		}
		return mti, true
	}
	zero := byte('0')
	if s.dialect.digits == ebcdic {
		zero = ebcdicZero
	}
	for _, c := range b {
		d := c - zero
		if d > 9 {
			return 0, false
		}
		mti = mti<<4 | MTI(d)
	}
	return mti, true
}

func (s *Spec) appendMTI(dst []byte, m MTI) []byte {
	switch s.dialect.digits {
	case packed:
		return binary.BigEndian.AppendUint16(dst, uint16(m))
	case ebcdic:
		return append(dst, ebcdicZero+m.Version(), ebcdicZero+m.Class(), ebcdicZero+m.Function(), ebcdicZero+m.Origin())
	}
	return append(dst, '0'+m.Version(), '0'+m.Class(), '0'+m.Function(), '0'+m.Origin())
}

func (s *Spec) bitmapWord(b []byte) (word uint64, size int, err error) {
	if s.bitmap == BitmapBinary {
		if len(b) < bitmapBytes {
			return 0, 0, errShortBitmap
		}
		return binary.BigEndian.Uint64(b), bitmapBytes, nil
	}
	if len(b) < bitmapHexDigits {
		return 0, 0, errShortBitmap
	}
	digits := &hexDigits
	if s.dialect.text == ebcdic {
		digits = &hexDigitsEBCDIC
	}
	for _, c := range b[:bitmapHexDigits] {
		d := digits[c]
		if d > 0xF {
			return 0, 0, errHexBitmap
		}
		word = word<<4 | uint64(d)
	}
	return word, bitmapHexDigits, nil
}

func (s *Spec) appendBitmap(dst []byte, word uint64) []byte {
	if s.bitmap == BitmapBinary {
		return binary.BigEndian.AppendUint64(dst, word)
	}
	for shift := 60; shift >= 0; shift -= 4 {
		c := "0123456789ABCDEF"[word>>shift&0xF]
		if s.dialect.text == ebcdic {
			c = fromASCII[c]
		}
		dst = append(dst, c)
	}
	return dst
}

// hexDigits gives a hexadecimal digit's value, in either case, and 0xFF for any other character.
var hexDigits = func() (table [256]uint8) {
	for i := range table {
		table[i] = 0xFF
	}
	for i := range uint8(10) {
		table['0'+i] = i
	}
	for i := range uint8(6) {
		table['a'+i], table['A'+i] = 10+i, 10+i
	}
	return table
}()

// hexDigitsEBCDIC is the same for code page 037.
var hexDigitsEBCDIC = func() (table [256]uint8) {
	for i := range table {
		table[i] = hexDigits[toASCII[i]]
	}
	return table
}()

// Format writes the type and how many bytes there are, whatever the verb: it points into a message in clear.
func (p Peeked) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "%s, %d bytes", p.mti, len(p.body)) }

// MTI is the message's type; 0 when it could not be read.
func (p *Peeked) MTI() MTI { return p.mti }

// Has tells whether the element is in the message.
func (p *Peeked) Has(e Element) bool {
	if !e.Valid() {
		return false
	}
	n := uint(e) - 1
	return p.bitmap[n/64]&(firstBit>>(n%64)) != 0
}

// Value gives the element's bytes as they stand in the message, packed or EBCDIC where the dialect is, nil when absent. They are part of
// the message's own bytes.
func (p *Peeked) Value(e Element) []byte {
	if !p.Has(e) {
		return nil
	}
	return p.body[p.at[e].start:p.at[e].end:p.at[e].end]
}

// AppendValue appends the element's value as Message.Bytes gives it, whatever the dialect's coding: text as characters, a binary element's
// bytes as they are. Nothing is appended when the element is absent. A value that Decode would refuse comes as characters that no right
// value has, or as it stands.
func (p *Peeked) AppendValue(dst []byte, e Element) []byte {
	if !p.Has(e) {
		return dst
	}
	return p.spec.rules[e].appendText(dst, p.body[p.at[e].start:p.at[e].end], p.isOdd(e))
}

func (p *Peeked) isOdd(e Element) bool {
	n := uint(e) - 1
	return p.odd[n/64]&(firstBit>>(n%64)) != 0
}

// textSize is the length of what AppendValue gives of an element that is there and right.
func (p *Peeked) textSize(e Element) int {
	return p.spec.rules[e].textSize(int(p.at[e].end-p.at[e].start), p.isOdd(e))
}
