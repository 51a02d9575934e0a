package iso8583

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// open1993 are the elements of 1993 whose value people may see, written down on its own: opening another one must be done twice.
var open1993 = []Element{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32, 33, 37, 38, 39, 41, 42, 43,
	49, 50, 51, 56, 57, 58, 67, 68, 69, 70, 71, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 97, 99, 100, 105, 106, 107, 108}

func TestTable1993_IsWhole(t *testing.T) {
	t.Parallel()
	last := Element(1)
	for _, d := range table1993 {
		if d.element != last+1 && (d.element != 66 || last != 64) {
			t.Errorf("%s follows %s", d.element, last)
		}
		last = d.element
		if d.name == "" || d.format == noFormat || d.length == 0 || int(d.length) > mostByPrefix[d.prefix] {
			t.Errorf("%s: %+v", d.element, d)
		}
		if isOpen := d.exposure == shown || d.exposure == verbatim; isOpen != slices.Contains(open1993, d.element) {
			t.Errorf("%s is open: %t", d.element, isOpen)
		}
		if (d.exposure == masked) != (d.element == PAN) {
			t.Errorf("%s is masked: %t", d.element, d.exposure == masked)
		}
	}
	if last != lastElement {
		t.Errorf("the table ends at %s", last)
	}
}

// TestExposure_IsTheDialects: what an element's number means decides what is seen of it, and no profile opens it.
func TestExposure_IsTheDialects(t *testing.T) {
	t.Parallel()
	const secret = "41111111111111110000"
	for name, test := range map[string]struct {
		cfg   SpecConfig
		e     Element
		value string
		want  string
	}{
		"DE 56 of 1987 is anything":          {SpecConfig{}, 56, secret, "present"},
		"DE 56 of 1993 is an original":       {SpecConfig{Dialect: Dialect1993ASCII}, 56, "110000012326120110450100", "110000012326120110450100"},
		"DE 13 of 1993 is on the card":       {SpecConfig{Dialect: Dialect1993BCD}, 13, "2601", "present"},
		"DE 13 of 1987 is a date":            {SpecConfig{Dialect: Dialect1987BCD}, 13, "1201", "1201"},
		"DE 31 of 1993 is anything":          {SpecConfig{Dialect: Dialect1993ASCII}, 31, secret, "present"},
		"an original that may hold anything": {SpecConfig{Elements: map[Element]ElementConfig{90: {Format: "ans", Prefix: "lll", Length: 99}}}, 90, testPAN, "411111******1111"},
		"a longer original":                  {SpecConfig{Dialect: Dialect1993ASCII, Elements: map[Element]ElementConfig{56: {Prefix: "lll", Length: 99}}}, 56, strings.Repeat(secret, 2), strings.Repeat("*", 19)},
		"a hidden element in another coding": {SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{48: {Format: "n"}}}, 48, secret, "present"},
		"a card number in another coding":    {SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{2: {Filler: "right-f"}}}, 2, testPAN, "411111******1111"},
	} {
		m := built(t, test.cfg).NewMessage(0)
		noError(t, m.Set(test.e, test.value))
		if got := m.Image(); got != fmt.Sprintf("0000 DE%d=%s", test.e, test.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	// Bytes are not for people, whatever they stand in.
	m := built(t, SpecConfig{Elements: map[Element]ElementConfig{TerminalID: {Format: "b"}}}).NewMessage(0)
	noError(t, m.SetBytes(TerminalID, fromHex(t, testPAN)))
	if got := m.Image(); got != "0000 DE41=present" {
		t.Error(got)
	}
}

func TestSpecConfig_EncodingFaults(t *testing.T) {
	t.Parallel()
	_, err := SpecConfig{
		Dialect:      Dialect1987BCD,
		ResponseMTIs: map[string]string{"14": "1480", "0100": "x", "0200": "0410", "0220": "0220", "0421": "0470", "0300": "0350", "0320": "0350", "0340": "0300"},
		Elements: map[Element]ElementConfig{
			2: {Encoding: "utf-8"}, 3: {LengthEncoding: "bcd"}, 4: {Encoding: "binary"}, 5: {Filler: "right"}, 6: {Encoding: "ascii", Filler: "right-f"}, 7: {LengthUnit: "bytes"},
			32: {LengthUnit: "nibbles"}, 33: {Encoding: "ascii", LengthUnit: "bytes"}, 37: {Encoding: "bcd"}, 44: {LengthUnit: "bytes"}, 48: {LengthEncoding: "vli"},
			52: {Encoding: "ascii"}, 55: {Encoding: "bcd"}, 60: {Prefix: "ll", LengthEncoding: "binary", Length: 256}, 61: {Absent: true, Encoding: "ascii"},
			62: {Format: "n", Prefix: "l", Length: 19, LengthUnit: "bytes"},
		},
		ResponseCodes: map[string]string{"000": "approved"},
	}.Build()
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{"elements.2.encoding: ", "elements.3.length_encoding: ", "elements.4.encoding: ", "elements.5.filler: ", "elements.6.filler: ", "elements.7.length_unit: ",
		"elements.32.length_unit: ", "elements.33.length_unit: ", "elements.37.encoding: ", "elements.44.length_unit: ", "elements.48.length_encoding: ", "elements.52.encoding: ",
		"elements.55.encoding: ", "elements.60.length: ", "elements.61: ", "elements.62.length: ", "response_codes.000: ",
		"response_mtis.14: ", "response_mtis.0100: ", "response_mtis.0200: ", "response_mtis.0220: ", "response_mtis.0421: ", "response_mtis.0320: ", "response_mtis.0340: "} {
		if !strings.Contains("\n"+err.Error(), "\n"+key) {
			t.Errorf("no fault at %q in\n%v", key, err)
		}
	}
	if _, err := (SpecConfig{Dialect: "1987"}).Build(); err == nil || !strings.HasPrefix(err.Error(), "dialect: ") {
		t.Errorf("an unknown dialect: %v", err)
	}
}

// TestSpecConfig_DefaultSaysNothing: a default of ours must not override what a profile's file or dialect says.
func TestSpecConfig_DefaultSaysNothing(t *testing.T) {
	t.Parallel()
	if !reflect.DeepEqual(DefaultSpecConfig(), SpecConfig{}) {
		t.Errorf("%+v", DefaultSpecConfig())
	}
}

// TestSpecConfig_FormatBringsItsCoding: an element that becomes text or bytes in a packed dialect is written as such ones are.
func TestSpecConfig_FormatBringsItsCoding(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{
		STAN: {Format: "an"}, RRN: {Format: "n"}, AdditionalData: {Format: "b"}, 60: {Format: "z"}, 61: {Absent: true}, TimeLocal: {Encoding: "ascii"}}})
	holds(t, s, wire(t, "0100", 11, "303030313233", 12, "313034353031", 37, "633510000123", 48, "0002"+"00FF", 60, "0005"+"12D45F"),
		map[Element]string{STAN: "000123", TimeLocal: "104501", RRN: "633510000123", AdditionalData: "\x00\xff", 60: "12D45"})
	refusesElement(t, decodeError(s, wire(t, "0100", 61, "000141")), 61)
}

// TestPeek_DoesNotAllocateInAnyDialect, its key included.
func TestPeek_DoesNotAllocateInAnyDialect(t *testing.T) { // AllocsPerRun does not go with t.Parallel
	for _, g := range loadDialects(t) {
		s := g.spec(t)
		var p Peeked
		key, elements := make([]byte, 0, 64), []Element{STAN}
		var err error
		allocations := testing.AllocsPerRun(100, func() {
			if err = s.Peek(g.body, &p); err == nil {
				key, err = AppendKey(key[:0], &p, elements)
			}
		})
		if err != nil || allocations != 0 {
			t.Errorf("%s: %v allocations, %v", g.name, allocations, err)
		}
	}
}

// TestAppendKey_IsTextInEveryDialect: the same values give the same key, however they are coded.
func TestAppendKey_IsTextInEveryDialect(t *testing.T) {
	t.Parallel()
	values := map[Element]string{STAN: "000123", AcquirerID: "12345678901", POSEntryMode: "051", TerminalID: "TERM 001", RRN: "63351000012A", TransmissionDateTime: "1201094501"}
	keys := map[string]bool{}
	for _, name := range []Dialect{Dialect1987ASCII, Dialect1987BCD, Dialect1987EBCDIC} {
		for _, form := range []BitmapForm{BitmapBinary, BitmapHex} {
			s := built(t, SpecConfig{Dialect: name, Bitmap: form})
			var p Peeked
			noError(t, s.Peek(encoded(t, s, MTIAuthorizationRequest, values), &p))
			key, err := AppendKey(nil, &p, []Element{STAN, AcquirerID, POSEntryMode, TerminalID, RRN, TransmissionDateTime})
			noError(t, err)
			keys[string(key)] = true
		}
	}
	if len(keys) != 1 {
		t.Errorf("%d different keys", len(keys))
	}
	var unread Peeked
	if _, err := AppendKey(nil, &unread, []Element{STAN}); err == nil {
		t.Error("a message that was never read has a key")
	}
	// A wrong filler makes another key: such a message cannot answer the one that it looks like.
	s := built(t, SpecConfig{Dialect: Dialect1987BCD})
	key := func(wireValue string) string {
		var p Peeked
		noError(t, s.Peek(wire(t, "0100", 22, wireValue), &p))
		k, err := AppendKey(nil, &p, []Element{POSEntryMode})
		noError(t, err)
		return string(k)
	}
	if key("0051") == key("1051") || key("0051") == key("F051") || key("0051") == key("005A") {
		t.Error("wrong digits give the same key")
	}
}

// TestOriginalData1993 is DE 56: type, STAN, local date and time, and the acquirer behind its length.
func TestOriginalData1993(t *testing.T) {
	t.Parallel()
	o := OriginalDataElements{MTI: 0x1100, STAN: "000123", LocalDateTime: "261201104501", AcquirerID: "00345678901"}
	got, err := o.EncodeFor(Edition1993)
	noError(t, err)
	if want := "1100" + "000123" + "261201104501" + "11" + "00345678901"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if back, err := ParseOriginalDataElementsFor(Edition1993, got); err != nil || back != o {
		t.Errorf("%+v, %v", back, err)
	}
	o.AcquirerID = ""
	if got, err = o.EncodeFor(Edition1993); err != nil || got != "1100"+"000123"+"261201104501"+"00" {
		t.Errorf("without an acquirer: %s, %v", got, err)
	}
	if back, err := ParseOriginalDataElementsFor(Edition1993, got); err != nil || back != o {
		t.Errorf("%+v, %v", back, err)
	}
	for name, spoil := range map[string]func(*OriginalDataElements){
		"a response":    func(o *OriginalDataElements) { o.MTI = 0x1110 },
		"STAN of zeros": func(o *OriginalDataElements) { o.STAN = "000000" },
		"DE 7":          func(o *OriginalDataElements) { o.LocalDateTime, o.TransmissionDateTime = "", "1201094501" },
		"month 13":      func(o *OriginalDataElements) { o.LocalDateTime = "261301104501" },
		"no leap year":  func(o *OriginalDataElements) { o.LocalDateTime = "270229104501" },
		"long acquirer": func(o *OriginalDataElements) { o.AcquirerID = "123456789012" },
		"letters":       func(o *OriginalDataElements) { o.AcquirerID = "12A" },
	} {
		bad := o
		spoil(&bad)
		_, err := bad.EncodeFor(Edition1993)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		refusesElement(t, err, OriginalData1993)
	}
	for _, text := range []string{"", "1100" + "000123" + "261201104501", "1100" + "000123" + "261201104501" + "02" + "1", "1100" + "000123" + "261201104501" + "01" + "12",
		"1100" + "000123" + "261201104501" + "12" + "123456789012", "110A" + "000123" + "261201104501" + "00", "1110" + "000123" + "261201104501" + "00"} {
		_, err := ParseOriginalDataElementsFor(Edition1993, text)
		refusesElement(t, err, OriginalData1993)
	}
	for name, want := range map[Dialect]Element{Dialect1987ASCII: OriginalData, Dialect1987EBCDIC: OriginalData, Dialect1993BCD: OriginalData1993} {
		if got := built(t, SpecConfig{Dialect: name}).OriginalElement(); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestResponseActions_Of1993(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1993BCD, ResponseCodes: map[string]string{"907": "outcome_unknown"}, ReversalResponseCodes: map[string]string{"904": "retry_later"}})
	if s.Edition() != Edition1993 || Spec1987(BitmapHex).Edition() != Edition1987 || s.ElementName(FunctionCode) != "Function code" || s.ElementName(65) != "" {
		t.Error("edition or names")
	}
	for action, codes := range map[ResponseAction]string{
		Approved: "000 001 003 004 005 007", PartiallyApproved: "002 006", Declined: "100 101 116 117 121 125 199 200 208 210 299 902 904 908 909 910 912", StillWorking: "923",
		OutcomeUnknown: "907 911 913 914 400 800 900 300 00 10 0 ZZZ",
	} {
		for code := range strings.FieldsSeq(codes) {
			if got := s.AuthorizationAction(code); got != action {
				t.Errorf("authorisation, %s: %s, want %s", code, got, action)
			}
		}
	}
	for action, codes := range map[ReversalAction]string{
		ReversalAcknowledged: "400 000", NothingToUndo: "913 914", RetryLater: "904 906 907 908 909 911 912 923", Suspend: "902 100 200 00 21",
	} {
		for code := range strings.FieldsSeq(codes) {
			if got := s.ReversalAction(code); got != action {
				t.Errorf("reversal, %s: %s, want %s", code, got, action)
			}
		}
	}
	if built(t, SpecConfig{Dialect: Dialect1993ASCII}).AuthorizationAction("907") != Declined {
		t.Error("one profile's codes reach another profile")
	}
}

// TestMessage_WipeLeavesNothing, neither where the values are nor where they were before the message grew or changed.
func TestMessage_WipeLeavesNothing(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	m := s.NewMessage(MTIAuthorizationRequest)
	noError(t, m.Set(PAN, testPAN))
	noError(t, m.Set(Track2, testTrack2))
	first := m.data[:cap(m.data)]
	for _, e := range []Element{46, 47, 48} {
		noError(t, m.Set(e, strings.Repeat(testPAN, 30))) // more than the first buffer holds
	}
	grown := m.data[:cap(m.data)]
	if &first[0] == &grown[0] || bytes.Contains(first, []byte("4111")) {
		t.Error("what the message grew out of still holds values")
	}
	noError(t, m.Set(Track2, testTrack2[:20]))
	noError(t, m.Set(Track2, testTrack2))
	m.Unset(47)
	if bytes.Contains(grown[len(m.data):], []byte("4111")) {
		t.Error("what was changed or taken out is still there")
	}
	if m.Get(PAN) != testPAN || m.Get(Track2) != testTrack2 || m.Get(46) != strings.Repeat(testPAN, 30) || m.Get(48) != m.Get(46) || m.Has(47) {
		t.Errorf("values are gone: %s", m)
	}
	m.Wipe()
	if len(bytes.Trim(grown, "\x00")) != 0 || len(m.Elements()) != 0 || m.Get(PAN) != "" || m.Has(Track2) {
		t.Error("a wiped message holds values")
	}
	noError(t, m.Set(STAN, "000123"))
	if m.Image() != "0100 DE11=000123" {
		t.Errorf("%s", m)
	}
}

// TestMessage_IsAMap: whatever is set and unset in whatever order, the message holds what a map would.
func TestMessage_IsAMap(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	elements := []Element{2, 32, 44, 45, 48, 63, 66, 99, 102, 127}
	rapid.Check(t, func(t *rapid.T) {
		m, want := s.NewMessage(MTIAuthorizationRequest), map[Element]string{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			e := rapid.SampledFrom(elements).Draw(t, "element")
			if rapid.IntRange(0, 3).Draw(t, "step") == 0 {
				m.Unset(e)
				delete(want, e)
				continue
			}
			value := strings.Repeat(rapid.SampledFrom([]string{"1", "7"}).Draw(t, "digit"), rapid.IntRange(1, int(s.rules[e].length)).Draw(t, "length"))
			if err := m.Set(e, value); err != nil {
				t.Fatal(err)
			}
			want[e] = value
		}
		total := 0
		for _, e := range elements {
			total += len(want[e])
			if value, has := want[e]; m.Has(e) != has || m.Get(e) != value {
				t.Fatalf("%s: %q, want %q", e, m.Get(e), value)
			}
		}
		if len(m.Elements()) != len(want) || !slices.IsSorted(m.Elements()) || len(m.data) != total {
			t.Fatalf("%v, %d bytes for %d", m.Elements(), len(m.data), total)
		}
	})
}
