package gateway_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

// parse gives the error of a body, nil when it is taken.
func parse(t *testing.T, body []byte) *gateway.Error {
	t.Helper()
	_, err := gateway.ParseAuthorizationRequest(body)
	if err == nil {
		return nil
	}
	var problem *gateway.Error
	if !errors.As(err, &problem) {
		t.Fatalf("error %T is not one for clients", err)
	}
	return problem
}

// faultFields are the fields a body is refused for, sorted.
func faultFields(t *testing.T, body []byte) []string {
	t.Helper()
	problem := parse(t, body)
	if problem == nil {
		return nil
	}
	if problem.Code != gateway.CodeValidationFailed || problem.Status() != 422 || problem.Sent() != gateway.SentNo {
		t.Fatalf("refused with %s, status %d, sent %s", problem.Code, problem.Status(), problem.Sent())
	}
	var fields []string
	for _, f := range problem.Faults {
		if f.Rule == "" {
			t.Errorf("fault of %s names no rule", f.Field)
		}
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	return fields
}

// with is a sound body with members replaced by path; a nil value removes the member.
func with(t *testing.T, changes map[string]any) []byte {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal(gatewaytest.Purchase("10.50", nil), &body); err != nil {
		t.Fatal(err)
	}
	for path, value := range changes {
		object, name := body, path
		if outer, inner, nested := strings.Cut(path, "."); nested && outer != "elements" {
			object, name = body[outer].(map[string]any), inner
		} else if nested {
			if body[outer] == nil {
				body[outer] = map[string]any{}
			}
			object, name = body[outer].(map[string]any), inner
		}
		if object[name] = value; value == nil {
			delete(object, name)
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRequestFieldRules(t *testing.T) {
	t.Parallel()
	const valid = ""
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, test := range []struct {
		path  string
		value any
		fault string // the field named, "" when the body is taken
	}{
		{"client_reference", nil, "client_reference"}, {"client_reference", "", "client_reference"}, {"client_reference", long(64), valid},
		{"client_reference", long(65), "client_reference"}, {"client_reference", "a b", "client_reference"}, {"client_reference", "ä", "client_reference"},
		{"client_reference", "a\u0000b", "client_reference"}, {"client_reference", gatewaytest.PAN, "client_reference"},
		{"client_reference", "9" + gatewaytest.PAN + "20261201", "client_reference"},
		{"client_reference", "4111111111111112", valid}, {"client_reference", "20261201093000", valid},
		{"order_reference", long(64), valid}, {"order_reference", long(65), "order_reference"}, {"order_reference", "x" + gatewaytest.PAN, "order_reference"},
		{"type", nil, "type"}, {"type", "", "type"}, {"type", "Purchase", "type"}, {"type", "refund", valid}, {"type", "loan", "type"}, {"type", "preauthorization", valid}, {"type", "cash", valid},
		{"amount", nil, "amount"}, {"amount", "", "amount"}, {"amount", "0", "amount"}, {"amount", "0.00", "amount"}, {"amount", "-1.00", "amount"}, {"amount", "+1.00", "amount"},
		{"amount", "10.505", "amount"}, {"amount", "1e3", "amount"}, {"amount", "10,50", "amount"}, {"amount", " 10.50", "amount"}, {"amount", "10.", "amount"}, {"amount", ".50", "amount"},
		{"amount", "99999999999999", "amount"}, {"amount", "9999999999.99", valid}, {"amount", "10000000000.00", "amount"}, {"amount", "0x10", "amount"}, {"amount", "٣", "amount"}, {"amount", "7", valid},
		{"currency", nil, "currency"}, {"currency", "eur", "currency"}, {"currency", "978", "currency"}, {"currency", "ZZZ", "currency"}, {"currency", "JPY", "amount"}, {"currency", "KWD", valid},
		{"card.pan", nil, "card.pan"}, {"card.pan", "41111111111", "card.pan"}, {"card.pan", "411111111111", valid}, {"card.pan", strings.Repeat("4", 19), valid}, {"card.pan", strings.Repeat("4", 20), "card.pan"},
		{"card.pan", "4111 1111 1111 1111", "card.pan"}, {"card.pan", "411111******1111", "card.pan"},
		{"card.expiry", "2912", valid}, {"card.expiry", "2913", "card.expiry"}, {"card.expiry", "2900", "card.expiry"}, {"card.expiry", "12/29", "card.expiry"}, {"card.expiry", nil, valid},
		{"card.sequence_number", "001", valid}, {"card.sequence_number", "1", "card.sequence_number"},
		{"card.track2", gatewaytest.PAN + "=29121010000000000000", valid}, {"card.track2", gatewaytest.PAN + "D2912101", valid}, {"card.track2", gatewaytest.PAN, "card.track2"},
		{"card.track2", gatewaytest.PAN + "=291210100000000000000", "card.track2"}, {"card.track2", ";" + gatewaytest.PAN + "=2912?", "card.track2"},
		{"card.pin_block", "0123456789ABCDEF", valid}, {"card.pin_block", "0123456789abcdef", valid}, {"card.pin_block", "0123456789ABCDE", "card.pin_block"}, {"card.pin_block", "0123456789ABCDEG", "card.pin_block"},
		{"card.icc", "9F3303E0F8C8", valid}, {"card.icc", "nzMD4PjI", valid}, {"card.icc", "9F3303E0F8", "card.icc"}, {"card.icc", "zz", "card.icc"}, {"card.icc", strings.Repeat("9F3303E0F8C8", 43), "card.icc"},
		{"merchant.terminal_id", nil, "merchant.terminal_id"}, {"merchant.terminal_id", long(8), valid}, {"merchant.terminal_id", long(9), "merchant.terminal_id"}, {"merchant.terminal_id", "a\tb", "merchant.terminal_id"},
		{"merchant.acceptor_id", nil, "merchant.acceptor_id"}, {"merchant.acceptor_id", long(15), valid}, {"merchant.acceptor_id", long(16), "merchant.acceptor_id"},
		{"merchant.name_location", long(40), valid}, {"merchant.name_location", long(41), "merchant.name_location"}, {"merchant.name_location", "CAFÉ", "merchant.name_location"},
		{"merchant.name_location", "SHOP " + gatewaytest.PAN, "merchant.name_location"},
		{"merchant.mcc", "5411", valid}, {"merchant.mcc", "541", "merchant.mcc"}, {"merchant.mcc", nil, valid},
		{"pos.entry_mode", nil, "pos.entry_mode"}, {"pos.entry_mode", "05", "pos.entry_mode"}, {"pos.condition_code", nil, valid}, {"pos.condition_code", "000", "pos.condition_code"},
		{"acquirer_id", "12345678901", valid}, {"acquirer_id", "123456789012", "acquirer_id"}, {"acquirer_id", "12a", "acquirer_id"},
		{"elements.48", "abc", valid}, {"elements.48", "", "elements.48"}, {"elements.1", "x", "elements"}, {"elements.129", "x", "elements"}, {"elements.048", "x", "elements"}, {"elements.pan", "x", "elements"},
		{"elements.65", "x", "elements.65"}, {"elements.36", "x", "elements.36"}, {"elements.45", "x", "elements.45"}, {"elements.2", "x", "elements.2"}, {"elements.35", "x", "elements.35"},
		{"elements.52", "x", "elements.52"}, {"elements.55", "x", "elements.55"}, {"elements.90", "x", "elements.90"}, {"elements.11", "x", "elements.11"},
		{"surprise", "x", "surprise"}, {"card.cvv", "x", "card.cvv"}, {"Amount", "1.00", "Amount"}, {gatewaytest.PAN, "x", "(unprintable)"}, {"card." + gatewaytest.PAN, "x", "card.(unprintable)"},
	} {
		want := []string{test.fault}
		if test.fault == valid {
			want = nil
		}
		got := faultFields(t, with(t, map[string]any{test.path: test.value}))
		if test.path == "card.pan" && test.fault == valid {
			got = slices.DeleteFunc(got, func(f string) bool { return f == "client_reference" })
		}
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%s = %v: faults %q, want %q", test.path, test.value, got, want)
		}
	}
}

func TestRequestRefusesItsOwnCardNumberInStoredTexts(t *testing.T) {
	t.Parallel()
	const short, amex = "411111111117", "371449635398431" // too short to look like a card number; as long as an acceptor id
	got := faultFields(t, with(t, map[string]any{"card.pan": short, "client_reference": "r" + short, "order_reference": short, "merchant.name_location": "AT " + short}))
	if want := []string{"client_reference", "merchant.name_location", "order_reference"}; !slices.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}
	if got := faultFields(t, with(t, map[string]any{"card.pan": amex, "merchant.acceptor_id": amex})); !slices.Equal(got, []string{"merchant.acceptor_id"}) {
		t.Errorf("faults %q, want merchant.acceptor_id", got)
	}
	if got := faultFields(t, with(t, map[string]any{"merchant.acceptor_id": amex})); got != nil {
		t.Errorf("an acceptor id with a right check digit is refused: %q", got)
	}
}

func TestRequestWrongTypesAndNulls(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"client_reference", "order_reference", "type", "amount", "currency", "card", "card.pan", "card.track2", "card.pin_block", "card.icc",
		"merchant", "merchant.terminal_id", "pos", "pos.entry_mode", "acquirer_id", "partial_approval", "link", "elements", "elements.48"} {
		field := path
		if strings.HasPrefix(path, "elements") {
			field = "elements"
		}
		for _, value := range []json.RawMessage{[]byte(`1050`), []byte(`null`), []byte(`["x"]`), []byte(`4111111111111111`)} {
			got := faultFields(t, with(t, map[string]any{path: value}))
			if !slices.Contains(got, field) {
				t.Errorf("%s = %s: faults %q", path, value, got)
			}
		}
		if path != "partial_approval" {
			if got := faultFields(t, with(t, map[string]any{path: json.RawMessage(`true`)})); !slices.Contains(got, field) {
				t.Errorf("%s = true: faults %q", path, got)
			}
		}
	}
}

func TestRequestNamesAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	got := faultFields(t, []byte(`{"surprise":1,"card":{"cvv":"123"},"currency":"XXQ"}`))
	want := []string{"amount", "card.cvv", "card.pan", "client_reference", "currency", "merchant.acceptor_id", "merchant.terminal_id", "pos.entry_mode", "surprise", "type"}
	if !slices.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}
	many := map[string]any{}
	for i := range 200 {
		many[fmt.Sprintf("%c%c", 'a'+i/26, 'a'+i%26)] = 1
	}
	text, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(faultFields(t, text)); n != 64 {
		t.Errorf("%d faults, want them bounded at 64", n)
	}
}

func TestRequestMalformedBodies(t *testing.T) {
	t.Parallel()
	sound := string(gatewaytest.Purchase("10.50", nil))
	for name, body := range map[string]string{
		"empty": "", "blank": " \n", "array": "[]", "string": `"x"`, "number": "1", "null": "null", "open": `{"amount":`, "cut": sound[:len(sound)-1],
		"single quotes": "{'amount':'1'}", "comment": sound + "//", "trailing object": sound + sound, "trailing brace": sound + "}", "trailing word": sound + " x",
		"duplicate member":          `{"amount":"10.50",` + sound[1:],
		"duplicate by escape":       `{"\u0061mount":"10.50",` + sound[1:],
		"duplicate in card":         strings.Replace(sound, `"card":{`, `"card":{"pan":"`+gatewaytest.PAN+`",`, 1),
		"duplicate in unknown":      `{"x":{"y":[1,{"z":1,"z":2}]},` + sound[1:],
		"duplicate element":         `{"elements":{"48":"a","48":"b"},` + sound[1:],
		"duplicate after an array":  `{"x":[1,[2]],"x":1,` + sound[1:],
		"duplicate after an object": `{"x":{"y":1},"x":1,` + sound[1:],
	} {
		problem := parse(t, []byte(body))
		if problem == nil || problem.Code != gateway.CodeMalformedBody || problem.Status() != 400 {
			t.Errorf("%s: %v", name, problem)
		}
	}
	// The same names in different objects, and values that equal a name, are no duplicates.
	if got := faultFields(t, []byte(`{"x":{"amount":1},"y":["amount","amount",{"amount":1}],"z":"amount",`+sound[1:])); !slices.Equal(got, []string{"x", "y", "z"}) {
		t.Errorf("faults %q", got)
	}
	if problem := parse(t, []byte("{\"client_reference\":\"\xff\xfe\","+sound[1:])); problem == nil {
		t.Error("a body that is not UTF-8 is taken")
	}
}

func TestRequestHugeBodies(t *testing.T) {
	t.Parallel()
	over := append(gatewaytest.Purchase("10.50", nil), []byte(strings.Repeat(" ", gateway.MaxBodyBytes))...)
	if problem := parse(t, over); problem == nil || problem.Code != gateway.CodeBodyTooLarge || problem.Status() != 413 {
		t.Errorf("too large: %v", problem)
	}
	if problem := parse(t, append(gatewaytest.Purchase("10.50", nil), []byte(strings.Repeat(" ", gateway.MaxBodyBytes-2048))...)); problem != nil {
		t.Errorf("just fits: %v", problem)
	}
	for _, open := range []string{"[", `{"a":`} {
		deep := `{"x":` + strings.Repeat(open, gateway.MaxBodyBytes/len(open)-8)
		if parse(t, []byte(deep)) == nil {
			t.Error("a body without an end is taken")
		}
	}
	elements := map[string]any{}
	for n := 102; len(elements) <= gateway.MaxElements; n++ {
		elements[fmt.Sprint(n)] = "x"
	}
	if got := faultFields(t, with(t, map[string]any{"elements": elements})); !slices.Equal(got, []string{"elements"}) {
		t.Errorf("%d elements: faults %q", len(elements), got)
	}
}

// What a client reads about a refused body never holds a value of it.
func TestRequestFaultsQuoteNoValues(t *testing.T) {
	t.Parallel()
	const canary = "4000000000000002"
	base := map[string]any{}
	for _, path := range []string{"client_reference", "order_reference", "type", "amount", "currency", "acquirer_id", "link", "surprise", "card.expiry", "card.sequence_number",
		"card.track2", "card.pin_block", "card.icc", "merchant.terminal_id", "merchant.acceptor_id", "merchant.name_location", "merchant.mcc", "pos.entry_mode", "pos.condition_code"} {
		base[path] = "x " + canary
	}
	base["card.pan"], base[canary], base["elements."+canary], base["card."+canary] = canary+canary, canary, canary, canary
	bodies := [][]byte{with(t, base), []byte(`{"a":"` + canary + `"`), []byte(`{"` + canary + `":1,"` + canary + `":2}`), []byte(`{"card":` + canary + `}`), []byte(canary + "{}")}
	for path := range maps.Keys(base) {
		bodies = append(bodies, with(t, map[string]any{path: json.RawMessage(canary)}), with(t, map[string]any{path: []string{canary}}))
	}
	for _, body := range bodies {
		problem := parse(t, body)
		if problem == nil {
			t.Errorf("taken: %s", body)
			continue
		}
		if text := string(problem.Problem()) + problem.Error() + fmt.Sprintf("%+v %#v", problem.Faults, problem); strings.Contains(text, canary) {
			t.Errorf("quotes a value: %s", text)
		}
	}
}

// A request that is taken is printed without its card data, whatever the verb.
func TestRequestPrintsNoCardData(t *testing.T) {
	t.Parallel()
	const track2, pin, icc = gatewaytest.PAN + "=29121019876543210", "A1B2C3D4E5F60718", "5F2A0209789F3303E0F8C8"
	req, err := gateway.ParseAuthorizationRequest(with(t, map[string]any{"card.track2": track2, "card.pin_block": pin, "card.icc": icc, "elements.48": "92CVV987"}))
	if err != nil {
		t.Fatal(err)
	}
	marshalled, err := json.Marshal(req.Card)
	if err != nil {
		t.Fatal(err)
	}
	printed := []string{string(marshalled)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed = append(printed, fmt.Sprintf(verb, any(req)), fmt.Sprintf(verb, any(req.Card)), fmt.Sprintf(verb, any(req.Card.Track2)))
	}
	for _, text := range printed {
		for name, secret := range map[string]string{"PAN": gatewaytest.PAN, "track 2": "29121019876543210", "PIN block": pin, "ICC": icc, "element 48": "CVV987"} {
			if holds(text, secret) {
				t.Errorf("%s printed: %s", name, text)
			}
		}
	}
}

func FuzzParseAuthorizationRequest(f *testing.F) {
	f.Add(gatewaytest.Purchase("10.50", nil))
	f.Add(gatewaytest.Purchase("10.50", map[string]any{"elements": map[string]string{"48": "x"}, "partial_approval": true}))
	for _, seed := range []string{"", "{}", "[]", "null", `{"card":null}`, `{"a":{"b":1,"b":2}}`, `{"elements":{"48":null}}`, "{\"\\u0000\":1}", `{"amount":1e999}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := gateway.ParseAuthorizationRequest(body)
		if err == nil {
			if req.ClientReference == "" || req.Card.PAN.Reveal() == "" || req.Amount == "" {
				t.Fatal("a request without what it needs is taken")
			}
			if strings.Contains(req.ClientReference+req.OrderReference+req.Merchant.NameLocation+req.Merchant.AcceptorID, req.Card.PAN.Reveal()) {
				t.Fatal("the card number stands in a text that is stored")
			}
			return
		}
		var problem *gateway.Error
		if !errors.As(err, &problem) || problem.Status() < 400 || problem.Status() > 422 || problem.Sent() != gateway.SentNo {
			t.Fatalf("refused with %v", err)
		}
		if !json.Valid(problem.Problem()) {
			t.Fatal("the problem is not JSON")
		}
	})
}
