package iso8583

import (
	"encoding/binary"
	"math"
)

// How the length stands on the wire.
const (
	LengthBinary2 = "binary2" // two bytes, high byte first
	LengthBinary4 = "binary4" // four bytes, high byte first
	LengthASCII4  = "ascii4"  // four digits
	LengthBCD2    = "bcd2"    // four digits, packed into two bytes
	// LengthVML is Visa's four bytes: two of length, high byte first, and two that are zero in what we write. With a length of zero the
	// last two hold a notice of the network's session control; no message follows, and it is read as a keep-alive.
	LengthVML = "vml"
)

const lengthNames = "binary2, binary4, ascii4, bcd2 or vml"

const (
	most4Digits = 9999
	mostBinary2 = 1<<16 - 1
	mostBinary4 = math.MaxInt32 // so that it is an int on every machine; far beyond every message
)

// lengthForm is one way to write a length.
type lengthForm struct {
	name   string
	size   int    // bytes on the wire
	most   int    // the greatest length that can be written
	wrong  string // what is wrong with bytes that read refuses
	read   func(field []byte) (n int, ok bool)
	append func(dst []byte, n int) []byte // n is from 0 to most
}

const lookAt = "; look at framing.length, or at framing.includes if frames came before"

var lengthForms = [...]lengthForm{
	{LengthBinary2, 2, mostBinary2, "", readBinary2, appendBinary2},
	{LengthBinary4, 4, mostBinary4, "", readBinary4, appendBinary4},
	{LengthASCII4, 4, most4Digits, "the length is not 4 digits" + lookAt, readASCII4, appendASCII4},
	{LengthBCD2, 2, most4Digits, "the length is not 4 packed digits: framing.length may be binary2" + lookAt, readBCD2, appendBCD2},
	{LengthVML, 4, mostBinary2, "digits follow the length, where a message type or more length may begin: framing.length may be binary2 or ascii4" + lookAt, readVML, appendVML},
}

// lengthFormOf finds a form by its name, the first one by none; nil when there is no such form.
func lengthFormOf(name string) *lengthForm {
	if name == "" {
		return &lengthForms[0]
	}
	for i := range lengthForms {
		if lengthForms[i].name == name {
			return &lengthForms[i]
		}
	}
	return nil
}

func readBinary2(field []byte) (int, bool) { return int(binary.BigEndian.Uint16(field)), true }

func appendBinary2(dst []byte, n int) []byte { return binary.BigEndian.AppendUint16(dst, uint16(n)) }

func readBinary4(field []byte) (int, bool) {
	return int(min(binary.BigEndian.Uint32(field), mostBinary4)), true
}

func appendBinary4(dst []byte, n int) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }

func readASCII4(field []byte) (n int, ok bool) {
	for _, c := range field {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

func appendASCII4(dst []byte, n int) []byte {
	return append(dst, '0'+byte(n/1000), '0'+byte(n/100%10), '0'+byte(n/10%10), '0'+byte(n%10))
}

func readBCD2(field []byte) (n int, ok bool) {
	for _, c := range field {
		if c>>4 > 9 || c&0xF > 9 {
			return 0, false
		}
		n = n*100 + int(c>>4)*10 + int(c&0xF)
	}
	return n, true
}

func appendBCD2(dst []byte, n int) []byte {
	return append(dst, byte(n/1000<<4|n/100%10), byte(n/10%10<<4|n%10))
}

// readVML does not hold the two bytes after the length against anything: what they say differs between the network's platforms. But two
// digits there are the message type of a peer that does not send them.
func readVML(field []byte) (int, bool) {
	n := int(binary.BigEndian.Uint16(field))
	return n, n == 0 || !allDigits(field[2:])
}

func appendVML(dst []byte, n int) []byte { return append(appendBinary2(dst, n), 0, 0) }
