package iso8583

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	moov "github.com/moov-io/iso8583"
	"github.com/moov-io/iso8583/encoding"
	moovErrors "github.com/moov-io/iso8583/errors"
	"github.com/moov-io/iso8583/field"
	"github.com/moov-io/iso8583/prefix"
)

// The traps that codecs fall into, github.com/moov-io/iso8583 among them. Each test is named after its line in the list of traps that this
// package was written against.

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
	stock := &moov.MessageSpec{Fields: map[int]field.Field{
		0: field.NewString(&field.Spec{Length: 4, Enc: encoding.ASCII, Pref: prefix.ASCII.Fixed}),
		1: field.NewBitmap(&field.Spec{Length: 8, Enc: encoding.Binary, Pref: prefix.Binary.Fixed}),
		2: field.NewString(&field.Spec{Length: 1, Enc: encoding.ASCII, Pref: prefix.ASCII.LL}),
	}}
	// The stock library's error carries the frame, which is why no error of it, nor of anything below, is in the chain of ours.
	raw := append(bytes.Clone(good[:12]), "164111-11111111111"...)
	_, err := s.Decode(raw)
	holdsNothing(t, err)
	unpack, ok := errors.AsType[*moovErrors.UnpackError](moov.NewMessage(stock).Unpack(raw))
	if !ok || !bytes.Equal(unpack.RawMessage, raw) {
		t.Fatal("the stock library no longer shows the frame")
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
	printed := pointers.ReplaceAllString(fmt.Sprintf("%v %+v %#v", err, err, err), "")
	for _, text := range []string{"4111", "29122011", "TERM", "MERCHANT", "1234567"} {
		if strings.Contains(printed, text) {
			t.Fatalf("the error shows %q: %s", text, printed)
		}
	}
}

// pointers are addresses in what %#v prints; their digits are nobody's.
var pointers = regexp.MustCompile(`0x[0-9a-f]+`)
