package iso8583

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// BitmapForm is how the bitmap stands on the wire.
type BitmapForm string

// The forms: 8 bytes, or 16 hexadecimal characters of the dialect's text, for the first bitmap and again for the second where there is one.
const (
	BitmapBinary BitmapForm = "binary"
	BitmapHex    BitmapForm = "hex"
)

const (
	bitmapBytes  = 8         // of one bitmap; the second is there when the first's first bit is set
	maxBodyBytes = 1<<16 - 1 // Peeked's offsets have 16 bits, and so has the length of a frame
	maxFixed     = 999       // of an element without a length prefix
)

// SpecConfig is a dialect as a link profile has it: in what it differs from a built-in table. The zero value is the 1987 table in ASCII.
type SpecConfig struct {
	// File is a profile file, a SpecConfig of its own, over which the other keys are laid. Whoever loads the configuration reads it; Build
	// does not.
	File string `yaml:"file" base:"true"`
	// Dialect is the built-in table: 1987-ascii (default), 1987-bcd, 1987-ebcdic, 1993-ascii or 1993-bcd.
	Dialect Dialect `yaml:"dialect"`
	// Bitmap is binary (default) or hex.
	Bitmap BitmapForm `yaml:"bitmap"`
	// MTIs are the message types accepted and sent; empty for the built-in list of the dialect's edition.
	MTIs []string `yaml:"mtis"`
	// ResponseMTIs are the types of answers that are not the standard's, by the type of the request without its repeat digit: 1460 answered
	// by 1480, or 0370 by 0360.
	ResponseMTIs map[string]string `yaml:"response_mtis"`
	// Elements are data elements whose format, length or coding is not the table's, by number.
	Elements map[Element]ElementConfig `yaml:"elements"`
	// ResponseCodes add to or replace what a response code (DE 39) means for an authorisation: approved, partially_approved,
	// declined, still_working, not_signed_on or outcome_unknown.
	ResponseCodes map[string]string `yaml:"response_codes"`
	// ReversalResponseCodes do the same for the answer to a reversal: acknowledged, nothing_to_undo, retry_later or suspend.
	ReversalResponseCodes map[string]string `yaml:"reversal_response_codes"`
}

// ElementConfig is one data element of a dialect; what is left out is as in the dialect's table.
type ElementConfig struct {
	// Format is n, an, ans, z, x+n, b or tlv.
	Format string `yaml:"format"`
	// Length is the exact length of a fixed element, the greatest of a variable one; characters, or bytes of a binary one.
	Length int `yaml:"length"`
	// Prefix is fixed, l, ll or lll: how many digits of length stand in front.
	Prefix string `yaml:"prefix"`
	// Encoding is ascii, ebcdic or bcd for text, of which only n, z and x+n can be bcd; binary for b and tlv.
	Encoding string `yaml:"encoding"`
	// LengthEncoding is ascii, ebcdic, bcd or binary. A binary length is one byte for l and ll, two for lll.
	LengthEncoding string `yaml:"length_encoding"`
	// LengthUnit is what the length in front of a bcd value counts: digits (default) or bytes.
	LengthUnit string `yaml:"length_unit"`
	// Filler is what fills the half byte that an odd number of bcd digits leaves: left-zero or right-f.
	Filler string `yaml:"filler"`
	// Absent tells that the dialect does not have the element: a message with it is refused.
	Absent bool `yaml:"absent"`
}

// DefaultSpecConfig is the built-in 1987 table in ASCII. It says nothing, so that a profile's file or dialect is not overridden by it.
func DefaultSpecConfig() SpecConfig { return SpecConfig{} }

// Spec is a dialect, checked whole and read-only from then on: any number of goroutines may use it.
type Spec struct {
	dialect       *dialect
	bitmap        BitmapForm
	mtis          []MTI
	responses     map[MTI]MTI // by request without repeat digit, where the profile differs from the standard
	requests      map[MTI]MTI // the same, by response
	rules         [elementNumber]rule
	exposures     [elementNumber]exposure
	authorization map[string]ResponseAction
	reversal      map[string]ReversalAction
}

// Spec1987 is the built-in table of 1987 in ASCII. A form other than hex is binary.
func Spec1987(bitmap BitmapForm) *Spec {
	s := newSpec(&dialects[0])
	if bitmap == BitmapHex {
		s.bitmap = BitmapHex
	}
	return s
}

func newSpec(d *dialect) *Spec {
	s := &Spec{dialect: d, bitmap: BitmapBinary, mtis: d.mtis, authorization: maps.Clone(d.authorization), reversal: maps.Clone(d.reversal)}
	for _, line := range d.table {
		s.rules[line.element] = d.ruleOf(line)
		s.exposures[line.element] = line.exposure
	}
	return s
}

// Build checks the dialect and makes its Spec. The error joins every fault found, each beginning with the key it is at.
func (c SpecConfig) Build() (*Spec, error) {
	var faults []error
	fault := func(key, form string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+form, append([]any{key}, args...)...))
	}
	d, ok := dialectNamed(c.Dialect)
	if !ok {
		fault("dialect", "one of %s, not %q", dialectNames, string(c.Dialect))
		d = &dialects[0] // for the faults of the rest
	}
	s := newSpec(d)
	switch c.Bitmap {
	case BitmapBinary, BitmapHex:
		s.bitmap = c.Bitmap
	case "":
	default:
		fault("bitmap", "binary or hex, not %q", string(c.Bitmap))
	}
	s.setMTIs(c.MTIs, fault)
	s.setResponseMTIs(c.ResponseMTIs, len(c.MTIs) == 0, fault)
	for _, e := range slices.Sorted(maps.Keys(c.Elements)) {
		s.setElement(e, c.Elements[e], fault)
	}
	setActions(s.authorization, "response_codes", c.ResponseCodes, responseActionsByName, s.rules[ResponseCode], fault)
	setActions(s.reversal, "reversal_response_codes", c.ReversalResponseCodes, reversalActionsByName, s.rules[ResponseCode], fault)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return s, nil
}

type faultFunc func(key, form string, args ...any)

func (s *Spec) setMTIs(texts []string, fault faultFunc) {
	if len(texts) == 0 {
		return
	}
	s.mtis = make([]MTI, 0, len(texts))
	for i, text := range texts {
		mti, err := ParseMTI(text)
		switch {
		case err != nil:
			fault(fmt.Sprintf("mtis.%d", i), "%w, not %q", err, text)
		case containsMTI(s.mtis, mti):
			fault(fmt.Sprintf("mtis.%d", i), "%s is listed twice", mti)
		default:
			s.mtis = append(s.mtis, mti)
		}
	}
}

// Has tells whether the dialect has the element.
func (s *Spec) Has(e Element) bool { return e.Valid() && s.rules[e].format != noFormat }

// Lists tells whether the profile takes and sends messages of the type.
func (s *Spec) Lists(m MTI) bool { return containsMTI(s.mtis, m) }

// IsBinary tells whether the element holds bytes, set by SetBytes, and not text.
func (s *Spec) IsBinary(e Element) bool {
	return e.Valid() && s.rules[e].format.isBinary()
}

// Edition is the edition of the standard that the dialect follows.
func (s *Spec) Edition() Edition { return s.dialect.edition }

// OriginalElement is the element that names the original message in a reversal or completion: DE 90, in 1993 DE 56.
func (s *Spec) OriginalElement() Element {
	if s.dialect.edition == Edition1993 {
		return OriginalData1993
	}
	return OriginalData
}

// ElementName is the name of a data element in the dialect's edition; "" for one that cannot hold data.
func (s *Spec) ElementName(e Element) string {
	for i := range s.dialect.table {
		if s.dialect.table[i].element == e {
			return s.dialect.table[i].name
		}
	}
	return ""
}

// Name is the name of a data element in the 1987 edition; "" for one that cannot hold data.
func (e Element) Name() string {
	for i := range table1987 {
		if table1987[i].element == e {
			return table1987[i].name
		}
	}
	return ""
}
