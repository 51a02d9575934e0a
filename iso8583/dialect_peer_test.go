package iso8583_test

import (
	"bytes"
	"maps"
	"slices"
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

// peerTable1993 is ISO 8583:1993 written down a second time, in the notation of peerTable.
const peerTable1993 = `
2 n..19     3 n6        4 n12       5 n12       6 n12       7 n10       8 n8        9 n8        10 n8       11 n6
12 n12      13 n4       14 n4       15 n6       16 n4       17 n4       18 n4       19 n3       20 n3       21 n3
22 an12     23 n3       24 n3       25 n4       26 n4       27 n1       28 n6       29 n3       30 n24      31 ans..99
32 n..11    33 n..11    34 ans..28  35 ans..37  36 ans...104            37 an12     38 an6      39 n3       40 n3
41 ans8     42 ans15    43 ans..99  44 ans..99  45 ans..76  46 ans...204            47 ans...999            48 ans...999
49 an3      50 an3      51 an3      52 b8       53 b..48    54 ans...120            55 tlv...255            56 n..35
57 n3       58 n..11    59 ans...999            60 ans...999            61 ans...999            62 ans...999
63 ans...999            64 b8
66 ans...204            67 n2       68 n3       69 n3       70 n3       71 n8       72 ans...999            73 n6
74 n10      75 n10      76 n10      77 n10      78 n10      79 n10      80 n10      81 n10      82 n10      83 n10
84 n10      85 n10      86 n16      87 n16      88 n16      89 n16      90 n10      91 n3       92 n3       93 n..11
94 n..11    95 ans..99  96 b...999  97 x16      98 ans25    99 an..11   100 n..11   101 ans..17 102 ans..28 103 ans..28
104 ans...100           105 n16     106 n16     107 n10     108 n10     109 ans..84 110 ans..84
111 ans...999           112 ans...999           113 ans...999           114 ans...999           115 ans...999
116 ans...999           117 ans...999           118 ans...999           119 ans...999           120 ans...999
121 ans...999           122 ans...999           123 ans...999           124 ans...999           125 ans...999
126 ans...999           127 ans...999           128 b8`

var mtis1993 = []iso8583.MTI{0x1100, 0x1110, 0x1120, 0x1121, 0x1130, 0x1200, 0x1210, 0x1220, 0x1221, 0x1230,
	0x1400, 0x1401, 0x1410, 0x1420, 0x1421, 0x1430, 0x1804, 0x1805, 0x1814, 0x1820, 0x1821, 0x1830}

// peerDialect is one dialect as the stock library can be told it. absent are the elements that it cannot: in packed dialects a sign in
// front of digits, and tracks, whose separator its encoder refuses.
type peerDialect struct {
	name     iso8583.Dialect
	form     iso8583.BitmapForm
	elements []peerElement
	mtis     []iso8583.MTI
	text     encoding.Encoder
	digits   encoding.Encoder
	fixed    prefix.Prefixer // of text and digits; of bytes it is prefix.Binary.Fixed
	lengths  []prefix.Prefixer
	absent   []int
}

func peerDialects() []peerDialect {
	ascii := []prefix.Prefixer{nil, nil, prefix.ASCII.LL, prefix.ASCII.LLL}
	packed := []prefix.Prefixer{nil, nil, prefix.BCD.LL, prefix.BCD.LLL}
	ebcdic := []prefix.Prefixer{nil, nil, prefix.EBCDIC1047.LL, prefix.EBCDIC1047.LLL}
	table1993 := parsePeerTable(peerTable1993)
	noTracks := []int{28, 29, 30, 31, 35, 36, 97}
	return []peerDialect{
		{iso8583.Dialect1987BCD, iso8583.BitmapBinary, peerElements, mtis, encoding.ASCII, encoding.BCD, prefix.BCD.Fixed, packed, noTracks},
		{iso8583.Dialect1987BCD, iso8583.BitmapHex, peerElements, mtis, encoding.ASCII, encoding.BCD, prefix.BCD.Fixed, packed, noTracks},
		// The code pages 037 and 1047 differ in brackets and the circumflex, which drawIn leaves out.
		{iso8583.Dialect1987EBCDIC, iso8583.BitmapBinary, peerElements, mtis, encoding.EBCDIC1047, encoding.EBCDIC1047, prefix.EBCDIC1047.Fixed, ebcdic, nil},
		{iso8583.Dialect1993ASCII, iso8583.BitmapBinary, table1993, mtis1993, encoding.ASCII, encoding.ASCII, prefix.ASCII.Fixed, ascii, nil},
		{iso8583.Dialect1993ASCII, iso8583.BitmapHex, table1993, mtis1993, encoding.ASCII, encoding.ASCII, prefix.ASCII.Fixed, ascii, nil},
		{iso8583.Dialect1993BCD, iso8583.BitmapBinary, table1993, mtis1993, encoding.ASCII, encoding.BCD, prefix.BCD.Fixed, packed, []int{35, 36, 97}},
	}
}

// packedDigits tells which values the dialect packs: numbers, and currencies, which are numbers there.
func (d peerDialect) packedDigits(e peerElement) bool {
	return e.class == "n" || d.digits == encoding.BCD && e.number >= 49 && e.number <= 51
}

func (d peerDialect) has(e peerElement) bool {
	for _, n := range d.absent {
		if n == e.number {
			return false
		}
	}
	return true
}

func (d peerDialect) spec() *moov.MessageSpec {
	bitmap := &field.Spec{Length: 8, Enc: encoding.Binary, Pref: prefix.Binary.Fixed}
	if d.form == iso8583.BitmapHex {
		bitmap = &field.Spec{Length: 8, Enc: encoding.BytesToASCIIHex, Pref: prefix.Hex.Fixed}
	}
	fields := map[int]field.Field{
		0: field.NewString(&field.Spec{Length: 4, Enc: d.digits, Pref: d.fixed}),
		1: field.NewBitmap(bitmap),
	}
	for _, e := range d.elements {
		if !d.has(e) {
			continue
		}
		spec := &field.Spec{Length: e.wireLength(), Enc: d.text, Pref: d.lengths[e.dots], Pad: padding.None}
		if e.dots == 0 {
			spec.Pref = d.fixed
		}
		switch {
		case e.binary():
			spec.Enc = encoding.Binary
			if e.dots == 0 {
				spec.Pref = prefix.Binary.Fixed
			}
			fields[e.number] = field.NewBinary(spec)
			continue
		case d.packedDigits(e):
			spec.Enc = d.digits
		}
		fields[e.number] = field.NewString(spec)
	}
	return &moov.MessageSpec{Name: "peer " + string(d.name), Fields: fields}
}

// drawIn draws elements that the dialect and the stock library can both hold.
func (d peerDialect) drawIn(t *rapid.T) map[int]string {
	values := map[int]string{}
	for _, e := range rapid.SliceOfNDistinct(rapid.SampledFrom(d.elements), 0, 24, func(e peerElement) int { return e.number }).Draw(t, "elements") {
		if !d.has(e) {
			continue
		}
		if d.packedDigits(e) {
			e.class = "n"
		}
		value := e.value(t)
		if d.text == encoding.EBCDIC1047 && !e.binary() {
			value = strings.NewReplacer("[", "(", "]", ")", "^", "'").Replace(value)
		}
		values[e.number] = value
	}
	return values
}

// TestPeer_StockLibraryInEveryDialect holds each dialect against the stock library with a table of its own, both ways, byte for byte.
func TestPeer_StockLibraryInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, d := range peerDialects() {
		t.Run(string(d.name)+" "+string(d.form), func(t *testing.T) {
			t.Parallel()
			ours, spec := buildSpec(t, iso8583.SpecConfig{Dialect: d.name, Bitmap: d.form}), d.spec()
			rapid.Check(t, func(t *rapid.T) {
				values := d.drawIn(t)
				mti := rapid.SampledFrom(d.mtis).Draw(t, "mti")
				body := encode(t, ours, mti, values)
				theirMTI, theirValues, err := stockUnpack(spec, body)
				if err != nil {
					t.Fatalf("the peer cannot read what we write: %v", err)
				}
				if diff := cmp.Diff(values, theirValues); diff != "" || theirMTI != mti.String() {
					t.Fatalf("the peer reads MTI %s, want %s, and elements (-want +got):\n%s", theirMTI, mti, diff)
				}
				written := moov.NewMessage(spec)
				written.MTI(mti.String())
				for n, value := range values {
					if err := written.BinaryField(n, []byte(value)); err != nil {
						t.Fatalf("peer: %v", err)
					}
				}
				theirBody, err := written.Pack()
				if err != nil || !bytes.Equal(body, theirBody) {
					t.Fatalf("we write\n%x, the peer\n%x, %v", body, theirBody, err)
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

// TestPeer_1993TableIsTheSame sets each element of the 1993 table alone, at its greatest length and one beyond.
func TestPeer_1993TableIsTheSame(t *testing.T) {
	t.Parallel()
	s := buildSpec(t, iso8583.SpecConfig{Dialect: iso8583.Dialect1993ASCII})
	fill := map[string]string{"n": "7", "an": "a", "ans": "~", "b": "\xFF", "tlv": "\x00", "x": "7"}
	elements := parsePeerTable(peerTable1993)
	for _, e := range elements {
		set := func(n int) error {
			value := strings.Repeat(fill[e.class], n)
			if e.class == "x" {
				value = "C" + value[1:]
			}
			m := s.NewMessage(0x1100)
			if e.binary() {
				return m.SetBytes(iso8583.Element(e.number), []byte(value))
			}
			return m.Set(iso8583.Element(e.number), value)
		}
		if err := set(e.wireLength()); err != nil {
			t.Errorf("DE %d: %v", e.number, err)
		}
		if set(e.wireLength()+1) == nil {
			t.Errorf("DE %d takes more than %d", e.number, e.length)
		}
		if least := set(1); e.length > 1 && (least == nil) != (e.dots > 0) {
			t.Errorf("DE %d of one character: %v", e.number, least)
		}
		if wrong := map[string]string{"n": "A", "an": "-", "ans": "\t"}[e.class]; wrong != "" {
			if s.NewMessage(0x1100).Set(iso8583.Element(e.number), strings.Repeat(wrong, e.length)) == nil {
				t.Errorf("DE %d takes %q", e.number, wrong)
			}
		}
	}
	if len(elements) != 126 {
		t.Errorf("the peer's table has %d elements", len(elements))
	}
}

// TestPeer_DamagedMessagesAreReadTheSame: what is still decoded after damage reads the same with the stock library.
func TestPeer_DamagedMessagesAreReadTheSame(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(damages))
	for _, d := range peerDialects() {
		ours, spec := buildSpec(t, iso8583.SpecConfig{Dialect: d.name, Bitmap: d.form}), d.spec()
		t.Run(string(d.name)+" "+string(d.form), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				body := encode(t, ours, rapid.SampledFrom(d.mtis).Draw(t, "mti"), d.drawIn(t))
				body = damages[rapid.SampledFrom(names).Draw(t, "damage")](t, body)
				m, err := ours.Decode(body)
				if err != nil {
					if longDigits.MatchString(err.Error()) {
						t.Fatalf("the error quotes the message: %v", err)
					}
					return
				}
				want := valuesOf(m)
				for _, e := range d.elements {
					if value, there := want[e.number]; there && (!d.has(e) || d.text == encoding.EBCDIC1047 && strings.ContainsAny(value, "[]^")) {
						return // the damage made an element or a character that the stock library reads otherwise
					}
				}
				mti, values, err := stockUnpack(spec, body)
				if diff := cmp.Diff(want, values); err != nil || diff != "" || mti != m.MTI().String() {
					t.Fatalf("the stock library reads %s, %v (-want +got):\n%s", mti, err, diff)
				}
			})
		})
	}
}
