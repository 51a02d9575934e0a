package iso8583

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestTable1987_IsWhole(t *testing.T) {
	t.Parallel()
	last := Element(1)
	for _, d := range table1987 {
		if d.element != last+1 && (d.element != 66 || last != 64) {
			t.Errorf("%s follows %s", d.element, last)
		}
		last = d.element
		if d.name == "" || d.format == noFormat || d.length == 0 || int(d.length) > mostByPrefix[d.prefix] {
			t.Errorf("%s: %+v", d.element, d)
		}
	}
	if last != lastElement {
		t.Errorf("the table ends at %s", last)
	}
	// What may hold card data in any dialect is never shown.
	s87 := Spec1987(BitmapBinary)
	for _, e := range []Element{34, 35, 36, 45, 44, 46, 47, 48, 52, 53, 54, 55, 60, 61, 62, 63, 64, 102, 103, 104, 120, 125, 127, 128, ExpirationDate} {
		if s87.exposures[e] != hidden {
			t.Errorf("%s is shown", e)
		}
	}
	if s87.exposures[PAN] != masked || s87.exposures[0] != hidden || s87.exposures[1] != hidden || s87.exposures[65] != hidden {
		t.Error("DE 2, 0, 1 or 65 is shown")
	}
}

const dialectYAML = `
bitmap: hex
mtis: ["0100", "0110", "0800", "0810"]
elements:
  44: {length: 99}
  48: {format: b}
  52: {absent: true}
  60: {format: n, prefix: ll, length: 12}
  61: {format: an, prefix: fixed, length: 5}
  62: {prefix: l, length: 9}
response_codes: {"91": outcome_unknown}
reversal_response_codes: {"12": nothing_to_undo}
`

func TestSpecConfig_FromYAML(t *testing.T) {
	t.Parallel()
	cfg := DefaultSpecConfig()
	noError(t, yaml.UnmarshalWithOptions([]byte(dialectYAML), &cfg, yaml.Strict()))
	s := built(t, cfg)
	values := map[Element]string{44: strings.Repeat("x", 99), 48: "\x00\xff", 60: "123456789012", 61: "A1B2C", 62: "123456789"}
	body := encoded(t, s, MTIAuthorizationRequest, values)
	if want := "0100" + "000000000011001C" + "99" + values[44] + "002\x00\xff" + "12123456789012" + "A1B2C" + "9123456789"; string(body) != want {
		t.Errorf("%q, want %q", body, want)
	}
	m, err := s.Decode(body)
	noError(t, err)
	for e, want := range values {
		if got := string(m.Bytes(e)); got != want {
			t.Errorf("%s: %q, want %q", e, got, want)
		}
	}
	refusesElement(t, m.SetBytes(PINData, make([]byte, 8)), PINData)
	refusesElement(t, m.Set(60, "1234567890123"), 60)
	refusesElement(t, m.Set(61, "A1B2"), 61)
	if s.AuthorizationAction("91") != OutcomeUnknown || s.ReversalAction("12") != NothingToUndo || !s.IsBinary(48) || s.IsBinary(PINData) || s.IsBinary(65) {
		t.Error("codes or formats are not the file's")
	}
	if _, err := s.Encode(s.NewMessage(MTIReversalAdvice)); err == nil {
		t.Error("a type that the file does not list is encoded")
	}
}

func TestSpecConfig_FaultsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := SpecConfig{
		Bitmap: "bcd",
		MTIs:   []string{"0100", "01", "0100"},
		Elements: map[Element]ElementConfig{
			1: {}, 65: {}, 129: {}, 44: {Length: 100}, 48: {Format: "x"}, 60: {Prefix: "llll"}, 61: {Absent: true, Length: 3}, 62: {Length: -1}, 63: {Prefix: "l"},
		},
		ResponseCodes:         map[string]string{"91": "reverse", "9": "declined", "!!": "declined"},
		ReversalResponseCodes: map[string]string{"12": "ignore"},
	}.Build()
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{"bitmap: ", "mtis.1: ", "mtis.2: ", "elements.1: ", "elements.65: ", "elements.129: ", "elements.44.length: ", "elements.48.format: ",
		"elements.60.prefix: ", "elements.61: ", "elements.62.length: ", "elements.63.length: ", "response_codes.91: ", "response_codes.9: ", "response_codes.!!: ",
		"reversal_response_codes.12: "} {
		if !strings.Contains("\n"+err.Error(), "\n"+key) {
			t.Errorf("no fault at %q in\n%v", key, err)
		}
	}
}

// TestEncode_ChecksAMessageOfAnotherDialect: values that were right where the message was made, and are not here.
func TestEncode_ChecksAMessageOfAnotherDialect(t *testing.T) {
	t.Parallel()
	here := Spec1987(BitmapBinary)
	values := map[Element]string{44: strings.Repeat("x", 99), AmountTransaction: "A00000001050", STAN: "000000000123", AcquirerID: "12-34"}
	for e, there := range map[Element]ElementConfig{44: {Length: 99}, AmountTransaction: {Format: "an"}, STAN: {Length: 12}, AcquirerID: {Format: "ans", Prefix: "lll", Length: 30}} {
		other := built(t, SpecConfig{Elements: map[Element]ElementConfig{e: there}})
		m := other.NewMessage(MTIAuthorizationRequest)
		noError(t, m.Set(e, values[e]))
		_, err := other.Encode(m)
		noError(t, err)
		_, err = here.Encode(m)
		refusesElement(t, err, e)
	}
}

func TestElement_Text(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "0", "1", "65", "129", "300", "-2", "+2", "2x", "PAN"} {
		var e Element
		if err := e.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is an element", text)
		}
	}
	out, err := json.Marshal(map[Element]MTI{OriginalData: MTIReversalAdvice})
	if err != nil || string(out) != `{"90":"0420"}` {
		t.Errorf("%s, %v", out, err)
	}
	var back map[Element]MTI
	if err := json.Unmarshal(out, &back); err != nil || back[OriginalData] != MTIReversalAdvice {
		t.Errorf("%v, %v", back, err)
	}
	if STAN.String() != "DE 11" || STAN.Name() != "Systems trace audit number" {
		t.Errorf("%s, %s", STAN, STAN.Name())
	}
}

func TestMessage_ElementsInOrder(t *testing.T) {
	t.Parallel()
	m := Spec1987(BitmapBinary).NewMessage(MTIReversalAdvice)
	for _, e := range []Element{RRN, STAN, TransmissionDateTime, STAN} {
		noError(t, m.Set(e, strings.Repeat("1", int(m.spec.rules[e].length))))
	}
	noError(t, m.Set(STAN, "000002"))
	m.SetMTI(m.MTI().Repeat())
	if got := m.Image(); got != "0421 DE7=1111111111 DE11=000002 DE37=111111111111" {
		t.Error(got)
	}
	m.Unset(STAN)
	m.Unset(STAN)
	if m.Has(STAN) || len(m.Elements()) != 2 {
		t.Errorf("%s", m)
	}
	if got := (*Message)(nil).String(); got != "<nil>" {
		t.Error(got)
	}
}
