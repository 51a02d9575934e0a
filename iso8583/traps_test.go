package iso8583

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	moovErrors "github.com/moov-io/iso8583/errors"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/prefix"
	"github.com/moov-io/iso8583/sort"
)

// The traps of the codec underneath. Each test is named after its line in the list of traps that this package was written against.

func TestB1_TrailingBytesAreRefused(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	body := goldenBody(t, "0110_binary")
	for _, extra := range []string{"\x00", " ", "00", "0110"} {
		longer := append(bytes.Clone(body), extra...)
		var p Peeked
		if err := s.Peek(longer, &p); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes are left over", len(extra))) {
			t.Errorf("peek: %v", err)
		}
		if _, err := s.Decode(longer); err == nil {
			t.Errorf("decoded with %d bytes left over", len(extra))
		}
	}
	for n := range body {
		if _, err := s.Decode(body[:n]); err == nil {
			t.Errorf("decoded the first %d of %d bytes", n, len(body))
		}
	}
}

func TestB2_MessageTypeIsCheckedBothWays(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for _, mti := range []string{"zzzz", "01 0", "+100", "1100", "0150", "0000"} {
		if _, err := s.Decode(raw(mti, 11, "000001")); err == nil {
			t.Errorf("%q is decoded", mti)
		}
	}
	for _, mti := range []MTI{0, 0x0150, 0x1100, 0xFFFF} {
		m := s.NewMessage(mti)
		noError(t, m.Set(STAN, "000001"))
		if _, err := s.Encode(m); err == nil {
			t.Errorf("%s is encoded", mti)
		}
	}
	only := built(t, SpecConfig{MTIs: []string{"0800", "0810"}})
	var p Peeked
	if err := only.Peek(goldenBody(t, "0110_binary"), &p); err == nil || !strings.Contains(err.Error(), "0110") || p.MTI() != MTIAuthorizationResponse {
		t.Errorf("a type the profile does not list: %v", err)
	}
	if _, err := only.Encode(s.NewMessage(MTIAuthorizationRequest)); err == nil {
		t.Error("a type the profile does not list is encoded")
	}
}

func TestB3_ZeroAmountsAndEmptyValues(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	body := encoded(t, s, MTIAuthorizationRequest, map[Element]string{ProcessingCode: "000000", AmountTransaction: "000000000000"})
	m, err := s.Decode(body)
	noError(t, err)
	if m.Get(AmountTransaction) != "000000000000" || m.Get(ProcessingCode) != "000000" {
		t.Errorf("zeros came back as %s", m)
	}
	refusesElement(t, m.Set(AcquirerID, ""), AcquirerID)
	refusesElement(t, m.SetBytes(ICCData, nil), ICCData)
}

func TestB4_AmountsAndIdentifiersAreDigitsOnly(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for _, amount := range []string{"-00000000005", "+00000000005", " 00000000005", "00000000005 ", "0000000001.5", "00000000000A"} {
		_, err := s.Decode(raw("0100", 4, amount))
		refusesElement(t, err, AmountTransaction, amount)
		refusesElement(t, s.NewMessage(MTIAuthorizationRequest).Set(AmountTransaction, amount), AmountTransaction, amount)
	}
	for _, fee := range []string{"X00000005", "-00000005", "C-0000005", "000000005"} {
		_, err := s.Decode(raw("0100", 28, fee))
		refusesElement(t, err, 28, fee)
	}
	m, err := s.Decode(raw("0100", 3, "001000", 28, "D00000005"))
	noError(t, err)
	if m.Get(ProcessingCode) != "001000" || m.Get(28) != "D00000005" {
		t.Errorf("%s", m)
	}
	if again, err := s.Encode(m); err != nil || !bytes.Equal(again, raw("0100", 3, "001000", 28, "D00000005")) {
		t.Errorf("packed again: %q, %v", again, err)
	}
}

func TestB5_NothingIsPaddedOrStripped(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for e, value := range map[Element]string{STAN: "000123", TerminalID: "T1      ", RRN: "000000000000", ApprovalCode: "  12  ", AcquirerID: "00012345"} {
		m, err := s.Decode(encoded(t, s, MTIAuthorizationResponse, map[Element]string{e: value}))
		noError(t, err)
		if got := m.Get(e); got != value {
			t.Errorf("%s: %q came back as %q", e, value, got)
		}
	}
	m := s.NewMessage(MTIAuthorizationRequest)
	refusesElement(t, m.Set(STAN, "123"), STAN)
	refusesElement(t, m.Set(TerminalID, "T1"), TerminalID)
}

func TestB6_ControlAndForeignCharactersAreRefused(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for _, bad := range []string{"\x00", "\n", "\x1f", "\x7f", "\x80", "\xff", "é"} {
		name := (bad + strings.Repeat("A", 40))[:40]
		_, err := s.Decode(raw("0100", 43, name))
		refusesElement(t, err, CardAcceptorNameLocation, name)
		refusesElement(t, s.NewMessage(MTIAuthorizationRequest).Set(CardAcceptorNameLocation, name), CardAcceptorNameLocation, name)
	}
	// Where a scheme sends such bytes the profile says so, and they are bytes then.
	binary48 := built(t, SpecConfig{Elements: map[Element]ElementConfig{AdditionalData: {Format: "b"}}})
	m, err := binary48.Decode(raw("0100", 48, "003\x00\xff\n"))
	noError(t, err)
	if got := m.Bytes(AdditionalData); !bytes.Equal(got, []byte{0, 0xff, '\n'}) || m.Get(AdditionalData) != "00FF0A" {
		t.Errorf("%x, %s", got, m.Get(AdditionalData))
	}
}

func TestB7_Track2IsNotInterpreted(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for _, track2 := range []string{"4111111111111111=2912", "4111111111111111D0000", "4111111111111111==29122011", ";4111111111111111=29122011?", "4111111111111111=9912201"} {
		m, err := s.Decode(raw("0100", 35, fmt.Sprintf("%02d%s", len(track2), track2)))
		noError(t, err)
		if got := m.Get(Track2); got != track2 {
			t.Errorf("%q came back as %q", track2, got)
		}
	}
}

func TestB10_ValuesAreCopies(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	m := s.NewMessage(MTIAuthorizationRequest)
	block := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	noError(t, m.SetBytes(PINData, block))
	clear(block)
	m.Bytes(PINData)[0] = 99
	if got := m.Get(PINData); got != "0102030405060708" {
		t.Errorf("the caller's slice reaches the message: %s", got)
	}
	body := goldenBody(t, "0100_pin_mac")
	decoded, err := s.Decode(body)
	noError(t, err)
	before := decoded.Get(ICCData)
	clear(body)
	if decoded.Get(ICCData) != before || decoded.Get(STAN) != "000123" {
		t.Error("the frame's buffer reaches the message")
	}
}

func TestB11_ZeroLengthElementHoldsNothing(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	body := raw("0110", 44, "00", 48, "000", 55, "000")
	m, err := s.Decode(body)
	noError(t, err)
	for _, e := range []Element{44, AdditionalData, ICCData} {
		if value := m.Bytes(e); !m.Has(e) || value == nil || len(value) != 0 || m.Get(e) != "" {
			t.Errorf("%s: %q", e, value)
		}
	}
	if again, err := s.Encode(m); err != nil || !bytes.Equal(again, body) {
		t.Errorf("packed again: %q, %v", again, err)
	}
}

func TestB12_LengthsAreDigitsOnly(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for _, length := range []string{"+5", "-1", " 5", "5 ", "0x", "\x00\x05"} {
		_, err := s.Decode(raw("0100", 32, length+"12345"))
		refusesElement(t, err, AcquirerID)
	}
	for _, length := range []string{"+12", "-01", "1e1"} {
		_, err := s.Decode(raw("0100", 48, length+strings.Repeat("A", 12)))
		refusesElement(t, err, AdditionalData)
	}
}

func TestB14_MaskingIsDefaultDeny(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	m := s.NewMessage(MTIAuthorizationRequest)
	secret := "CANARY" + testPAN
	setAll(t, m, map[Element]string{
		PAN: testPAN, ExpirationDate: "2912", 34: secret, Track2: testTrack2, 36: secret, 45: secret, 44: secret, AdditionalData: secret, PINData: "\x12\x34\x56\x78\x9a\xbc\xde\xf0",
		ICCData: "\x57\x02\x41\x11\x5a\x02\x41\x11", 60: secret, 61: secret, 62: secret, 63: secret, 102: secret, 103: secret, 104: secret, 120: secret, 127: secret,
		53: "9999999999999999", MAC: "\xaa\xbb\xcc\xdd\xee\xff\x00\x11", MACSecondary: "\xaa\xbb\xcc\xdd\xee\xff\x00\x11",
		CardAcceptorID: "340000000000009", CardAcceptorNameLocation: "PAN " + testPAN + strings.Repeat(" ", 20), STAN: "000123", RRN: "633510000123",
	})
	forbidden := []string{testPAN, testPAN[:12], "CANARY", "340000000000009", "29122011", "2912", "12345", "5A02", "9999999", "AABBCC", "aabbcc"}
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%X", "%d", "%t"} {
		printed := fmt.Sprintf(verb, m) + fmt.Sprintf(verb, struct{ M *Message }{m})
		for _, text := range forbidden {
			if strings.Contains(printed, text) {
				t.Errorf("%s shows %q: %s", verb, text, printed)
			}
		}
	}
	logged, err := json.Marshal(map[string]any{"message": m})
	noError(t, err)
	for _, text := range forbidden {
		if strings.Contains(string(logged), text) {
			t.Errorf("JSON shows %q: %s", text, logged)
		}
	}
	image := m.Image()
	for _, text := range []string{"0100 ", "DE2=411111******1111", "DE11=000123", "DE37=633510000123", "DE35=present", "DE52=present", "DE55=present", "DE127=present"} {
		if !strings.Contains(image, text) {
			t.Errorf("the image lacks %q: %s", text, image)
		}
	}
}

func TestB15_ErrorsHoldNothingOfTheMessage(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	good := goldenBody(t, "0100_pin_mac")
	for i := range good {
		for _, c := range []byte{0x00, 0xFF, '-', 'Z'} {
			body := bytes.Clone(good)
			body[i] = c
			_, err := s.Decode(body)
			holdsNothing(t, err)
		}
		_, err := s.Decode(good[:i])
		holdsNothing(t, err)
	}
	// The codec's own error, as it is and wrapped, carries the frame; ours has neither its text nor its chain.
	stock := moov.NewMessage(s.codec)
	raw := append(bytes.Clone(good[:12]), "164111-11111111111"...)
	err := stock.Unpack(raw)
	unpack, ok := errors.AsType[*moovErrors.UnpackError](err)
	if !ok || !bytes.Equal(unpack.RawMessage, raw) {
		t.Fatalf("the codec's error has changed: %v", err)
	}
	holdsNothing(t, withoutValues(fmt.Errorf("wrapped: %w", err)))
	holdsNothing(t, withoutValues(&moovErrors.UnpackError{Err: errors.New(testPAN), FieldID: "0", RawMessage: raw}))
	holdsNothing(t, withoutValues(&moovErrors.PackError{Err: errors.New(testPAN)}))
	element, ok := errors.AsType[*ElementError](withoutValues(&moovErrors.UnpackError{Err: errors.New(testPAN), FieldID: "41", RawMessage: raw}))
	if !ok || element.Element != TerminalID {
		t.Errorf("the failing element is not named: %v", element)
	}
}

func holdsNothing(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if _, leaks := errors.AsType[*moovErrors.UnpackError](err); leaks {
		t.Fatal("the error's chain holds the frame")
	}
	if _, leaks := errors.AsType[*moovErrors.PackError](err); leaks {
		t.Fatal("the error's chain holds the codec's error")
	}
	for _, text := range []string{"4111", "29122011", "TERM", "MERCHANT", "1234567"} {
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), text) {
			t.Fatalf("the error shows %q: %v", text, err)
		}
	}
}

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

// TestP2_TLVLengthsBeyond16Bits: lengths that become negative, in the list of real-life inputs number 3 as well.
func TestP2_TLVLengthsBeyond16Bits(t *testing.T) {
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

// TestP1_CodecPanicsBecomeErrors lets the stock codec panic on an input that is known to make it.
func TestP1_CodecPanicsBecomeErrors(t *testing.T) {
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
		t.Fatal("the codec no longer panics on this input: find another one")
	}
	err := guard(func() error {
		_, err := composite.Unpack(input)
		return err
	})
	if !errors.Is(err, errCodecPanics) {
		t.Errorf("error %v", err)
	}
	if err := guard(func() error { panic(testPAN) }); !errors.Is(err, errCodecPanics) || strings.Contains(err.Error(), "4111") {
		t.Errorf("error %v", err)
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
