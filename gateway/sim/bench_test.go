package sim

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"go.uber.org/zap"
)

// BenchmarkCard is how many authorisations a second the scheme answers on one connection, with 64 in flight: what it can take
// from a measurement of the daemon.
func BenchmarkCard(b *testing.B) {
	card, err := NewCard(DefaultCardConfig(), zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	ctx := b.Context()
	go func() { done <- card.Run(ctx) }()
	conn, err := net.Dial("tcp", card.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	answer := func() {
		header := make([]byte, 2)
		if _, err := io.ReadFull(r, header); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Discard(int(binary.BigEndian.Uint16(header))); err != nil {
			b.Fatal(err)
		}
	}
	send := func(mti string, f fields) {
		if _, err := conn.Write(packed(b, mti, f)); err != nil {
			b.Fatal(err)
		}
	}
	send("0800", fields{70: "001", 11: "000900"})
	answer()
	frames := make([][]byte, 64)
	for i := range frames {
		frames[i] = packed(b, "0100", purchase(i+1, 2500))
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n >= len(frames) {
			answer()
		}
		if _, err := conn.Write(frames[n%len(frames)]); err != nil {
			b.Fatal(err)
		}
	}
}
