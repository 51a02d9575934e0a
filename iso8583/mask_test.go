package iso8583

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCardNumber_NeverPrintsItself(t *testing.T) {
	t.Parallel()
	n := CardNumber(testPAN)
	const want = "411111******1111"
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%X", "%d", "%08s", "%t"} {
		if got := fmt.Sprintf(verb, n); got != want {
			t.Errorf("%s gives %s", verb, got)
		}
		if got := fmt.Sprintf(verb, struct{ N CardNumber }{n}); strings.Contains(got, testPAN) || strings.Contains(got, fmt.Sprintf("%x", testPAN)) {
			t.Errorf("%s gives %s inside a struct", verb, got)
		}
	}
	out, err := json.Marshal([]any{n, &n, struct{ N CardNumber }{n}})
	if err != nil || string(out) != `["`+want+`","`+want+`",{"N":"`+want+`"}]` {
		t.Errorf("%s, %v", out, err)
	}
	if n.Reveal() != testPAN || n.String() != want || n.GoString() != want {
		t.Error("Reveal or String")
	}
	var back struct{ PAN CardNumber }
	if err := json.Unmarshal([]byte(`{"pan":"4000000000000002"}`), &back); err != nil || back.PAN.Reveal() != "4000000000000002" {
		t.Errorf("%v, %v", back, err)
	}
}

func TestMaskPAN(t *testing.T) {
	t.Parallel()
	for pan, want := range map[string]string{
		"": "", "1": "*", "1234567": "*******", "12345678": "****5678", "41111111111111": "**********1111", "411111111111111": "411111*****1111",
		"4111111111111111": "411111******1111", "4111111111111111111": "411111*********1111", "41111111111111111111": strings.Repeat("*", 19),
		"4111 1111 1111 11": strings.Repeat("*", 17), testTrack2: strings.Repeat("*", 19),
	} {
		if got := MaskPAN(pan); got != want {
			t.Errorf("%q: %q, want %q", pan, got, want)
		}
	}
}

func TestLuhnValid(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"4111111111111111", "4000000000000002", "5555555555554444", "0"} {
		if !LuhnValid(good) {
			t.Errorf("%s", good)
		}
	}
	for _, bad := range []string{"", "4111111111111112", "411111111111111", "4111-11111111111", "A"} {
		if LuhnValid(bad) {
			t.Errorf("%s", bad)
		}
	}
}

// TestImage_ShowsNoCardNumber: no card number gets into an image, whichever text element it is put into.
func TestImage_ShowsNoCardNumber(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	rapid.Check(t, func(t *rapid.T) {
		pan := rapid.SampledFrom([]string{"4111111111111111", "4000000000000002", "5555555555554444", "340000000000009"}).Draw(t, "pan")
		m := s.NewMessage(MTIAuthorizationRequest)
		for _, d := range table1987 {
			if d.format.isBinary() || int(d.length) < len(pan) || d.exposure == verbatim {
				continue
			}
			value := pan
			if d.prefix == fixed {
				value = pan + strings.Repeat(" ", int(d.length)-len(pan))
			}
			_ = m.Set(d.element, value) // amounts of more digits refuse the spaces
		}
		if image := m.Image(); strings.Contains(image, pan) || !m.Has(CardAcceptorNameLocation) || !m.Has(Track2) {
			t.Fatalf("%s", image)
		}
	})
}
