package iso8583

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
)

// The seeds are the golden frames and the inputs on which codecs are known to fail.

func FuzzFrame(f *testing.F) {
	spec := Spec1987(BitmapBinary)
	var all []*Framing
	for _, name := range []string{"binary2", "binary2, itself", "ascii4", "ascii4, itself", "TPDU", "TPDU, counted", "TPDU, itself and counted"} {
		framing := builtFraming(f, framings[name])
		all = append(all, framing, framing.Diagnosing(spec))
		for _, g := range loadGolden(f) {
			f.Add(uint8(len(all)-1), framed(f, framing, g.body, g.body))
		}
	}
	for _, stream := range []string{"", "\x00", "\x00\x00", "-001", "+012", "\xff\xff", "0136" + "0210", "\x00\x02", "\x00\x01", "0000", "9999", "\x00\x12\x60\x00\x01\x00\x00"} {
		for i := range all {
			f.Add(uint8(i), []byte(stream))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, stream []byte) {
		framing := all[int(which)%len(all)]
		r := bufio.NewReader(bytes.NewReader(stream))
		var buf []byte
		for range len(stream) + 1 {
			body, err := framing.Read(r, buf)
			if err != nil {
				_, frame := errors.AsType[*FrameError](err)
				if !frame && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if len(body) > framing.maxBytes || cap(body) > 2*framing.maxBytes {
				t.Fatalf("%d bytes in a buffer of %d, the limit is %d", len(body), cap(body), framing.maxBytes)
			}
			if len(body) > 0 {
				again, err := framing.Append(nil, body)
				if err != nil || !bytes.Contains(stream, again) {
					t.Fatalf("the message read is not framed like what was there: %v", err)
				}
			}
			buf = body
		}
		t.Fatal("more frames than bytes")
	})
}
