package iso8583

import (
	"bufio"
	"bytes"
	"math"
	"testing"
	"time"
)

// BenchmarkPeek also gives the best of many short runs, which a machine that others use as well disturbs least.
func BenchmarkPeek(b *testing.B) {
	for _, g := range append(loadGolden(b), loadDialects(b)...) {
		s := g.spec(b)
		b.Run(g.name, func(b *testing.B) {
			const run = 100
			var p Peeked
			best := time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				for range run {
					if err := s.Peek(g.body, &p); err != nil {
						b.Fatal(err)
					}
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(best)/run, "best-ns/peek")
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
