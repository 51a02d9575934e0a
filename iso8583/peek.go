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
	body       []byte
	mti        MTI
	bitmap     [2]uint64 // bit 1 is the highest of the first
	start, end [elementNumber]uint16
}

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
	p.body, p.mti = body, 0
	offset, err := s.head(body, p)
	if err != nil {
		return 0, fmt.Errorf("peek message: %w", err)
	}
	for half, word := range p.bitmap {
		for word &^= firstBit; word != 0; {
			n := bits.LeadingZeros64(word)
			word &^= firstBit >> n
			e := half*64 + n + 1
			r := &s.rules[e]
			if r.format == noFormat {
				return 0, peekError(e, ruleAbsent)
			}
			length := int(r.length)
			if r.prefix != 0 {
				value := offset + int(r.prefix)
				if value > len(body) {
					return 0, peekError(e, ruleEndsBeyond)
				}
				length = 0
				for ; offset < value; offset++ {
					d := body[offset] - '0'
					if d > 9 {
						return 0, peekError(e, ruleLengthDigits)
					}
					length = length*10 + int(d)
				}
				if length > int(r.length) {
					return 0, fmt.Errorf("peek message: %w", r.checkLength(Element(e), length))
				}
			}
			if length > len(body)-offset {
				return 0, peekError(e, ruleEndsBeyond)
			}
			p.start[e] = uint16(offset)
			offset += length
			p.end[e] = uint16(offset)
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
	if len(body) < mtiDigits {
		return 0, errShortMTI
	}
	var mti MTI
	for _, c := range body[:mtiDigits] {
		d := c - '0'
		if d > 9 {
			return 0, errMTINotDigits
		}
		mti = mti<<4 | MTI(d)
	}
	p.mti = mti
	if !containsMTI(s.mtis, mti) {
		return 0, fmt.Errorf("message type indicator %s %w", mti, errUnlistedMTI)
	}
	offset := mtiDigits
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
	for _, c := range b[:bitmapHexDigits] {
		d := hexDigits[c]
		if d > 0xF {
			return 0, 0, errHexBitmap
		}
		word = word<<4 | uint64(d)
	}
	return word, bitmapHexDigits, nil
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

// Value gives the element's bytes as they stand in the message, nil when absent. They are part of the message's own bytes.
func (p *Peeked) Value(e Element) []byte {
	if !p.Has(e) {
		return nil
	}
	return p.body[p.start[e]:p.end[e]:p.end[e]]
}
