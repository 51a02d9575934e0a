package iso8583

import "fmt"

var prefixesByName = map[string]uint8{"fixed": fixed, "l": lvar, "ll": llvar, "lll": lllvar}

// mostByPrefix is the greatest length by the digits of the prefix.
var mostByPrefix = [...]int{fixed: maxFixed, lvar: 9, llvar: 99, lllvar: 999}

const (
	unitDigits = "digits"
	unitBytes  = "bytes"
)

// setElement lays a profile's element over the dialect's.
func (s *Spec) setElement(e Element, c ElementConfig, fault faultFunc) {
	key := fmt.Sprintf("elements.%d", uint8(e))
	if !e.Valid() {
		fault(key, "%w", errElementNumber)
		return
	}
	if c.Absent {
		if c != (ElementConfig{Absent: true}) {
			fault(key, "an absent element has no format, length, prefix or encoding")
		}
		s.rules[e] = rule{}
		return
	}
	at := elementFault{key: key, fault: fault}
	r := s.rules[e]
	if f, ok := named(&at, "format", c.Format, formatsByName, formatNames); ok {
		r.format = f
		r.coding, r.filler = s.dialect.codingOf(f), fillerOf(f)
	}
	if p, ok := named(&at, "prefix", c.Prefix, prefixesByName, "fixed, l, ll or lll"); ok {
		r.prefix = p
	}
	s.setCoding(&r, c, &at)
	if at.failed {
		return
	}
	length := c.Length
	if length == 0 {
		length = int(r.length)
	}
	most := mostOf(r.prefix, r.lengthCoding)
	if r.countsBytes {
		most = r.textSize(most, false)
	}
	if most = min(most, maxFixed); length < 1 || length > most {
		at.add("length", "1 to %d, not %d", most, length)
		return
	}
	r.length = uint16(length)
	s.rules[e] = r.compiled()
	s.close(e, r)
}

// setCoding lays a profile's codings over those of the format.
func (s *Spec) setCoding(r *rule, c ElementConfig, at *elementFault) {
	if coding, ok := named(at, "encoding", c.Encoding, codingsByName, codingNames); ok {
		switch {
		case r.format.isBinary() != (coding == binaryCode):
			at.add("encoding", "binary for b and tlv, and for no other format")
		case coding == packed && r.format != numeric && r.format != track && r.format != signed:
			at.add("encoding", "only n, z and x+n can be bcd")
		}
		r.coding = coding
	}
	if coding, ok := named(at, "length_encoding", c.LengthEncoding, codingsByName, codingNames); ok {
		if r.prefix == fixed {
			at.add("length_encoding", "a fixed length does not stand in front of the value")
		}
		r.lengthCoding = coding
	}
	if f, ok := named(at, "filler", c.Filler, fillersByName, "left-zero or right-f"); ok {
		if r.coding != packed {
			at.add("filler", "only bcd values have one")
		}
		r.filler = f
	}
	r.countsBytes = false
	switch c.LengthUnit {
	case unitDigits, "":
	case unitBytes:
		// Otherwise a character is a byte, and there is nothing to choose.
		r.countsBytes = r.coding == packed
		if r.prefix == fixed || !r.countsBytes {
			at.add("length_unit", "only a length in front of a bcd value has one")
		}
	default:
		at.add("length_unit", "digits or bytes, not %q", c.LengthUnit)
	}
}

// close takes back the exposure of an element that is no longer what the table opened: rows of digits that each have their meaning are so
// only in the table's form, and bytes are never for people.
func (s *Spec) close(e Element, r rule) {
	for _, line := range s.dialect.table {
		switch {
		case line.element != e:
		case r.format.isBinary():
			s.exposures[e] = hidden
		case line.exposure == verbatim && (r.format != line.format || r.length > line.length):
			s.exposures[e] = shown
		}
	}
}

// elementFault gathers the faults of one element.
type elementFault struct {
	key    string
	fault  faultFunc
	failed bool
}

func (f *elementFault) add(key, form string, args ...any) {
	f.failed = true
	f.fault(f.key+"."+key, form, args...)
}

// named finds what a profile names; false when it names nothing, or nothing that there is, which is a fault.
func named[T any](at *elementFault, key, name string, byName map[string]T, names string) (value T, ok bool) {
	if name == "" {
		return value, false
	}
	if value, ok = byName[name]; !ok {
		at.add(key, "%s, not %q", names, name)
	}
	return value, ok
}
