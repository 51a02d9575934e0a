package iso8583

import "errors"

const (
	maxTagBytes           = 4    // EMV has tags of up to 3 bytes, private use up to 4
	maxLengthBytes        = 2    // lengths are capped at 16 bits: more can only be an attack or a desynchronised stream
	tagContinues          = 0x1F // in the first byte: the tag goes on
	moreBytes             = 0x80 // in a following tag byte: one more follows; in a length: the long form
	indefiniteLength      = 0x80
	berPadding       byte = 0x00
)

var (
	errTLVTag        = errors.New("a BER-TLV tag is cut off or longer than 4 bytes")
	errTLVNoLength   = errors.New("a BER-TLV tag has no length")
	errTLVIndefinite = errors.New("a BER-TLV length is indefinite")
	errTLVLengthSize = errors.New("a BER-TLV length has more than 16 bits")
	errTLVOverrun    = errors.New("a BER-TLV value ends beyond the element")
)

// CheckBERTLV tells whether ICC data (DE 55) is a sequence of whole BER-TLV objects. Unknown and private tags are fine, and so are
// zero bytes between objects, which EMV allows. What a template contains is not looked into: the element is carried, never interpreted.
func CheckBERTLV(b []byte) error { return checkBERTLV(b) }

func checkBERTLV[T string | []byte](b T) error {
	for i := 0; i < len(b); {
		if b[i] == berPadding {
			i++
			continue
		}
		first := i
		i++
		if b[first]&tagContinues == tagContinues {
			for i < len(b) && b[i]&moreBytes != 0 {
				i++
			}
			i++
		}
		if i > len(b) || i-first > maxTagBytes {
			return errTLVTag
		}
		if i == len(b) {
			return errTLVNoLength
		}
		length := int(b[i])
		i++
		if length == indefiniteLength {
			return errTLVIndefinite
		}
		if length > indefiniteLength {
			size := length &^ moreBytes
			if size > maxLengthBytes {
				return errTLVLengthSize
			}
			if i+size > len(b) {
				return errTLVNoLength
			}
			length = 0
			for range size {
				length = length<<8 | int(b[i])
				i++
			}
		}
		if length > len(b)-i {
			return errTLVOverrun
		}
		i += length
	}
	return nil
}
