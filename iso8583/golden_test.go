package iso8583

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	moov "github.com/moov-io/iso8583"
)

// TestGoldenFrames reads and writes frames that were written down by hand.
func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	for _, g := range append(loadGolden(t), loadDialects(t)...) {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			s := g.spec(t)
			m, err := s.Decode(g.body)
			noError(t, err)
			got := map[Element]string{}
			for _, e := range m.Elements() {
				got[e] = string(m.Bytes(e))
			}
			if diff := cmp.Diff(g.values, got); diff != "" || m.MTI() != g.mti {
				t.Errorf("decoded MTI %s, want %s; elements (-want +got):\n%s", m.MTI(), g.mti, diff)
			}
			if body := encoded(t, s, g.mti, g.values); !bytes.Equal(body, g.body) {
				t.Errorf("encoded\n%x, want\n%x", body, g.body)
			}
			var p Peeked
			noError(t, s.Peek(g.body, &p))
			for e, want := range g.values {
				if value := string(p.AppendValue(nil, e)); value != want {
					t.Errorf("peeked %s: %q, want %q", e, value, want)
				}
			}
		})
	}
}

// TestGolden_J24_PublicVectors: two messages that a public guide shows, of a dialect with packed digits; the 1987 dialect in ASCII refuses
// them by their first bytes.
func TestGolden_J24_PublicVectors(t *testing.T) {
	t.Parallel()
	packed := built(t, SpecConfig{Dialect: Dialect1987BCD})
	for vector, want := range map[string]map[Element]string{
		"080020200000008000000000000000013239313130303031": {ProcessingCode: "000000", STAN: "000001", TerminalID: "29110001"},
		"0800A0200000008000100400000000000000000000000001323931313030303100106A504F5320312E392E310301": {
			ProcessingCode: "000000", STAN: "000001", TerminalID: "29110001", 60: "jPOS 1.9.1", NetworkManagementCode: "301"},
	} {
		m, err := packed.Decode(fromHex(t, vector))
		noError(t, err)
		got := map[Element]string{}
		for _, e := range m.Elements() {
			got[e] = m.Get(e)
		}
		if diff := cmp.Diff(want, got); diff != "" || m.MTI() != MTINetworkManagementRequest {
			t.Errorf("%s: MTI %s, elements (-want +got):\n%s", vector, m.MTI(), diff)
		}
		if again, err := packed.Encode(m); err != nil || !bytes.Equal(again, fromHex(t, vector)) {
			t.Errorf("%s: written again as %x, %v", vector, again, err)
		}
		for _, form := range []BitmapForm{BitmapBinary, BitmapHex} {
			if _, err := Spec1987(form).Decode(fromHex(t, vector)); err == nil || !bytes.Contains([]byte(err.Error()), []byte("4 digits")) {
				t.Errorf("%s bitmap: error %v, want one about the message type", form, err)
			}
		}
	}
}

// TestInterop_StockSpec87 lets the library's own 1987 spec, which is not ours, read what we write and write what we read.
func TestInterop_StockSpec87(t *testing.T) {
	t.Parallel()
	ours := Spec1987(BitmapHex)
	values := map[Element]string{PAN: testPAN, TransmissionDateTime: "1201094535", STAN: "000124", TimeLocal: "104501", DateLocal: "1201",
		AcquirerID: "12345678901", Track2: testTrack2, RRN: "000000000123", ResponseCode: "00", TerminalID: "TERM 001", CardAcceptorID: "MERCHANT 000001",
		CurrencyTransaction: "978", OriginalData: "0100000123120109450112345678901" + "00000000000"}
	theirs := moov.NewMessage(moov.Spec87)
	noError(t, theirs.Unpack(encoded(t, ours, MTIReversalAdvice, values)))
	for e, want := range values {
		if got, err := theirs.GetString(int(e)); err != nil || got != want {
			t.Errorf("%s: they read %q, %v, want %q", e, got, err, want)
		}
	}
	written := moov.NewMessage(moov.Spec87)
	written.MTI("0420")
	for e, value := range values {
		noError(t, written.Field(int(e), value))
	}
	body, err := written.Pack()
	noError(t, err)
	m, err := ours.Decode(body)
	noError(t, err)
	if got := m.Elements(); !slices.Equal(got, slices.Sorted(maps.Keys(values))) {
		t.Errorf("we read elements %v", got)
	}
	for e, want := range values {
		if got := m.Get(e); got != want {
			t.Errorf("%s: we read %q, want %q", e, got, want)
		}
	}
}
