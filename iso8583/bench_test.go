package iso8583

import (
	"bufio"
	"bytes"
	"maps"
	"slices"
	"testing"

	moov "github.com/moov-io/iso8583"
)

func BenchmarkPeek(b *testing.B) {
	for _, name := range []string{"0100_binary", "0100_hex", "0110_binary", "0800_sign_on_binary"} {
		g := readGolden(b, "testdata/golden/"+name+".txt")
		s := Spec1987(g.bitmap)
		b.Run(name, func(b *testing.B) {
			var p Peeked
			for b.Loop() {
				if err := s.Peek(g.body, &p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPeekAndKey(b *testing.B) {
	s, body := Spec1987(BitmapBinary), goldenBody(b, "0110_binary")
	var p Peeked
	var key []byte
	elements := []Element{TransmissionDateTime, STAN, TerminalID}
	for b.Loop() {
		if err := s.Peek(body, &p); err != nil {
			b.Fatal(err)
		}
		key, _ = AppendKey(key[:0], &p, elements)
	}
}

// BenchmarkCodec does the same work, building a 0100 from its values and reading it back, through this package and on the library alone.
func BenchmarkCodec(b *testing.B) {
	g := readGolden(b, "testdata/golden/0100_binary.txt")
	s := Spec1987(BitmapBinary)
	elements := slices.Sorted(maps.Keys(g.values))
	fail := func(err error) { // testing.B.Helper would cost more than what is measured
		if err != nil {
			b.Fatal(err)
		}
	}
	b.Run("ours/encode+decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m := s.NewMessage(g.mti)
			for _, e := range elements {
				if s.IsBinary(e) {
					fail(m.SetBytes(e, []byte(g.values[e])))
				} else {
					fail(m.Set(e, g.values[e]))
				}
			}
			body, err := s.Encode(m)
			fail(err)
			_, err = s.Decode(body)
			fail(err)
		}
	})
	b.Run("stock/pack+unpack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m := moov.NewMessage(s.codec)
			m.MTI(g.mti.String())
			for _, e := range elements {
				fail(m.BinaryField(int(e), []byte(g.values[e])))
			}
			body, err := m.Pack()
			fail(err)
			fail(moov.NewMessage(s.codec).Unpack(body))
		}
	})
	b.Run("ours/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.Decode(g.body)
			fail(err)
		}
	})
	b.Run("stock/unpack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fail(moov.NewMessage(s.codec).Unpack(g.body))
		}
	})
}

func BenchmarkFramingRead(b *testing.B) {
	s := Spec1987(BitmapBinary)
	body := goldenBody(b, "0110_binary")
	f := builtFraming(b, FramingConfig{}).Diagnosing(s)
	frame := framed(b, f, body)
	source := bytes.NewReader(nil)
	r, buf := bufio.NewReader(source), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(frame)
		r.Reset(source)
		var err error
		buf, err = f.Read(r, buf)
		noError(b, err)
	}
}
