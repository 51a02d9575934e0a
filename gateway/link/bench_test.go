package link

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// BenchmarkExchange measures whole exchanges over loopback with a peer that turns each 0100 into a 0110 by its bytes alone, so that
// what is measured is the link.
func BenchmarkExchange(b *testing.B) {
	for _, inFlight := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("in flight %d", inFlight), func(b *testing.B) {
			p := startPeer(b, func(c *conn) {
				if c.signOn() == nil {
					turnRequests(c)
				}
			})
			cfg := testConfig(p.address())
			cfg.Budgets.InboundFrames = 0 // loopback is faster than any scheme's line
			l := startSignedOn(b, cfg, Options{})
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for lane := range inFlight {
				wg.Go(func() {
					body := encoded(request(iso8583.MTIAuthorizationRequest, lane+1, "T1"))
					for next.Add(1) <= int64(b.N) {
						call := Call{Body: body, Deadline: time.Now().Add(patience)}
						if _, err := l.Exchange(context.Background(), call); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "exchanges/s")
		})
	}
}

// turnRequests sends every frame back as its response, several at once where several have come.
func turnRequests(c *conn) {
	const mtiFunctionAt = 2 + 2 // after the length
	var out []byte
	for {
		header, err := c.r.Peek(2)
		if err != nil {
			return
		}
		frame := make([]byte, 2+int(binary.BigEndian.Uint16(header)))
		if _, err := io.ReadFull(c.r, frame); err != nil {
			return
		}
		frame[mtiFunctionAt]++
		out = append(out, frame...)
		if c.r.Buffered() == 0 {
			if _, err := c.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}
}

// BenchmarkFallback is a response that lacks an element of its key, on a full link: what a peer can make each of its frames cost while the
// link's lock is held.
func BenchmarkFallback(b *testing.B) {
	const pending = 4096
	p := startPeer(b, func(c *conn) { c.serve(silence) })
	cfg := testConfig(p.address())
	cfg.MaxPending = pending
	cfg.CorrelationFallback = [][]iso8583.Element{{iso8583.STAN, iso8583.RRN}, {iso8583.RRN}}
	l := startSignedOn(b, cfg, Options{})
	ctx, cancel := context.WithCancel(b.Context())
	var calls sync.WaitGroup
	for _, m := range requests(pending) {
		calls.Go(func() { _, _ = l.Exchange(ctx, Call{Body: encoded(m), Deadline: time.Now().Add(patience)}) })
	}
	eventually(b, "the link is full", func() bool { return !l.HasRoom() })
	answer := response(request(iso8583.MTIAuthorizationRequest, pending+1, "T1"), "00")
	answer.Unset(iso8583.TerminalID)
	s := &socket{line: l.lines[0]}
	must(l.spec.Peek(encoded(answer), &s.peeked))
	for b.Loop() {
		if c, _ := s.take(nil, true, iso8583.Approved); c != nil {
			b.Fatal("delivered to another's call")
		}
	}
	cancel()
	calls.Wait()
}
