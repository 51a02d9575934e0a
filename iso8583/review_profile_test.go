package iso8583_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

func buildSpec(t testing.TB, c iso8583.SpecConfig) *iso8583.Spec {
	t.Helper()
	s, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type profile struct {
	Framing iso8583.FramingConfig `yaml:"framing"`
	Spec    iso8583.SpecConfig    `yaml:"spec"`
}

const profileYAML = `
framing:
  length: ascii4
  includes: length
  header: "6000120000"
  min_bytes: 12
  max_bytes: 2048
spec:
  bitmap: hex
  mtis: [0100, 0110, "0420", 0430, 0800, 0810]
  elements:
    39: {length: 3}
    41: {format: an, length: 16}
    48: {format: b, prefix: lll, length: 255}
    52: {format: an, length: 16}
    59: {format: ans, prefix: l, length: 9}
    63: {absent: true}
    120: {format: n, prefix: ll, length: 12}
  response_codes:
    000: approved
    "002": partially_approved
    116: declined
    9A0: not_signed_on
  reversal_response_codes:
    400: acknowledged
    914: nothing_to_undo
`

// TestProfile_FromYAML reads a dialect as operators write it and sends a message through it.
func TestProfile_FromYAML(t *testing.T) {
	t.Parallel()
	var p profile
	if faults := configs.Load("profile.yaml", []byte(profileYAML), &p); len(faults) > 0 {
		t.Fatal(faults)
	}
	framing, err := p.Framing.Build()
	if err != nil {
		t.Fatal(err)
	}
	s := buildSpec(t, p.Spec)
	values := map[int]string{11: "000001", 39: "000", 41: "TERMINAL00000001", 48: "\x00\xFF", 52: "0123456789ABCDEF", 59: "123456789", 120: "000000000012"}
	body := encode(t, s, iso8583.MTIAuthorizationResponse, values)
	want := "0110" + "8020000002811020" + "0000000000000100" + "000001" + "000" + "TERMINAL00000001" + "002\x00\xFF" + "0123456789ABCDEF" + "9123456789" + "12000000000012"
	if string(body) != want {
		t.Errorf("%q, want %q", body, want)
	}
	if got := frames(t, framing, body); string(got[:9]) != fmt.Sprintf("%04d", len(body)+9)+"\x60\x00\x12\x00\x00" {
		t.Errorf("frame begins %q", got[:9])
	}
	m, err := s.Decode(body)
	if err != nil || string(m.Bytes(iso8583.AdditionalData)) != "\x00\xFF" || m.Get(iso8583.AdditionalData) != "00FF" || m.Get(iso8583.PINData) != "0123456789ABCDEF" {
		t.Errorf("decoded %v, %v", m, err)
	}
	if s.AuthorizationAction(m.Get(iso8583.ResponseCode)) != iso8583.Approved || s.AuthorizationAction("002") != iso8583.PartiallyApproved ||
		s.AuthorizationAction("116") != iso8583.Declined || s.AuthorizationAction("9A0") != iso8583.NotSignedOn || s.AuthorizationAction("117") != iso8583.OutcomeUnknown ||
		s.ReversalAction("400") != iso8583.ReversalAcknowledged || s.ReversalAction("914") != iso8583.NothingToUndo || s.ReversalAction("909") != iso8583.Suspend {
		t.Error("the response codes are not the profile's")
	}
	if err := m.Set(63, "X"); err == nil {
		t.Error("an absent element is taken")
	}
	if _, err := s.Encode(s.NewMessage(iso8583.MTIFinancialRequest)); err == nil {
		t.Error("a message type that is not listed is sent")
	}
}

const packedProfileYAML = `
spec:
  dialect: 1993-bcd
  bitmap: hex
  response_mtis: {1460: 1480, "0370": "0360"}
  elements:
    2: {filler: right-f}
    35: {length_encoding: binary}
    39: {encoding: ebcdic}
    60: {format: n, prefix: ll, length: 12, length_unit: bytes}
`

// TestProfile_PackedDialectFromYAML reads a packed dialect with its exceptions as operators write it.
func TestProfile_PackedDialectFromYAML(t *testing.T) {
	t.Parallel()
	var p profile
	if faults := configs.Load("profile.yaml", []byte(packedProfileYAML), &p); len(faults) > 0 {
		t.Fatal(faults)
	}
	s := buildSpec(t, p.Spec)
	body := encode(t, s, 0x1480, map[int]string{2: "4111111111111111003", 35: "4111111111111111D29122011234567890123", 39: "400", 60: "005100000005"})
	want := string(unhex(t, "1480")) + "4000000022000010" + string(unhex(t, "19"+"4111111111111111003F"+"25"+"4111111111111111D29122011234567890123F"+"F4F0F0"+"06"+"005100000005"))
	if string(body) != want {
		t.Errorf("%x, want %x", body, want)
	}
	if s.Edition() != iso8583.Edition1993 || s.ResponseTo(0x1461) != 0x1480 || s.Exchange(0x0360) != 0x0370 {
		t.Error("edition or pairs are not the profile's")
	}
}

// TestProfile_YAMLFaultsNameTheirKey: what the reader itself can see wrong is reported with its key and line.
func TestProfile_YAMLFaultsNameTheirKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ yaml, path string }{
		{"spec: {elements: {65: {length: 3}}}", "spec.elements"},
		{"spec: {elements: {1: {length: 3}}}", "spec.elements"},
		{"spec: {elements: {129: {length: 3}}}", "spec.elements"},
		{"spec: {elements: {x: {length: 3}}}", "spec.elements"},
		{"spec: {elements: {41: {lenght: 3}}}", "spec.elements.41.lenght"},
		{"spec: {elements: {41: {length: eight}}}", "spec.elements.41.length"},
		{"spec: {elements: {41: {absent: maybe}}}", "spec.elements.41.absent"},
		{"framing: {max_bytes: many}", "framing.max_bytes"},
		{"framing: {trailer: 03}", "framing.trailer"},
	} {
		var p profile
		faults := configs.Load("profile.yaml", []byte(test.yaml), &p)
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Path, test.path) || faults[0].Line != 1 {
			t.Errorf("%s: %v, want one fault at %s", test.yaml, faults, test.path)
		}
	}
}

// TestProfile_ZeroConfigIsTheStandard: a profile without a word has the same dialect as DefaultSpecConfig and Spec1987.
func TestProfile_ZeroConfigIsTheStandard(t *testing.T) {
	t.Parallel()
	body := threeMessages(t, iso8583.BitmapBinary)[0]
	for name, s := range map[string]*iso8583.Spec{
		"zero": buildSpec(t, iso8583.SpecConfig{}), "default": buildSpec(t, iso8583.DefaultSpecConfig()), "no form": iso8583.Spec1987(""),
	} {
		if m, err := s.Decode(body); err != nil || m.Get(iso8583.STAN) != "000123" {
			t.Errorf("%s: %v", name, err)
		}
	}
	zero, err := iso8583.FramingConfig{}.Build()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := frames(t, zero, body), frames(t, buildFraming(t, iso8583.DefaultFramingConfig()), body); !slices.Equal(got, want) {
		t.Error("the zero framing is not the default one")
	}
}

// TestProfile_OverridesStayApart: a profile's changes reach neither the built-in table nor another profile.
func TestProfile_OverridesStayApart(t *testing.T) {
	t.Parallel()
	changed := buildSpec(t, iso8583.SpecConfig{MTIs: []string{"0100"}, Elements: map[iso8583.Element]iso8583.ElementConfig{41: {Length: 16}, 70: {Absent: true}}})
	standard := iso8583.Spec1987(iso8583.BitmapBinary)
	m := standard.NewMessage(iso8583.MTINetworkManagementRequest)
	for e, v := range map[iso8583.Element]string{iso8583.NetworkManagementCode: "301", iso8583.TerminalID: "TERM0001"} {
		if err := m.Set(e, v); err != nil {
			t.Error(err)
		}
	}
	body, err := standard.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := changed.Decode(body); err == nil {
		t.Error("the changed dialect takes what it does not have")
	}
	if _, err := changed.Encode(m); err == nil {
		t.Error("a message of one dialect is written in another that refuses it")
	}
}

// TestProfile_AnyDialectAgreesWithItself: the walk and the codec stay together under overrides of every kind.
func TestProfile_AnyDialectAgreesWithItself(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"n", "an", "ans", "z", "x+n", "b", "tlv"} {
		for prefix, most := range map[string]int{"fixed": 999, "l": 9, "ll": 99, "lll": 999} {
			for _, length := range []int{3, 8, most} {
				for _, form := range bothForms {
					s := buildSpec(t, iso8583.SpecConfig{Bitmap: form, Elements: map[iso8583.Element]iso8583.ElementConfig{
						60: {Format: format, Prefix: prefix, Length: length}, 111: {Format: format, Prefix: prefix, Length: length}}})
					value := map[string]string{"x+n": "C" + strings.Repeat("0", length-1), "b": strings.Repeat("\xFE", length), "tlv": strings.Repeat("\x9A\x01\x00", length/3) + strings.Repeat("\x00", length%3)}[format]
					if value == "" {
						value = strings.Repeat("5", length)
					}
					want := map[int]string{11: "000009", 60: value, 61: "after", 111: value, 112: "end"}
					body := encode(t, s, iso8583.MTIAuthorizationRequest, want)
					m, err := s.Decode(body)
					var p iso8583.Peeked
					if err != nil || s.Peek(body, &p) != nil {
						t.Fatalf("%s %s %d: %v", format, prefix, length, err)
					}
					for n, v := range want {
						if e := iso8583.Element(n); string(m.Bytes(e)) != v || string(p.Value(e)) != v {
							t.Fatalf("%s %s %d: %s comes back as something else", format, prefix, length, e)
						}
					}
				}
			}
		}
	}
}
