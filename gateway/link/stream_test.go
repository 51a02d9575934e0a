package link

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// TestS73_AnyPiecesOfTheStreamGiveTheSameMessages: three answers, cut at every byte, sent byte by byte, and all glued together.
func TestS73_AnyPiecesOfTheStreamGiveTheSameMessages(t *testing.T) {
	t.Parallel()
	size := 0
	for _, m := range requests(3) {
		size += len(framed(response(m, "00")))
	}
	// cuts[i] are the places at which round i's stream is cut; a cut at 0 is no cut.
	cuts := [][]int{{0}, nil}
	for at := range size {
		cuts[1] = append(cuts[1], at)
		cuts = append(cuts, []int{at})
	}
	p := startPeer(t, func(c *conn) {
		if c.signOn() != nil {
			return
		}
		for _, cut := range cuts {
			var stream []byte
			for range 3 {
				m, err := c.read()
				if err != nil {
					return
				}
				stream = append(stream, framed(response(m, "00"))...)
			}
			last := 0
			for _, at := range append(cut, len(stream)) {
				if _, err := c.Write(stream[last:at]); err != nil { // TCP_NODELAY is on: each piece leaves by itself
					return
				}
				last = at
			}
		}
		c.serve(silence)
	})
	l := startSignedOn(t, testConfig(p.address()), Options{})
	for round := range cuts {
		all := requests(3)
		for i, o := range exchangeAll(l, patience, all...) {
			if o.err != nil {
				t.Fatalf("round %d: %v", round, o.err)
			}
			if got, want := decoded(t, o.body).Get(iso8583.STAN), all[i].Get(iso8583.STAN); got != want {
				t.Fatalf("round %d: STAN %s was answered to %s", round, got, want)
			}
		}
	}
	if status := l.Status(); status.Unmatched != 0 || status.Reconnects != 0 {
		t.Errorf("%d unmatched, %d reconnects", status.Unmatched, status.Reconnects)
	}
}

// TestS74_WrongLengthSettingIsDiagnosed: the peer counts the two length bytes and we do not, or the other way round.
func TestS74_WrongLengthSettingIsDiagnosed(t *testing.T) {
	t.Parallel()
	for name, surplus := range map[string]int{"peer counts the length": 2, "we count the length": -2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPeer(t, func(c *conn) {
				// What we send has a wrong length for the peer as well; all it needs is that something came.
				if _, err := c.Read(make([]byte, 512)); err != nil {
					return
				}
				body := encoded(response(networkRequest(0x0800, 1, "001"), "00"))
				length := len(body)
				if surplus > 0 {
					length += surplus
				}
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(length)), body...))
				drain(c)
			})
			cfg := testConfig(p.address())
			if surplus < 0 {
				cfg.Framing = inclusiveFraming()
			}
			cfg.SignOnTimeout = configs.Duration(200 * time.Millisecond)
			l := startLink(t, cfg, Options{})
			eventually(t, "the socket is given up", func() bool { return l.Status().LastDown != "" })
			if cause := l.Status().LastDownCause; !strings.Contains(cause, "includes") {
				t.Errorf("given up by %s: %q, which does not name the setting", l.Status().LastDown, cause)
			}
		})
	}
}
