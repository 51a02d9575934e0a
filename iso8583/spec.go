package iso8583

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/prefix"
)

// BitmapForm is how the bitmap stands on the wire.
type BitmapForm string

// The forms: 8 bytes, or 16 hexadecimal characters, for the first bitmap and again for the second where there is one.
const (
	BitmapBinary BitmapForm = "binary"
	BitmapHex    BitmapForm = "hex"
)

const (
	bitmapBytes  = 8         // of one bitmap; the second is there when the first's first bit is set
	maxBodyBytes = 1<<16 - 1 // Peeked's offsets have 16 bits, and so has the length of a frame
	maxFixed     = 999       // of an element without a length prefix
)

// SpecConfig is a dialect as a link profile has it: in what it differs from the built-in 1987 table. The zero value is that table.
type SpecConfig struct {
	// Bitmap is binary (default) or hex.
	Bitmap BitmapForm `yaml:"bitmap"`
	// MTIs are the message types accepted and sent; empty for the built-in list.
	MTIs []string `yaml:"mtis"`
	// Elements are data elements whose format or length is not the standard's, by number.
	Elements map[Element]ElementConfig `yaml:"elements"`
	// ResponseCodes add to or replace what a response code (DE 39) means for an authorisation: approved, partially_approved,
	// declined, still_working, not_signed_on or outcome_unknown.
	ResponseCodes map[string]string `yaml:"response_codes"`
	// ReversalResponseCodes do the same for the answer to a reversal: acknowledged, nothing_to_undo, retry_later or suspend.
	ReversalResponseCodes map[string]string `yaml:"reversal_response_codes"`
}

// ElementConfig is one data element of a dialect; what is left out is as in the 1987 table.
type ElementConfig struct {
	// Format is n, an, ans, z, x+n, b or tlv.
	Format string `yaml:"format"`
	// Length is the exact length of a fixed element, the greatest of a variable one; characters, or bytes of a binary one.
	Length int `yaml:"length"`
	// Prefix is fixed, l, ll or lll: how many digits of length stand in front.
	Prefix string `yaml:"prefix"`
	// Absent tells that the dialect does not have the element: a message with it is refused.
	Absent bool `yaml:"absent"`
}

// DefaultSpecConfig is the built-in 1987 table with a binary bitmap.
func DefaultSpecConfig() SpecConfig { return SpecConfig{Bitmap: BitmapBinary} }

// Spec is a dialect, checked whole and read-only from then on: any number of goroutines may use it.
type Spec struct {
	bitmap        BitmapForm
	mtis          []MTI
	rules         [elementNumber]rule // by element number
	codec         *moov.MessageSpec
	authorization map[string]ResponseAction
	reversal      map[string]ReversalAction
}

// exposures and names of the 1987 table by element number: a profile cannot open what the table closes.
var exposures, names = func() (x [elementNumber]exposure, n [elementNumber]string) {
	for _, d := range table1987 {
		x[d.element], n[d.element] = d.exposure, d.name
	}
	return x, n
}()

// Spec1987 is the built-in table. A form other than hex is binary.
func Spec1987(bitmap BitmapForm) *Spec {
	s := newSpec()
	if bitmap == BitmapHex {
		s.bitmap = BitmapHex
	}
	s.codec = s.codecSpec()
	return s
}

func newSpec() *Spec {
	s := &Spec{bitmap: BitmapBinary, mtis: defaultMTIs, authorization: maps.Clone(authorizationActions), reversal: maps.Clone(reversalActions)}
	for _, d := range table1987 {
		s.rules[d.element] = rule{format: d.format, prefix: d.prefix, length: d.length}
	}
	return s
}

// Build checks the dialect and makes its Spec. The error joins every fault found, each beginning with the key it is at.
func (c SpecConfig) Build() (*Spec, error) {
	s := newSpec()
	var faults []error
	fault := func(key, form string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+form, append([]any{key}, args...)...))
	}
	switch c.Bitmap {
	case BitmapBinary, BitmapHex:
		s.bitmap = c.Bitmap
	case "":
	default:
		fault("bitmap", "binary or hex, not %q", string(c.Bitmap))
	}
	s.setMTIs(c.MTIs, fault)
	for _, e := range slices.Sorted(maps.Keys(c.Elements)) {
		s.setElement(e, c.Elements[e], fault)
	}
	setActions(s.authorization, "response_codes", c.ResponseCodes, responseActionsByName, s.rules[ResponseCode].length, fault)
	setActions(s.reversal, "reversal_response_codes", c.ReversalResponseCodes, reversalActionsByName, s.rules[ResponseCode].length, fault)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	s.codec = s.codecSpec()
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

var prefixesByName = map[string]uint8{"fixed": fixed, "l": lvar, "ll": llvar, "lll": lllvar}

// mostByPrefix is the greatest length by the digits of the prefix.
var mostByPrefix = [...]int{fixed: maxFixed, lvar: 9, llvar: 99, lllvar: 999}

func (s *Spec) setElement(e Element, c ElementConfig, fault faultFunc) {
	key := fmt.Sprintf("elements.%d", uint8(e))
	if !e.Valid() {
		fault(key, "%w", errElementNumber)
		return
	}
	if c.Absent {
		if c.Format != "" || c.Prefix != "" || c.Length != 0 {
			fault(key, "an absent element has no format, length or prefix")
		}
		s.rules[e] = rule{}
		return
	}
	r := s.rules[e]
	if c.Format != "" {
		f, ok := formatsByName[c.Format]
		if !ok {
			fault(key+".format", "%s, not %q", formatNames, c.Format)
			return
		}
		r.format = f
	}
	if c.Prefix != "" {
		p, ok := prefixesByName[c.Prefix]
		if !ok {
			fault(key+".prefix", "fixed, l, ll or lll, not %q", c.Prefix)
			return
		}
		r.prefix = p
	}
	length := c.Length
	if length == 0 {
		length = int(r.length)
	}
	if most := mostByPrefix[r.prefix]; length < 1 || length > most {
		fault(key+".length", "1 to %d, not %d", most, length)
		return
	}
	r.length = uint16(length)
	s.rules[e] = r
}

// IsBinary tells whether the element holds bytes, set by SetBytes, and not text.
func (s *Spec) IsBinary(e Element) bool {
	return e.Valid() && s.rules[e].format.isBinary()
}

// Name is the standard's name of a data element; "" for one that cannot hold data.
func (e Element) Name() string {
	if !e.Valid() {
		return ""
	}
	return names[e]
}

// codecSpec is the same table for the codec underneath: no field of it pads, strips, sorts or reads numbers, so that it returns what
// stood on the wire.
func (s *Spec) codecSpec() *moov.MessageSpec {
	bitmap := &field.Spec{Length: bitmapBytes, Description: "Bitmap", Enc: encoding.Binary, Pref: prefix.Binary.Fixed}
	if s.bitmap == BitmapHex {
		bitmap = &field.Spec{Length: bitmapBytes, Description: "Bitmap", Enc: encoding.BytesToASCIIHex, Pref: prefix.Hex.Fixed}
	}
	fields := map[int]field.Field{
		0: field.NewString(&field.Spec{Length: mtiDigits, Description: "Message type indicator", Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed}),
		1: field.NewBitmap(bitmap),
	}
	prefixes := [...]prefix.Prefixer{fixed: prefix.ASCII.Fixed, lvar: prefix.ASCII.L, llvar: prefix.ASCII.LL, lllvar: prefix.ASCII.LLL}
	for e := firstElement; e <= lastElement; e++ {
		r := s.rules[e]
		if r.format == noFormat {
			continue
		}
		spec := &field.Spec{Length: int(r.length), Description: names[e], Enc: encoding.ASCII, Pref: prefixes[r.prefix]}
		if r.format.isBinary() {
			spec.Enc = encoding.Binary
			fields[int(e)] = field.NewBinary(spec)
			continue
		}
		fields[int(e)] = field.NewString(spec)
	}
	return &moov.MessageSpec{Name: "ISO 8583:1987", Fields: fields}
}
