package iso8583_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/iso8583"
)

// open are the elements whose value people may see. It is written down here on its own: opening another one must be done twice.
var open = []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 37, 38, 39, 41, 42, 43,
	49, 50, 51, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 95, 97, 99, 100}

// printed is every way in which a value gets into a log or an answer by accident.
func printed(t testing.TB, v any) []string {
	t.Helper()
	var all []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%c", "%U", "%o", "%b", "%t", "%e", "%20v", "%-80s"} {
		all = append(all, fmt.Sprintf(verb, v), fmt.Sprintf(verb, []any{v}), fmt.Sprintf(verb, map[string]any{"m": v}), fmt.Sprintf(verb, struct{ V any }{v}))
	}
	for _, in := range []any{v, []any{v}, map[string]any{"m": v}, struct{ V any }{v}} {
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	core, logs := observer.New(zapcore.DebugLevel)
	zap.New(core).Info("entry", zap.Any("any", v), zap.Reflect("reflect", v))
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{})
	for _, entry := range logs.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, line.String())
	}
	return all
}

// forms are the shapes in which a secret shows through: itself, as hexadecimal digits, as a list of numbers.
func forms(secret string) []string {
	list := strings.Trim(fmt.Sprint([]byte(secret)), "[]")
	return []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("% x", secret), list, strings.ReplaceAll(list, " ", ",")}
}

// TestMask_HiddenElementsShowNothing gives every element of the table a value of its own and looks for it in all that can be printed.
func TestMask_HiddenElementsShowNothing(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	for _, e := range peerElements {
		if e.number == 2 || slices.Contains(open, e.number) || e.wireLength() < 4 {
			continue // the short ones are told apart below by the word that stands for their value
		}
		value := strings.Repeat("9753186420", 100)[:e.wireLength()]
		switch {
		case e.class == "tlv":
			value = "\x57\x13" + "9753186420975318642"
		case e.dots > 0:
			value = value[:min(len(value), 17)]
		}
		m, err := s.Decode(encode(t, s, iso8583.MTIAuthorizationRequest, map[int]string{e.number: value, 11: "000001"}))
		if err != nil {
			t.Fatal(err)
		}
		secrets := forms(value)
		if e.class == "tlv" {
			secrets = forms(value[2:])
		}
		for _, text := range append(printed(t, m), m.Image(), m.String()) {
			for _, secret := range secrets {
				if strings.Contains(text, secret) {
					t.Fatalf("DE %d shows: %s", e.number, text)
				}
			}
		}
	}
}

// TestMask_ImageOpensOnlyTheList: an element that is not in the list is only said to be there.
func TestMask_ImageOpensOnlyTheList(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	rapid.Check(t, func(t *rapid.T) {
		values := drawElements(t)
		m, err := s.Decode(encode(t, s, iso8583.MTIFinancialRequest, values))
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		image := m.Image()
		if !strings.HasPrefix(image, "0200") || strings.ContainsAny(image, "\n\r\x00") {
			t.Fatalf("image %q", image)
		}
		for n := range values {
			if n != 2 && !slices.Contains(open, n) && !strings.Contains(image+" ", fmt.Sprintf(" DE%d=present ", n)) {
				t.Fatalf("DE %d is not hidden: %s", n, image)
			}
		}
	})
}

// TestMask_OverridesOpenNothing: a profile that changes an element's format or length does not make it visible.
func TestMask_OverridesOpenNothing(t *testing.T) {
	t.Parallel()
	const secret = "4111111111111111"
	s := buildSpec(t, iso8583.SpecConfig{Elements: map[iso8583.Element]iso8583.ElementConfig{
		iso8583.PAN:     {Format: "ans", Length: 28},
		iso8583.PINData: {Format: "ans", Length: 16},
		iso8583.ICCData: {Format: "ans", Length: 999, Prefix: "lll"},
		iso8583.Track2:  {Format: "ans", Length: 99},
	}})
	m := s.NewMessage(iso8583.MTIAuthorizationRequest)
	for e, value := range map[iso8583.Element]string{iso8583.PAN: "=" + secret, iso8583.PINData: secret, iso8583.ICCData: secret, iso8583.Track2: secret} {
		if err := m.Set(e, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range printed(t, m) {
		if strings.Contains(text, secret) {
			t.Fatalf("shows the card number: %s", text)
		}
	}
}

// TestMask_CardNumbersInFreeText: a merchant's name that holds a card number does not carry it into the journal.
func TestMask_CardNumbersInFreeText(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	for _, pan := range []string{"4111111111111111", "4000000000000002", "5555555555554444", "378282246310005", "6304000000000000000"} {
		m := s.NewMessage(iso8583.MTIAuthorizationRequest)
		if err := m.Set(iso8583.CardAcceptorNameLocation, fmt.Sprintf("%-40s", "CARD "+pan+" SHOP")); err != nil {
			t.Fatal(err)
		}
		for _, text := range printed(t, m) {
			if strings.Contains(text, pan) {
				t.Errorf("shows %s: %s", iso8583.MaskPAN(pan), text)
			}
		}
		if !strings.Contains(m.Image(), "SHOP") {
			t.Errorf("the rest of the text is gone: %s", m.Image())
		}
	}
}

// TestMask_ErrorsShowNothing breaks every element's format and length with a card number in it, on the way in and on the way out, and looks
// through the whole chain of the error.
func TestMask_ErrorsShowNothing(t *testing.T) {
	t.Parallel()
	const secret = "4111111111111111"
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	look := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		for err := err; err != nil; err = errors.Unwrap(err) {
			for _, text := range []string{err.Error(), fmt.Sprintf("%v %+v %#v %q", err, err, err, err)} {
				if strings.Contains(text, secret[4:12]) {
					t.Errorf("%s: %s", what, text)
				}
			}
		}
	}
	for _, e := range peerElements {
		m := s.NewMessage(iso8583.MTIAuthorizationRequest)
		long := strings.Repeat(secret, 80)
		if s.IsBinary(iso8583.Element(e.number)) {
			look("set bytes", m.SetBytes(iso8583.Element(e.number), []byte(long)))
			look("set text", m.Set(iso8583.Element(e.number), secret))
			continue
		}
		look("set too long", m.Set(iso8583.Element(e.number), long))
		look("set bytes of text", m.SetBytes(iso8583.Element(e.number), []byte(secret)))
		bad := ("\x00" + strings.Repeat(secret, 80))[:e.wireLength()]
		look("set control character", m.Set(iso8583.Element(e.number), bad))
		body := []byte("0100")
		bitmap := [16]byte{0x80}
		bitmap[(e.number-1)/8] |= 0x80 >> ((e.number - 1) % 8)
		body = append(body, bitmap[:]...)
		if e.dots > 0 {
			body = fmt.Appendf(body, "%0*d", e.dots, len(bad))
		}
		body = append(body, bad...)
		_, err := s.Decode(body)
		look("decode control character", err)
		_, err = s.Decode(append(body, secret...))
		look("decode with bytes left over", err)
		_, err = s.Decode(body[:len(body)-1])
		look("decode cut", err)
	}
}

// TestMask_CardNumber prints, marshals and logs one in every way.
func TestMask_CardNumber(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"4111111111111111":     "411111******1111",
		"378282246310005":      "378282*****0005",
		"6304000000000000000":  "630400*********0000",
		"4000000000000":        "*********0000",
		"12345678":             "****5678",
		"1234567":              "*******",
		"":                     "",
		"4111 1111 1111 1111":  "*******************",
		"41111111111111111111": "*******************",
	} {
		n := iso8583.CardNumber(number)
		if n.String() != want || n.Reveal() != number {
			t.Errorf("%q is masked as %s, want %s", number, n, want)
		}
		if len(number) < 8 {
			continue
		}
		texts := printed(t, n)
		for _, text := range append(texts, fmt.Sprint(&n), fmt.Sprintf("%+v", struct{ PAN *iso8583.CardNumber }{&n})) {
			for _, secret := range forms(number) {
				if strings.Contains(text, secret) {
					t.Fatalf("shows %s: %s", want, text)
				}
			}
		}
	}
	var in struct{ PAN iso8583.CardNumber }
	if err := json.Unmarshal([]byte(`{"PAN":"4111111111111111"}`), &in); err != nil || in.PAN.Reveal() != "4111111111111111" {
		t.Errorf("does not read from JSON: %v", err)
	}
	if out, err := json.Marshal(in); err != nil || string(out) != `{"PAN":"411111******1111"}` {
		t.Errorf("JSON %s, %v", out, err)
	}
}

// TestMask_OneCheckDigitFits: of the ten last digits exactly one makes a number valid.
func TestMask_OneCheckDigitFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		head, valid := drawText(t, digitSet, 11, 18, "head"), 0
		for last := range 10 {
			if iso8583.LuhnValid(head + string(rune('0'+last))) {
				valid++
			}
		}
		if valid != 1 {
			t.Fatalf("%d check digits fit", valid)
		}
	})
}
