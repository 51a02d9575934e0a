package iso8583_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	moov "github.com/moov-io/iso8583"

	"github.com/schemegate/schemegate/iso8583"
)

// exchange is a request and its answer, with the elements that a purchase on a chip has.
var exchange = []struct {
	mti    iso8583.MTI
	values map[int]string
}{
	{iso8583.MTIAuthorizationRequest, map[int]string{2: "4111111111111111", 3: "000000", 4: "000000001050", 7: "1201094501", 11: "000123", 12: "104501", 13: "1201",
		14: "2912", 18: "5999", 22: "051", 23: "001", 25: "00", 32: "12345678901", 35: "4111111111111111D29122011234567890", 37: "633510000123",
		41: "TERM0001", 42: "MERCHANT0000001", 43: "SCHEMEGATE TEST SHOP    BERLIN       DE ", 49: "978",
		55: "\x9F\x26\x08\x11\x22\x33\x44\x55\x66\x77\x88\x9F\x27\x01\x80\x9F\x10\x07\x06\x01\x0A\x03\xA0\xA0\x00\x9F\x37\x04\x12\x34\x56\x78\x9F\x36\x02\x00\x42"}},
	{iso8583.MTIAuthorizationResponse, map[int]string{3: "000000", 4: "000000001050", 7: "1201094501", 11: "000123", 12: "104501", 13: "1201",
		32: "12345678901", 37: "633510000123", 38: "A12345", 39: "00", 41: "TERM0001", 42: "MERCHANT0000001", 49: "978"}},
}

// order is the elements in their order, so that neither side pays for a map.
type order struct {
	mti   iso8583.MTI
	ids   []int
	texts []string
}

func ordered() (all []order) {
	for _, x := range exchange {
		o := order{mti: x.mti}
		for _, e := range peerElements {
			if value, has := x.values[e.number]; has {
				o.ids, o.texts = append(o.ids, e.number), append(o.texts, value)
			}
		}
		all = append(all, o)
	}
	return all
}

func ourRoundTrip(b testing.TB, s *iso8583.Spec, o order) {
	m := s.NewMessage(o.mti)
	for i, id := range o.ids {
		e := iso8583.Element(id)
		var err error
		if s.IsBinary(e) {
			err = m.SetBytes(e, []byte(o.texts[i]))
		} else {
			err = m.Set(e, o.texts[i])
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	body, err := s.Encode(m)
	if err != nil {
		b.Fatal(err)
	}
	if m, err = s.Decode(body); err != nil {
		b.Fatal(err)
	}
	for _, id := range o.ids {
		if m.Bytes(iso8583.Element(id)) == nil {
			b.Fatal("an element is gone")
		}
	}
}

func stockRoundTrip(b testing.TB, s *moov.MessageSpec, o order) {
	m := moov.NewMessage(s)
	m.MTI(o.mti.String())
	for i, id := range o.ids {
		if err := m.BinaryField(id, []byte(o.texts[i])); err != nil {
			b.Fatal(err)
		}
	}
	body, err := m.Pack()
	if err != nil {
		b.Fatal(err)
	}
	m = moov.NewMessage(s)
	if err = m.Unpack(body); err != nil {
		b.Fatal(err)
	}
	for _, id := range o.ids {
		if value, err := m.GetBytes(id); err != nil || value == nil {
			b.Fatal("an element is gone")
		}
	}
}

// BenchmarkAgainstStock builds, writes, reads and takes apart a 0100 and its 0110, by turns through this package and on the stock library
// alone, so that a busy machine slows down both. ratio is the median of ours over the median of theirs. In the packed dialect the stock
// library packs with its own encoder, and both carry track 2 in ASCII, since that encoder refuses the separator.
func BenchmarkAgainstStock(b *testing.B) {
	packed := peerDialects()[0]
	packed.absent = []int{28, 29, 30, 31, 36, 97}
	for _, dialect := range []struct {
		name  string
		ours  *iso8583.Spec
		stock *moov.MessageSpec
	}{
		{"ascii", iso8583.Spec1987(iso8583.BitmapBinary), peerSpecs[iso8583.BitmapBinary]},
		{"bcd", buildSpec(b, iso8583.SpecConfig{Dialect: iso8583.Dialect1987BCD, Elements: map[iso8583.Element]iso8583.ElementConfig{
			iso8583.Track2: {Encoding: "ascii"}}}), packed.spec()},
	} {
		b.Run(dialect.name, func(b *testing.B) { againstStock(b, dialect.ours, dialect.stock) })
	}
}

func againstStock(b *testing.B, ours *iso8583.Spec, stock *moov.MessageSpec) {
	all := ordered()
	var own, their []time.Duration
	for b.Loop() {
		start := time.Now()
		for _, o := range all {
			ourRoundTrip(b, ours, o)
		}
		middle := time.Now()
		for _, o := range all {
			stockRoundTrip(b, stock, o)
		}
		own, their = append(own, middle.Sub(start)), append(their, time.Since(middle))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	b.ReportMetric(median(own), "ours-ns")
	b.ReportMetric(median(their), "stock-ns")
	b.ReportMetric(median(own)/median(their), "ratio")
	b.ReportMetric(float64(slices.Min(own))/float64(slices.Min(their)), "best-ratio")
}

// BenchmarkPeekKeyElements is what correlation costs for each message: the walk and the key elements' values as text.
func BenchmarkPeekKeyElements(b *testing.B) {
	for _, name := range iso8583.Dialects() {
		s := buildSpec(b, iso8583.SpecConfig{Dialect: name})
		for _, x := range exchange {
			mti, values := x.mti, maps.Clone(x.values)
			if s.Edition() == iso8583.Edition1993 {
				mti |= 0x1000
				values[12], values[22], values[25], values[39] = "261201104501", "A1010151314C", "4000", "000"
			}
			body := encode(b, s, mti, values)
			b.Run(string(name)+"/"+mti.String(), func(b *testing.B) {
				b.ReportAllocs()
				var p iso8583.Peeked
				var key []byte
				for b.Loop() {
					if err := s.Peek(body, &p); err != nil {
						b.Fatal(err)
					}
					key = p.AppendValue(p.AppendValue(p.AppendValue(key[:0], iso8583.STAN), iso8583.RRN), iso8583.TerminalID)
					if len(key) != 26 {
						b.Fatal("key elements are missing")
					}
				}
			})
		}
	}
}
