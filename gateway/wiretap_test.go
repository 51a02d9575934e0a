package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/iso8583"
)

// wiretap stands between a gateway and the scheme and keeps what the gateway sent, as bytes.
type wiretap struct {
	spec    *iso8583.Spec
	framing *iso8583.Framing
	scheme  string

	mu     sync.Mutex // protects the following
	bodies [][]byte
}

// tapped puts a wiretap into a stand's link; it fills the pointer when the stand is put up.
func tapped(t *testing.T, tap **wiretap, change func(*gateway.LinkConfig)) func(*gateway.LinkConfig) {
	return func(c *gateway.LinkConfig) {
		if change != nil {
			change(c)
		}
		var err error
		w := &wiretap{scheme: c.Address}
		if w.spec, err = c.Spec.Build(); err != nil {
			t.Fatal(err)
		}
		if w.framing, err = c.Framing.Build(); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				near, err := listener.Accept()
				if err != nil {
					return
				}
				serving.Go(func() { w.serve(ctx, near) })
			}
		})
		t.Cleanup(func() { cancel(); listener.Close(); serving.Wait() })
		*tap, c.Address = w, listener.Addr().String()
	}
}

func (w *wiretap) serve(ctx context.Context, near net.Conn) {
	var dialer net.Dialer
	far, err := dialer.DialContext(ctx, "tcp", w.scheme)
	if err != nil {
		near.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() { near.Close(); far.Close() })
	defer stop()
	var copying sync.WaitGroup
	copying.Go(func() { defer near.Close(); _, _ = io.Copy(near, far) })
	defer copying.Wait()
	defer far.Close()
	for r := bufio.NewReader(io.TeeReader(near, far)); ; {
		body, err := w.framing.Read(r, nil)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.bodies = append(w.bodies, bytes.Clone(body))
		w.mu.Unlock()
	}
}

// sent lists the messages of some types that left, in their order.
func (w *wiretap) sent(t testing.TB, types ...string) (messages []*iso8583.Message, bodies [][]byte) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, body := range w.bodies {
		m, err := w.spec.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		for _, mti := range types {
			if m.MTI().String() == mti {
				messages, bodies = append(messages, m), append(bodies, body)
			}
		}
	}
	return messages, bodies
}
