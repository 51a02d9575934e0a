package iso8583

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/moov-io/iso8583/encoding"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/prefix"
	"github.com/moov-io/iso8583/sort"
)

// The traps of wire forms (W) and panics (P), and the real-life inputs (J); traps_test.go has those of the codec's behaviour.

func TestW1_BitmapIsOneOrTwoBlocksOf8Bytes(t *testing.T) {
	t.Parallel()
	// Bit 1 clear: 8 bytes and no more, in both forms and read as well as written.
	values := map[Element]string{ProcessingCode: "000000", TransmissionDateTime: "1201094501", STAN: "000001", TerminalID: "29110001"}
	short := map[BitmapForm]string{BitmapBinary: "0800\x22\x20\x00\x00\x00\x80\x00\x00", BitmapHex: "08002220000000800000"}
	for form, head := range short {
		body := encoded(t, Spec1987(form), MTINetworkManagementRequest, values)
		if want := head + "000000" + "1201094501" + "000001" + "29110001"; string(body) != want {
			t.Errorf("%s: %q, want %q", form, body, want)
		}
	}
	// Bit 1 set: 16 bytes and no more.
	values[NetworkManagementCode] = "301"
	long := map[BitmapForm]string{BitmapBinary: "0800\xa2\x20\x00\x00\x00\x80\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00", BitmapHex: "0800A2200000008000000400000000000000"}
	for form, head := range long {
		s := Spec1987(form)
		body := encoded(t, s, MTINetworkManagementRequest, values)
		want := head + "000000" + "1201094501" + "000001" + "29110001" + "301"
		if string(body) != want {
			t.Errorf("%s: %q, want %q", form, body, want)
		}
		if m, err := s.Decode(body); err != nil || m.Get(NetworkManagementCode) != "301" {
			t.Errorf("%s: %v, %v", form, m, err)
		}
	}
	// A peer may set bit 1 with an empty second bitmap, or write hexadecimal digits in lower case.
	s := Spec1987(BitmapHex)
	if m, err := s.Decode([]byte("0800" + "a020000000000000" + "0000000000000000" + "000000" + "000001")); err != nil || m.Get(STAN) != "000001" {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := s.Decode([]byte("0800" + "g020000000000000" + "0000000000000000" + "000000" + "000001")); err == nil {
		t.Error("a bitmap of other characters is decoded")
	}
}

func TestW5_EmptyTLVValuesPassUnchanged(t *testing.T) {
	t.Parallel()
	for name, icc := range map[string]string{"empty value": "9F0200 9A03261201", "padding": "00 9F0200 0000 9A03261201 00", "repeated and unsorted": "9F3602 0001 5A00 9F36020002"} {
		s, want := Spec1987(BitmapBinary), fromHex(t, icc)
		m, err := s.Decode(encoded(t, s, MTIAuthorizationRequest, map[Element]string{ICCData: string(want)}))
		noError(t, err)
		if got := m.Bytes(ICCData); !bytes.Equal(got, want) {
			t.Errorf("%s: %x came back as %x", name, want, got)
		}
	}
}

func TestW6_IndefiniteTLVLengthIsRefused(t *testing.T) {
	t.Parallel()
	refusesICC(t, "E180 9F0200 0000", "indefinite")
}

// refusesICC demands that the ICC data is refused on every way in.
func refusesICC(t *testing.T, hexICC, rule string) {
	t.Helper()
	s, icc := Spec1987(BitmapBinary), fromHex(t, hexICC)
	refusesElement(t, s.NewMessage(MTIAuthorizationRequest).SetBytes(ICCData, icc), ICCData)
	_, err := s.Decode(raw("0100", 55, fmt.Sprintf("%03d%s", len(icc), icc)))
	refusesElement(t, err, ICCData)
	if !strings.Contains(err.Error(), rule) {
		t.Errorf("%s: %v, want one about %q", hexICC, err, rule)
	}
	if CheckBERTLV(icc) == nil {
		t.Errorf("%s passes the scan", hexICC)
	}
}

// TestP2_J3_TLVLengthsBeyond16Bits: lengths that become negative, in the list of real-life inputs number 3 as well.
func TestP2_J3_TLVLengthsBeyond16Bits(t *testing.T) {
	t.Parallel()
	refusesICC(t, "E188FFFFFFFFFFFFFFFF", "16 bits")
	refusesICC(t, "9F36888000000000000000AA", "16 bits")
	refusesICC(t, "9F3683000001AA", "16 bits")
	refusesICC(t, "9F3682FFFFAA", "beyond")
	refusesICC(t, "9F3663010203", "beyond")
	refusesICC(t, "9F3682FF", "no length")
	refusesICC(t, "9F36", "no length")
	refusesICC(t, "9F", "cut off")
	refusesICC(t, "DF818181818100", "longer than 4")
	for _, good := range []string{"", "9A03261201", "9F368102000F", "9F36820002000F", "DF81010107", "DF8181010107", "7104860200FF"} {
		if err := CheckBERTLV(fromHex(t, good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// TestP1_J2_ASignIsNoLengthInAnyCoding: the length -5 in EBCDIC, on which the stock library panics.
func TestP1_J2_ASignIsNoLengthInAnyCoding(t *testing.T) {
	t.Parallel()
	composite := field.NewComposite(&field.Spec{
		Length: 255, Pref: prefix.EBCDIC.LL, Tag: &field.TagSpec{Length: 2, Enc: encoding.EBCDIC, Sort: sort.StringsByInt},
		Subfields: map[string]field.Field{"01": field.NewString(&field.Spec{Length: 9, Enc: encoding.EBCDIC, Pref: prefix.EBCDIC.LL})},
	})
	input := []byte{0x60, 0xF5, 0xF0, 0xF1, 0xF0, 0xF1, 0xC1}
	panicked := func() (panicked bool) {
		defer func() { panicked = recover() != nil }()
		_, _ = composite.Unpack(input)
		return false
	}
	if !panicked() {
		t.Error("the stock library no longer panics on this input")
	}
	for _, length := range [][]byte{{0x60, 0xF5}, {0x4E, 0xF5}, {0xF5, 0x60}, {0x40, 0xF5}, {'0', '5'}, {0xF0, 0xFA}} {
		s := built(t, SpecConfig{Dialect: Dialect1987EBCDIC})
		body := append([]byte("\xF0\xF1\xF0\xF0\x00\x00\x00\x00\x00\x10\x00\x00"), append(length, input[2:]...)...) // DE 44
		var p Peeked
		refusesElement(t, s.Peek(body, &p), 44)
		_, err := s.Decode(body)
		refusesElement(t, err, 44)
		if !strings.Contains(err.Error(), ruleLengthDigits) {
			t.Errorf("%x: %v", length, err)
		}
	}
}

// TestP4_ICCDataIsCapped: the cost of one element is bounded by its cap, which no profile can lift beyond three digits.
func TestP4_ICCDataIsCapped(t *testing.T) {
	t.Parallel()
	many := func(n int) string { return strings.Repeat("\x9a\x00", n/2) }
	s := Spec1987(BitmapBinary)
	refusesElement(t, s.NewMessage(MTIAuthorizationRequest).SetBytes(ICCData, []byte(many(256))), ICCData)
	_, err := s.Decode(raw("0100", 55, "256"+many(256)))
	refusesElement(t, err, ICCData)
	larger := built(t, SpecConfig{Elements: map[Element]ElementConfig{ICCData: {Length: 999}}})
	if _, err := larger.Decode(raw("0100", 55, "998"+many(998))); err != nil {
		t.Error(err)
	}
	if _, err := (SpecConfig{Elements: map[Element]ElementConfig{ICCData: {Length: 1000}}}).Build(); err == nil {
		t.Error("a profile lifts the cap")
	}
}

func TestW8_PINDataIs8Bytes(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapHex) // also where the bitmap is hexadecimal
	block := string([]byte{0x00, 0xFF, 0x10, '2', 0x80, 0x0A, ' ', 0x7F})
	body := encoded(t, s, MTIAuthorizationRequest, map[Element]string{PINData: block})
	if !bytes.HasSuffix(body, []byte(block)) || len(body) != 4+16+8 {
		t.Errorf("%x", body)
	}
	m, err := s.Decode(body)
	noError(t, err)
	if got := string(m.Bytes(PINData)); got != block {
		t.Errorf("%x", got)
	}
	refusesElement(t, m.SetBytes(PINData, []byte("00FF102030405060")), PINData)
	refusesElement(t, m.Set(PINData, "00FF1020"), PINData)
	refusesElement(t, m.SetBytes(STAN, []byte("000001")), STAN)
}

func TestW9_ElementsThatCannotHoldData(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	m := s.NewMessage(MTIAuthorizationRequest)
	for _, e := range []Element{0, 1, 65, 129, 255} {
		refusesElement(t, m.Set(e, "1"), e)
		refusesElement(t, m.SetBytes(e, []byte("1")), e)
		if m.Has(e) || m.Get(e) != "" || m.Bytes(e) != nil || e.Name() != "" {
			t.Errorf("%s holds data", e)
		}
	}
	// In the list of real-life inputs number 10: bits 65 and 130, a third bitmap.
	third := []byte("0100\x80\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00")
	_, err := s.Decode(third)
	refusesElement(t, err, 65)
}

// TestUnknownElementsAreRefusedByName: an element that the dialect does not have fails the message, and says which it is.
func TestUnknownElementsAreRefusedByName(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Elements: map[Element]ElementConfig{112: {Absent: true}}})
	body := encoded(t, Spec1987(BitmapBinary), MTIAuthorizationAdvice, map[Element]string{STAN: "000001", 112: "way4"})
	var p Peeked
	refusesElement(t, s.Peek(body, &p), 112)
	if p.Has(STAN) || p.Value(STAN) != nil || p.MTI() != MTIAuthorizationAdvice {
		t.Error("elements are left from a message that was refused")
	}
	_, err := s.Decode(body)
	refusesElement(t, err, 112)
	refusesElement(t, s.NewMessage(MTIAuthorizationAdvice).Set(112, "way4"), 112)
	// A message made for another dialect.
	m := Spec1987(BitmapBinary).NewMessage(MTIAuthorizationAdvice)
	noError(t, m.Set(112, "way4"))
	_, err = s.Encode(m)
	refusesElement(t, err, 112)
}

// TestJ1_ShortFrames, number 1 of the real-life inputs: nothing, less than a message type, a message type alone.
func TestJ1_ShortFrames(t *testing.T) {
	t.Parallel()
	for _, form := range []BitmapForm{BitmapBinary, BitmapHex} {
		for _, body := range []string{"", "0", "010", "0100", "0100\x00\x00\x00", "0100" + strings.Repeat("0", 15)} {
			if _, err := Spec1987(form).Decode([]byte(body)); err == nil {
				t.Errorf("%s: %q is decoded", form, body)
			}
		}
	}
}

// TestJ2_LengthBeyondTheMessage, number 2 of the real-life inputs.
func TestJ2_LengthBeyondTheMessage(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for e, data := range map[int]string{2: "194111", 32: "1", 48: "999A", 55: "255\x9a", 37: "short", 4: ""} {
		_, err := s.Decode(raw("0100", e, data))
		refusesElement(t, err, Element(e))
	}
	_, err := s.Decode(raw("0100", 2, "20"+strings.Repeat("4", 20)))
	refusesElement(t, err, PAN)
}

func TestS79_NegativeOversizedAndShortInputs(t *testing.T) {
	t.Parallel()
	for _, form := range []BitmapForm{BitmapBinary, BitmapHex} {
		s := Spec1987(form)
		for _, body := range hostileBodies() {
			m, err := s.Decode(body)
			if err == nil && m == nil {
				t.Errorf("%q: neither message nor error", body)
			}
			var p Peeked
			if peekErr := s.Peek(body, &p); peekErr != nil && err == nil {
				t.Errorf("%q: decoded, but not peeked: %v", body, peekErr)
			}
		}
	}
}

// hostileBodies are the inputs on which codecs are known to fail, for tests and as seeds.
func hostileBodies() [][]byte {
	bodies := [][]byte{
		nil, []byte("0"), []byte("0100"), []byte("zzzz"), []byte("\x01\x00"), raw("0100"), []byte("0100" + strings.Repeat("\xff", 16)),
		[]byte("0100" + strings.Repeat("F", 32)), bytes.Repeat([]byte{0}, 64), bytes.Repeat([]byte("9"), 70000),
		raw("0100", 2, "-1"), raw("0100", 2, "+5"+"12345"), raw("0100", 2, "99"), raw("0100", 48, "-01A"), raw("0100", 48, "999A"),
		raw("0100", 4, "-00000000005"), raw("0100", 35, "00"), raw("0100", 52, "1234567"), raw("0100", 70, "30"), raw("0100", 128, ""),
		raw("0200", 3, "001000", 11, "000123"), raw("0800", 60, "006005100000005"),
	}
	for _, icc := range []string{"\xe1\x88\xff\xff\xff\xff\xff\xff\xff\xff", "\x9f\x36\x88\x80\x00\x00\x00\x00\x00\x00\x00\xaa", "\xe1\x80\x00\x00", "\x9f\x02\x00", "\x9f", "\x1f\xff\xff\xff\xff"} {
		bodies = append(bodies, raw("0100", 55, fmt.Sprintf("%03d%s", len(icc), icc)))
	}
	return bodies
}
