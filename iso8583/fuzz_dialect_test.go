package iso8583

import (
	"math/bits"
	"testing"
)

// fuzzedSpecs are every dialect in both bitmap forms, and one that mixes codings, lengths and fillers.
func fuzzedSpecs(t testing.TB) []*Spec {
	t.Helper()
	var all []*Spec
	for _, name := range Dialects() {
		for _, form := range []BitmapForm{BitmapBinary, BitmapHex} {
			all = append(all, built(t, SpecConfig{Dialect: name, Bitmap: form}))
		}
	}
	mixed := readGolden(t, "testdata/dialects/0200_mixed.txt")
	return append(all, mixed.spec(t))
}

// seed adds the golden frames and the inputs on which codecs are known to fail, in every dialect.
func seed(f *testing.F, dialects int) {
	f.Helper()
	bodies := hostileBodies()
	for _, g := range append(loadGolden(f), loadDialects(f)...) {
		bodies = append(bodies, g.body)
	}
	for _, body := range bodies {
		for i := range dialects {
			f.Add(uint8(i), body)
		}
	}
}

// FuzzPeek demands that the elements found account for every byte, and that nothing is left of a message that is refused.
func FuzzPeek(f *testing.F) {
	specs := fuzzedSpecs(f)
	seed(f, len(specs))
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		s := specs[int(which)%len(specs)]
		var p Peeked
		err := s.Peek(body, &p)
		bitmap := bitmapBytes
		if s.bitmap == BitmapHex {
			bitmap = bitmapHexDigits
		}
		used := s.mtiSize() + bitmap
		for e := Element(0); e < 255; e++ {
			if p.Has(e) {
				used += len(p.Value(e)) + int(s.rules[e].prefixBytes)
			}
			if err != nil && (p.Has(e) || p.AppendValue(nil, e) != nil) {
				t.Fatalf("%s is left after %v", e, err)
			}
		}
		if err != nil {
			return
		}
		if p.bitmap[0]&firstBit != 0 {
			used += bitmap
		}
		if used != len(body) {
			t.Fatalf("the elements account for %d of %d bytes", used, len(body))
		}
	})
}

// FuzzDecode demands of every dialect that Peek and Decode agree, that values are printable, that their memory is bounded by the
// frame's, and that what is decoded, encoded and decoded again is the same.
func FuzzDecode(f *testing.F) {
	specs := fuzzedSpecs(f)
	seed(f, len(specs))
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		s := specs[int(which)%len(specs)]
		m, err := s.Decode(body)
		if err != nil {
			return
		}
		if cap(m.data) > 2*len(body)+1 || len(m.spans) != bits.OnesCount64(m.present[0])+bits.OnesCount64(m.present[1]) {
			t.Fatalf("%d bytes hold the values of a message of %d", cap(m.data), len(body))
		}
		for _, e := range m.Elements() {
			if text := m.Get(e); !s.IsBinary(e) && checkFormat(anyText, e, text) != nil {
				t.Fatalf("%s holds what is not printable", e)
			}
		}
		agree(t, s, body, m)
	})
}
