package iso8583_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/padding"
	"github.com/moov-io/iso8583/prefix"
	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/iso8583"
)

// peerTable is ISO 8583:1987 written down a second time, on purpose not made from the package's own table: a slip in one of them
// shows as a difference. "n..19" has a two-digit length and at most 19 characters, "n6" has exactly 6; b counts bytes.
const peerTable = `
2 n..19     3 n6        4 n12       5 n12       6 n12       7 n10       8 n8        9 n8        10 n8       11 n6
12 n6       13 n4       14 n4       15 n4       16 n4       17 n4       18 n4       19 n3       20 n3       21 n3
22 n3       23 n3       24 n3       25 n2       26 n2       27 n1       28 x8       29 x8       30 x8       31 x8
32 n..11    33 n..11    34 ans..28  35 ans..37  36 ans...104            37 an12     38 an6      39 an2      40 an3
41 ans8     42 ans15    43 ans40    44 ans..25  45 ans..76  46 ans...999            47 ans...999            48 ans...999
49 an3      50 an3      51 an3      52 b8       53 n16      54 an...120             55 tlv...255            56 ans...999
57 ans...999            58 ans...999            59 ans...999            60 ans...999            61 ans...999
62 ans...999            63 ans...999            64 b8
66 n1       67 n2       68 n3       69 n3       70 n3       71 n4       72 n4       73 n6       74 n10      75 n10
76 n10      77 n10      78 n10      79 n10      80 n10      81 n10      82 n12      83 n12      84 n12      85 n12
86 n16      87 n16      88 n16      89 n16      90 n42      91 an1      92 an2      93 an5      94 an7      95 an42
96 b8       97 x16      98 ans25    99 n..11    100 n..11   101 ans..17 102 ans..28 103 ans..28 104 ans...100
105 ans...999           106 ans...999           107 ans...999           108 ans...999           109 ans...999
110 ans...999           111 ans...999           112 ans...999           113 ans...999           114 ans...999
115 ans...999           116 ans...999           117 ans...999           118 ans...999           119 ans...999
120 ans...999           121 ans...999           122 ans...999           123 ans...999           124 ans...999
125 ans...999           126 ans...999           127 ans...999           128 b8`

type peerElement struct {
	number int
	class  string // n, an, ans, x (sign and digits), b, tlv
	dots   int    // digits of length in front
	length int    // exact without dots, else the most; the sign of x not counted
}

var peerElements = parsePeerTable(peerTable)

func parsePeerTable(table string) (all []peerElement) {
	words := strings.Fields(table)
	for i := 0; i < len(words); i += 2 {
		number, _ := strconv.Atoi(words[i])
		class := strings.TrimRight(words[i+1], ".0123456789")
		length, err := strconv.Atoi(strings.TrimLeft(words[i+1][len(class):], "."))
		if err != nil {
			panic("peer table: " + words[i])
		}
		all = append(all, peerElement{number, class, strings.Count(words[i+1], "."), length})
	}
	return all
}

// wireLength is the length with the sign.
func (e peerElement) wireLength() int {
	if e.class == "x" {
		return e.length + 1
	}
	return e.length
}

func (e peerElement) binary() bool { return e.class == "b" || e.class == "tlv" }

// peerSpec is the table for the stock library, with its fields and no code of the package under test.
func peerSpec(form iso8583.BitmapForm) *moov.MessageSpec {
	bitmap := &field.Spec{Enc: encoding.Binary, Pref: prefix.Binary.Fixed}
	if form == iso8583.BitmapHex {
		bitmap = &field.Spec{Enc: encoding.BytesToASCIIHex, Pref: prefix.Hex.Fixed}
	}
	bitmap.Length = 8
	fields := map[int]field.Field{
		0: field.NewString(&field.Spec{Length: 4, Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed}),
		1: field.NewBitmap(bitmap),
	}
	prefixes := []prefix.Prefixer{prefix.ASCII.Fixed, nil, prefix.ASCII.LL, prefix.ASCII.LLL}
	for _, e := range peerElements {
		spec := &field.Spec{Length: e.wireLength(), Enc: encoding.ASCII, Pref: prefixes[e.dots], Pad: padding.None}
		if e.binary() {
			spec.Enc = encoding.Binary
			fields[e.number] = field.NewBinary(spec)
		} else {
			fields[e.number] = field.NewString(spec)
		}
	}
	return &moov.MessageSpec{Name: "peer", Fields: fields}
}

var bothForms = []iso8583.BitmapForm{iso8583.BitmapBinary, iso8583.BitmapHex}

// peerSpecs are shared: the library's specs are read-only after construction.
var peerSpecs = map[iso8583.BitmapForm]*moov.MessageSpec{
	iso8583.BitmapBinary: peerSpec(iso8583.BitmapBinary), iso8583.BitmapHex: peerSpec(iso8583.BitmapHex),
}

var mtis = []iso8583.MTI{0x0100, 0x0110, 0x0120, 0x0121, 0x0130, 0x0200, 0x0210, 0x0220, 0x0221, 0x0230,
	0x0400, 0x0401, 0x0410, 0x0420, 0x0421, 0x0430, 0x0800, 0x0801, 0x0810}

const (
	digitSet = "0123456789"
	anSet    = digitSet + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz "
	ansSet   = anSet + "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
)

func drawText(t *rapid.T, set string, least, most int, label string) string {
	n := rapid.IntRange(least, most).Draw(t, label+" length")
	return string(rapid.SliceOfN(rapid.SampledFrom([]byte(set)), n, n).Draw(t, label))
}

// value draws what the element may hold, short values and the greatest length included.
func (e peerElement) value(t *rapid.T) string {
	label := fmt.Sprintf("DE %d", e.number)
	least, most := e.length, e.length
	if e.dots > 0 {
		least = 1
		if !rapid.Bool().Draw(t, label+" long") {
			most = min(most, 20)
		}
	}
	switch e.class {
	case "n":
		return drawText(t, digitSet, least, most, label)
	case "an":
		return drawText(t, anSet, least, most, label)
	case "x":
		return rapid.SampledFrom([]string{"C", "D"}).Draw(t, label+" sign") + drawText(t, digitSet, least, most, label)
	case "b":
		return string(rapid.SliceOfN(rapid.Byte(), least, most).Draw(t, label))
	case "tlv":
		return drawTLV(t, most)
	}
	return drawText(t, ansSet, least, most, label)
}

// drawTLV draws BER-TLV objects with tags of one to three bytes, lengths in short and long form and empty values.
func drawTLV(t *rapid.T, most int) string {
	tags := []string{"\x9A", "\x82", "\x9F\x02", "\x5F\x2A", "\xDF\x81\x01", "\x9F\x37"}
	var b strings.Builder
	for range rapid.IntRange(1, 6).Draw(t, "objects") {
		object := rapid.SampledFrom(tags).Draw(t, "tag")
		value := string(rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "value"))
		if rapid.Bool().Draw(t, "long form") {
			object += "\x81"
		}
		object += string([]byte{byte(len(value))}) + value
		if b.Len()+len(object) > most {
			break
		}
		b.WriteString(object)
	}
	if b.Len() == 0 {
		return "\x9A\x00"
	}
	return b.String()
}

func drawElements(t *rapid.T) map[int]string {
	values := map[int]string{}
	for _, e := range rapid.SliceOfNDistinct(rapid.SampledFrom(peerElements), 0, 24, func(e peerElement) int { return e.number }).Draw(t, "elements") {
		values[e.number] = e.value(t)
	}
	return values
}

type fataler interface{ Fatalf(string, ...any) }

func encode(t fataler, s *iso8583.Spec, mti iso8583.MTI, values map[int]string) []byte {
	m := s.NewMessage(mti)
	for n, value := range values {
		e := iso8583.Element(n)
		set := func() error { return m.Set(e, value) }
		if s.IsBinary(e) {
			set = func() error { return m.SetBytes(e, []byte(value)) }
		}
		if err := set(); err != nil {
			t.Fatalf("set: %v", err)
		}
	}
	body, err := s.Encode(m)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	return body
}

func valuesOf(m *iso8583.Message) map[int]string {
	values := map[int]string{}
	for _, e := range m.Elements() {
		values[int(e)] = string(m.Bytes(e))
	}
	return values
}

// peerUnpack reads a message with the stock library.
func peerUnpack(form iso8583.BitmapForm, body []byte) (mti string, values map[int]string, err error) {
	return stockUnpack(peerSpecs[form], body)
}

func stockUnpack(spec *moov.MessageSpec, body []byte) (mti string, values map[int]string, err error) {
	m := moov.NewMessage(spec)
	if err := m.Unpack(body); err != nil {
		return "", nil, err
	}
	values = map[int]string{}
	for n := range m.GetFields() {
		if n < 2 {
			continue
		}
		value, err := m.GetBytes(n)
		if err != nil {
			return "", nil, err
		}
		values[n] = string(value)
	}
	mti, err = m.GetMTI()
	return mti, values, err
}

// TestPeer_StockLibraryReadsAndWritesTheSame holds the package against the stock library with a table of its own, both ways, byte for byte.
func TestPeer_StockLibraryReadsAndWritesTheSame(t *testing.T) {
	t.Parallel()
	for _, form := range bothForms {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			ours := iso8583.Spec1987(form)
			rapid.Check(t, func(t *rapid.T) {
				values := drawElements(t)
				mti := rapid.SampledFrom(mtis).Draw(t, "mti")
				body := encode(t, ours, mti, values)

				theirMTI, theirValues, err := peerUnpack(form, body)
				if err != nil {
					t.Fatalf("the peer cannot read what we write: %v", err)
				}
				if diff := cmp.Diff(values, theirValues); diff != "" || theirMTI != mti.String() {
					t.Fatalf("the peer reads MTI %s, want %s, and elements (-want +got):\n%s", theirMTI, mti, diff)
				}

				written := moov.NewMessage(peerSpecs[form])
				written.MTI(mti.String())
				for n, value := range values {
					if err := written.BinaryField(n, []byte(value)); err != nil {
						t.Fatalf("peer: %v", err)
					}
				}
				theirBody, err := written.Pack()
				if err != nil {
					t.Fatalf("peer: %v", err)
				}
				if !bytes.Equal(body, theirBody) {
					t.Fatalf("we write\n%x, the peer\n%x", body, theirBody)
				}
				m, err := ours.Decode(theirBody)
				if err != nil {
					t.Fatalf("we cannot read what the peer writes: %v", err)
				}
				if diff := cmp.Diff(values, valuesOf(m)); diff != "" || m.MTI() != mti {
					t.Fatalf("we read MTI %s, want %s, and elements (-want +got):\n%s", m.MTI(), mti, diff)
				}
			})
		})
	}
}

// TestPeer_EveryElementAtItsBounds sets each element of the table alone, at its least and greatest length, and one beyond.
func TestPeer_EveryElementAtItsBounds(t *testing.T) {
	t.Parallel()
	fill := map[string]string{"n": "7", "an": "a", "ans": "~", "b": "\xFF"}
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	for _, e := range peerElements {
		value := func(n int) string {
			switch e.class {
			case "x":
				return "D" + strings.Repeat("7", max(0, n-1))
			case "tlv": // one object of n bytes; below 3 bytes there is no other than an empty one
				if n < 3 {
					return "\x9A\x00"[:n]
				}
				return "\x9A\x81" + string([]byte{byte(n - 3)}) + strings.Repeat("\x00", n-3)
			}
			return strings.Repeat(fill[e.class], n)
		}
		set := func(v string) error {
			m := s.NewMessage(iso8583.MTIAuthorizationRequest)
			if s.IsBinary(iso8583.Element(e.number)) {
				return m.SetBytes(iso8583.Element(e.number), []byte(v))
			}
			return m.Set(iso8583.Element(e.number), v)
		}
		if s.IsBinary(iso8583.Element(e.number)) != e.binary() {
			t.Errorf("DE %d: binary %v", e.number, !e.binary())
			continue
		}
		most := e.wireLength()
		for _, bad := range []int{0, most + 1} {
			if set(value(bad)) == nil {
				t.Errorf("DE %d takes %d characters", e.number, bad)
			}
		}
		good := []int{most}
		if e.dots > 0 && e.class != "tlv" {
			good = append(good, 1)
		} else if e.dots == 0 && most > 1 && set(value(most-1)) == nil {
			t.Errorf("DE %d takes %d characters", e.number, most-1)
		}
		for _, n := range good {
			want := map[int]string{e.number: value(n)}
			_, got, err := peerUnpack(iso8583.BitmapBinary, encode(t, s, iso8583.MTIAuthorizationRequest, want))
			if err != nil || !cmp.Equal(want, got) {
				t.Errorf("DE %d of %d: the peer reads something else, %v", e.number, n, err)
			}
		}
	}
	if len(peerElements) != 126 {
		t.Errorf("the peer's table has %d elements", len(peerElements))
	}
}
