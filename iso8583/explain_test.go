package iso8583

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestExplain_AMessageThatIsRight(t *testing.T) {
	t.Parallel()
	const want = `0110  authorization response (acquirer), ISO 8583:1987
bitmap at 4: 2 3 4 7 11 37 38 39 41 49
  DE offset  bytes  name                                           value
   2     12     18  Primary account number                         411111******1111
   3     30      6  Processing code                                000000
   4     36     12  Amount, transaction                            000000001050
   7     48     10  Transmission date and time                     1201094501
  11     58      6  Systems trace audit number                     000123
  37     64     12  Retrieval reference number                     633510000123
  38     76      6  Authorization identification response          A1B2C3
  39     82      2  Response code                                  00
  41     84      8  Card acceptor terminal identification          "TERM 001"
  49     92      3  Currency code, transaction                     978
`
	s := Spec1987(BitmapBinary)
	body := encoded(t, s, MTIAuthorizationResponse, map[Element]string{PAN: testPAN, ProcessingCode: "000000", AmountTransaction: "000000001050",
		TransmissionDateTime: "1201094501", STAN: "000123", RRN: "633510000123", ApprovalCode: "A1B2C3", ResponseCode: "00", TerminalID: "TERM 001", CurrencyTransaction: "978"})
	if got := s.Explain(body).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestExplain_EveryByteIsAccountedFor: the elements of a right message lie one behind the other up to its end.
func TestExplain_EveryByteIsAccountedFor(t *testing.T) {
	t.Parallel()
	for _, g := range slices.Concat(loadGolden(t), loadDialects(t)) {
		x := g.spec(t).Explain(g.body)
		if len(x.Faults) > 0 || len(x.Elements) != len(g.values) || x.MTI != g.mti || x.Bytes != len(g.body) {
			t.Errorf("%s: %+v", g.name, x)
			continue
		}
		at := x.Elements[0].Offset
		for _, e := range x.Elements {
			if e.Offset != at || 2*e.Length < len(g.values[e.Element]) || e.Name == "" {
				t.Errorf("%s: %+v at %d", g.name, e, at)
			}
			at += e.Length
		}
		if at != len(g.body) {
			t.Errorf("%s: ends at %d of %d", g.name, at, len(g.body))
		}
	}
}

func TestExplain_Faults(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	for name, test := range map[string]struct {
		body  []byte
		read  []Element
		fault ExplainedFault
	}{
		"nothing":          {nil, nil, ExplainedFault{0, 0, errShortMTI.Error()}},
		"no type":          {[]byte("zzzz"), nil, ExplainedFault{0, 0, errMTINotDigits.Error()}},
		"no bitmap":        {[]byte("0100\x00"), nil, ExplainedFault{0, 0, errShortBitmap.Error()}},
		"another type":     {raw("0300", 11, "000001"), []Element{STAN}, ExplainedFault{0, 0, "message type indicator 0300 " + errUnlistedMTI.Error()}},
		"a card as type":   {[]byte(testPAN + testPAN), nil, ExplainedFault{0, 0, "message type indicator 4111 " + errUnlistedMTI.Error()}},
		"a sign as length": {raw("0100", 2, "16"+testPAN, 3, "000000", 35, "+5=2912"), []Element{PAN, ProcessingCode}, ExplainedFault{Track2, 36, ruleLengthDigits}},
		"cut off":          {raw("0100", 3, "000000", 4, "0000"), []Element{ProcessingCode}, ExplainedFault{AmountTransaction, 18, ruleEndsBeyond}},
		"a letter":         {raw("0100", 3, "00000A", 11, "000001"), []Element{ProcessingCode, STAN}, ExplainedFault{ProcessingCode, 12, "digits only"}},
		"too many bytes":   {raw("0100", 3, "000000", 11, "000001XY"), []Element{ProcessingCode, STAN}, ExplainedFault{0, 24, "2 bytes are left over after the last element"}},
	} {
		x := s.Explain(test.body)
		var read []Element
		for _, e := range x.Elements {
			read = append(read, e.Element)
		}
		if len(x.Faults) == 0 || x.Faults[0] != test.fault || !slices.Equal(read, test.read) {
			t.Errorf("%s: read %v, faults %+v, want %v and %+v", name, read, x.Faults, test.read, test.fault)
		}
	}
	if text := s.Explain(raw("0100", 3, "00000A")).String(); !strings.Contains(text, "wrong: DE 3 at offset 12: digits only") || strings.Contains(text, "00000A") {
		t.Error(text)
	}
}

// TestExplain_ATypeOfAnotherProfileShowsNoValue: the message can be another dialect's, in which what seems to be the merchant's name is the
// card's track.
func TestExplain_ATypeOfAnotherProfileShowsNoValue(t *testing.T) {
	t.Parallel()
	const track = "B45395787636^DOE/JOHN" // too few digits in a row to be a card number
	x := Spec1987(BitmapBinary).Explain(raw("1100", 3, "000000", 43, fmt.Sprintf("%-40s", track)))
	if len(x.Faults) != 1 || len(x.Elements) != 2 {
		t.Fatalf("%+v", x)
	}
	if text := x.String(); !x.Shapes || strings.Contains(text, "7876") || strings.Contains(text, "DOE") {
		t.Errorf("shows what it read:\n%s", text)
	}
}

// TestExplain_NeverShowsCardData: not of a right message, and not of one that is cut, shifted, spoiled or read in another dialect.
func TestExplain_NeverShowsCardData(t *testing.T) {
	t.Parallel()
	specs := []*Spec{Spec1987(BitmapHex)}
	for _, name := range Dialects() {
		specs = append(specs, built(t, SpecConfig{Dialect: name}))
	}
	check := func(what string, body []byte) {
		t.Helper()
		for _, s := range specs {
			x := s.Explain(body)
			text := x.String()
			for _, secret := range []string{testPAN[:7], testPAN[8:], testTrack2[17:], "D2912"} {
				if strings.Contains(text, secret) {
					t.Fatalf("%s shows %q:\n%s", what, secret, text)
				}
			}
			if x.Shapes && strings.Contains(text, testPAN[:5]) || len(x.Faults) > 1 && len(x.Elements) > 0 && !x.Shapes {
				t.Fatalf("%s shows more than it needs to:\n%s", what, text)
			}
		}
	}
	for _, g := range slices.Concat(loadGolden(t), loadDialects(t)) {
		check(g.name, g.body)
		for i := 0; i < len(g.body); i += 2 {
			check("cut "+g.name, g.body[:i])
			check("shifted "+g.name, append([]byte("0100"), g.body[i:]...))
			spoiled := slices.Clone(g.body)
			spoiled[i] ^= 0x11
			check("spoiled "+g.name, spoiled)
		}
	}
}

func TestMTIMeaning(t *testing.T) {
	t.Parallel()
	for mti, want := range map[MTI]string{
		0x0100: "authorization request (acquirer), ISO 8583:1987", 0x0421: "reversal advice (acquirer, repeated), ISO 8583:1987",
		0x1814: "network management response (other), ISO 8583:1993", 0x0190: "authorization negative acknowledgement (acquirer), ISO 8583:1987",
		0x4999: "reserved 9 negative acknowledgement (reserved 9), reserved 4",
	} {
		if got := mti.Meaning(); got != want {
			t.Errorf("%s: %q, want %q", mti, got, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for _, name := range Dialects() {
		if err := built(t, SpecConfig{Dialect: name}).Warnings(); err != nil {
			t.Errorf("the built-in table %s: %v", name, err)
		}
	}
	for name, test := range map[string]struct {
		cfg  SpecConfig
		want []string
	}{
		"short card numbers":   {SpecConfig{Elements: map[Element]ElementConfig{PAN: {Length: 16}}}, []string{"elements.2.length: card numbers have up to 19 digits"}},
		"no trace number":      {SpecConfig{Elements: map[Element]ElementConfig{STAN: {Absent: true}}}, []string{"elements.11: the gateway sends or reads this element"}},
		"request alone":        {SpecConfig{MTIs: []string{"0100"}}, []string{"mtis: 0100 is taken, and its response 0110 is not"}},
		"response alone":       {SpecConfig{MTIs: []string{"0110"}}, []string{"mtis: 0110 is taken, and no type that it would answer"}},
		"repeat alone":         {SpecConfig{MTIs: []string{"0421", "0430"}}, []string{"mtis: 0421 is taken, and what it repeats, 0420, is not"}},
		"other pairs":          {SpecConfig{MTIs: []string{"0100", "0180"}, ResponseMTIs: map[string]string{"0100": "0180"}}, nil},
		"pair of no type":      {SpecConfig{MTIs: []string{"0100", "0110"}, ResponseMTIs: map[string]string{"1460": "1480"}}, []string{"response_mtis.1460: mtis does not list the type"}},
		"two for one":          {SpecConfig{MTIs: []string{"0100", "0120", "0130"}, ResponseMTIs: map[string]string{"0100": "0130"}}, []string{"response_mtis: 0130 answers both 0100 and 0120"}},
		"an exchange is whole": {SpecConfig{MTIs: []string{"0420", "0421", "0430"}}, nil},
	} {
		err := built(t, test.cfg).Warnings()
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if len(got) != len(test.want) || !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func FuzzExplain(f *testing.F) {
	var specs []*Spec
	for _, name := range Dialects() {
		for _, bitmap := range []BitmapForm{BitmapBinary, BitmapHex} {
			specs = append(specs, built(f, SpecConfig{Dialect: name, Bitmap: bitmap}))
		}
	}
	for _, g := range slices.Concat(loadGolden(f), loadDialects(f)) {
		for i := range specs {
			f.Add(uint8(i), g.body)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		s := specs[int(which)%len(specs)]
		x := s.Explain(body)
		_, err := s.Decode(body)
		if (err == nil) != (len(x.Faults) == 0) {
			t.Fatalf("Decode says %v, the explanation has faults %+v", err, x.Faults)
		}
		at := 0
		for _, e := range x.Elements {
			if e.Offset < at || e.Offset+e.Length > len(body) {
				t.Fatalf("%s at %d, %d bytes, of %d", e.Element, e.Offset, e.Length, len(body))
			}
			at = e.Offset + e.Length
		}
		if text := x.String(); !isPrintable(text) {
			t.Fatalf("the explanation has control characters: %q", text)
		}
	})
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') })
}
