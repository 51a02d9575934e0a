package iso8583

// Edition is the year of the standard that a dialect follows.
type Edition uint16

// The editions that there are tables of.
const (
	Edition1987 Edition = 1987
	Edition1993 Edition = 1993
)

// Dialect names a built-in table over which a profile lays what its scheme has otherwise.
type Dialect string

// The built-in dialects. In the packed ones (bcd) message type, lengths, digits and tracks are binary coded decimal and letters ASCII; in
// the EBCDIC one all text and lengths are of code page 037. Binary elements are bytes everywhere.
const (
	Dialect1987ASCII  Dialect = "1987-ascii"
	Dialect1987BCD    Dialect = "1987-bcd"
	Dialect1987EBCDIC Dialect = "1987-ebcdic"
	Dialect1993ASCII  Dialect = "1993-ascii"
	Dialect1993BCD    Dialect = "1993-bcd"
)

// dialect is a built-in table and how its elements stand on the wire.
type dialect struct {
	name    Dialect
	edition Edition
	table   []definition
	mtis    []MTI
	text    coding             // letters and special characters
	digits  coding             // the message type, numbers and tracks
	lengths coding             // the lengths in front of values
	formats map[Element]format // where packing goes with another format than the table's

	authorization map[string]ResponseAction
	reversal      map[string]ReversalAction
}

// packedFormats: currencies may be letters or digits, and where numbers are packed they are digits. Track 1 has letters.
var packedFormats = map[Element]format{45: anyText, 49: numeric, 50: numeric, 51: numeric}

var dialects = []dialect{
	{Dialect1987ASCII, Edition1987, table1987[:], defaultMTIs, ascii, ascii, ascii, nil, authorizationActions, reversalActions},
	{Dialect1987BCD, Edition1987, table1987[:], defaultMTIs, ascii, packed, packed, packedFormats, authorizationActions, reversalActions},
	{Dialect1987EBCDIC, Edition1987, table1987[:], defaultMTIs, ebcdic, ebcdic, ebcdic, nil, authorizationActions, reversalActions},
	{Dialect1993ASCII, Edition1993, table1993[:], defaultMTIs1993, ascii, ascii, ascii, nil, authorizationActions1993, reversalActions1993},
	{Dialect1993BCD, Edition1993, table1993[:], defaultMTIs1993, ascii, packed, packed, packedFormats, authorizationActions1993, reversalActions1993},
}

// Dialects lists the built-in dialects.
func Dialects() []Dialect {
	all := make([]Dialect, len(dialects))
	for i := range dialects {
		all[i] = dialects[i].name
	}
	return all
}

const dialectNames = "1987-ascii, 1987-bcd, 1987-ebcdic, 1993-ascii or 1993-bcd"

// dialectNamed finds a built-in table; "" is the first one.
func dialectNamed(name Dialect) (*dialect, bool) {
	if name == "" {
		name = Dialect1987ASCII
	}
	for i := range dialects {
		if dialects[i].name == name {
			return &dialects[i], true
		}
	}
	return nil, false
}

// codingOf is how the dialect writes values of a format.
func (d *dialect) codingOf(f format) coding {
	switch f {
	case opaque, berTLV:
		return binaryCode
	case numeric, signed, track:
		return d.digits
	default:
		return d.text
	}
}

// fillerOf is how the dialect fills an odd number of packed digits: a track is read from its left.
func fillerOf(f format) filler {
	if f == track {
		return rightF
	}
	return leftZero
}

// ruleOf is the dialect's rule for one line of its table.
func (d *dialect) ruleOf(line definition) rule {
	f, changed := d.formats[line.element]
	if !changed {
		f = line.format
	}
	return rule{format: f, coding: d.codingOf(f), signCoding: d.text, filler: fillerOf(f), prefix: line.prefix, lengthCoding: d.lengths, length: line.length}.compiled()
}
