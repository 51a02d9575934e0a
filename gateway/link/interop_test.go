package link

import (
	"fmt"
	"testing"

	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/network"
	"github.com/moov-io/iso8583/prefix"
	"github.com/schemegate/schemegate/iso8583"
)

// stockSpec is written down here by itself, element by element, so that a fault in our table or codec cannot cancel itself out.
func stockSpec() *moov.MessageSpec {
	fixed := func(length int) field.Field {
		return field.NewString(&field.Spec{Length: length, Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed})
	}
	ll := func(length int) field.Field {
		return field.NewString(&field.Spec{Length: length, Enc: encoding.ASCII, Pref: prefix.ASCII.LL})
	}
	return &moov.MessageSpec{Fields: map[int]field.Field{
		0: fixed(4), 1: field.NewBitmap(&field.Spec{Length: 8, Enc: encoding.Binary, Pref: prefix.Binary.Fixed}),
		2: ll(19), 3: fixed(6), 4: fixed(12), 7: fixed(10), 11: fixed(6), 37: fixed(12), 38: fixed(6), 39: fixed(2), 41: fixed(8),
		70: fixed(3), 90: fixed(42),
	}}
}

// stockPeer answers everything, with nothing of ours between it and the wire.
func stockPeer(t *testing.T, c *conn) {
	spec := stockSpec()
	for {
		header := network.NewBinary2BytesHeader()
		if _, err := header.ReadFrom(c.r); err != nil {
			return
		}
		raw := make([]byte, header.Length())
		for read := 0; read < len(raw); {
			n, err := c.r.Read(raw[read:])
			if err != nil {
				return
			}
			read += n
		}
		in := moov.NewMessage(spec)
		if err := in.Unpack(raw); err != nil {
			t.Errorf("stock codec cannot read what we sent: %v", err)
			return
		}
		mti, _ := in.GetMTI()
		out := moov.NewMessage(spec)
		out.MTI(mti[:2] + "10")
		if mti[2] == '2' {
			out.MTI(mti[:2] + "30")
		}
		for _, id := range []int{7, 11, 37, 41, 70} {
			if value, err := in.GetString(id); err == nil && value != "" {
				must(out.Field(id, value))
			}
		}
		must(out.Field(39, "00"))
		if mti[1] == '1' {
			stan, _ := in.GetString(11)
			must(out.Field(38, stan))
		}
		packed, err := out.Pack()
		must(err)
		must(header.SetLength(len(packed)))
		if _, err := header.WriteTo(c); err != nil {
			return
		}
		if _, err := c.Write(packed); err != nil {
			return
		}
	}
}

func TestPeerOnTheStockCodec(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) { stockPeer(t, c) })
	var handedOn journal
	l, stop := runLink(t, testConfig(p.address()), Options{OnUnmatched: handedOn.note})
	waitState(t, l, SignedOn)
	all := requests(100)
	all = append(all, request(0x0420, 1, "T1"), request(0x0421, 2, "T1"), request(0x0200, 1, "T1"))
	for i, o := range exchangeAll(l, patience, all...) {
		if o.err != nil {
			t.Fatal(o.err)
		}
		m := decoded(t, o.body)
		if m.MTI() != all[i].MTI().Response() || m.Get(iso8583.STAN) != all[i].Get(iso8583.STAN) || m.Get(iso8583.ResponseCode) != "00" {
			t.Errorf("%s answered by %s", all[i].Image(), m.Image())
		}
		if want := fmt.Sprintf("%06d", i+1); i < 100 && m.Get(iso8583.ApprovalCode) != want {
			t.Errorf("approval code %q, want %q", m.Get(iso8583.ApprovalCode), want)
		}
	}
	stop()
	if n := len(handedOn.all()); n != 0 {
		t.Errorf("%d messages handed on", n)
	}
}
