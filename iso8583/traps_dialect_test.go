package iso8583

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// The traps and real-life inputs of packed and EBCDIC dialects; traps_test.go and traps_wire_test.go have the others.

// wire puts a body of a packed dialect together by hand: type, a binary bitmap, and each element's bytes as hexadecimal digits.
func wire(t testing.TB, mti string, parts ...any) []byte {
	t.Helper()
	for i := 1; i < len(parts); i += 2 {
		parts[i] = string(fromHex(t, parts[i].(string)))
	}
	return append(fromHex(t, mti), raw("", parts...)...)
}

// holds demands that the message reads as the values, writes as the same bytes, and that Peek finds the same.
func holds(t *testing.T, s *Spec, body []byte, want map[Element]string) {
	t.Helper()
	m, err := s.Decode(body)
	if err != nil {
		t.Errorf("%x: %v", body, err)
		return
	}
	var p Peeked
	noError(t, s.Peek(body, &p))
	for e, value := range want {
		if got := string(m.Bytes(e)); got != value || string(p.AppendValue(nil, e)) != value {
			t.Errorf("%s: %q, want %q", e, got, value)
		}
	}
	if len(m.Elements()) != len(want) {
		t.Errorf("elements %v", m.Elements())
	}
	if again, err := s.Encode(m); err != nil || !bytes.Equal(again, body) {
		t.Errorf("written again as\n%x, want\n%x, %v", again, body, err)
	}
}

// TestB6_EBCDICThatIsNotPrintableASCII: control characters, NUL and national letters are refused, and nothing else is.
func TestB6_EBCDICThatIsNotPrintableASCII(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987EBCDIC})
	taken := 0
	for c := range 256 {
		body := append([]byte("\xF0\xF1\xF0\xF0\x00\x00\x00\x00\x00\x10\x00\x00\xF0\xF1"), byte(c)) // DE 44 of one character
		m, err := s.Decode(body)
		if err != nil {
			refusesElement(t, err, 44)
			continue
		}
		taken++
		if text := m.Get(44); len(text) != 1 || text[0] < ' ' || text[0] > '~' {
			t.Errorf("%02x is read as %q", c, text)
		}
		if again, err := s.Encode(m); err != nil || !bytes.Equal(again, body) {
			t.Errorf("%02x is written as %x, %v", c, again, err)
		}
	}
	if taken != '~'-' '+1 {
		t.Errorf("%d bytes are characters", taken)
	}
	for _, bad := range []string{"é", "\x00", "\x7f", "\xff"} {
		refusesElement(t, s.NewMessage(MTIAuthorizationRequest).Set(44, bad), 44)
	}
}

// TestB8_B9_J15_NothingIsSortedMergedOrDropped: a message made anew from the values of another, as a reversal is from those of its
// original, has its bytes, with tags that are repeated, unsorted or unknown.
func TestB8_B9_J15_NothingIsSortedMergedOrDropped(t *testing.T) {
	t.Parallel()
	icc := fromHex(t, "9F3602 0001 DF810102 5A5A 9F36020002 5F2A020978 9A03261201")
	for _, s := range fuzzedSpecs(t) {
		m := s.NewMessage(s.mtis[0])
		noError(t, m.SetBytes(ICCData, icc))
		noError(t, m.Set(STAN, "000123"))
		body, err := s.Encode(m)
		noError(t, err)
		read, err := s.Decode(body)
		noError(t, err)
		anew := s.NewMessage(read.MTI())
		for _, e := range read.Elements() {
			if s.IsBinary(e) {
				noError(t, anew.SetBytes(e, read.Bytes(e)))
			} else {
				noError(t, anew.Set(e, read.Get(e)))
			}
		}
		if again, err := s.Encode(anew); err != nil || !bytes.Equal(again, body) || !bytes.Contains(again, icc) {
			t.Errorf("%s: %x, want %x, %v", s.dialect.name, again, body, err)
		}
	}
}

// TestB12_PackedLengthsAreDigitsOnly: no half byte from A to F is a digit of a length, and the half byte that LLL leaves is zero.
func TestB12_PackedLengthsAreDigitsOnly(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD})
	for _, length := range []string{"0A", "A0", "D5", "F5", "0F", "FF", "B0"} {
		var p Peeked
		refusesElement(t, s.Peek(wire(t, "0100", 32, length+strings.Repeat("11", 100)), &p), AcquirerID)
	}
	for _, length := range []string{"00A0", "1005", "F005", "000F", "D000"} {
		var p Peeked
		refusesElement(t, s.Peek(wire(t, "0100", 48, length+strings.Repeat("41", 1500)), &p), AdditionalData)
	}
	for _, mti := range []string{"0A00", "F100", "01F0", "010F"} {
		var p Peeked
		if err := s.Peek(wire(t, mti, 11, "000001"), &p); err == nil || p.MTI() != 0 {
			t.Errorf("the type %s is taken", mti)
		}
	}
}

// TestB4_PackedDigitsAreDigitsOnly: half bytes that are none are refused, a sign among them, and errors do not show them.
func TestB4_PackedDigitsAreDigitsOnly(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD})
	for _, amount := range []string{"00000000010C", "D00000000105", "0000A0000105", "00000000010F", "FFFFFFFFFFFF", "0000E0000105", "0000B0000105"} {
		_, err := s.Decode(wire(t, "0100", 4, amount))
		refusesElement(t, err, AmountTransaction, amount)
	}
	for _, fee := range []string{"5800000005", "4400000D05", "00000000D5", "C400000005"} {
		_, err := s.Decode(wire(t, "0100", 28, fee))
		refusesElement(t, err, 28, fee)
	}
	holds(t, s, wire(t, "0100", 28, "4300000005", 97, "44"+"0000000000000105"), map[Element]string{28: "C00000005", 97: "D0000000000000105"})
}

// TestW2_PackedCardNumberOf19Digits with both fillers; the wrong one is refused, never read as another number.
func TestW2_PackedCardNumberOf19Digits(t *testing.T) {
	t.Parallel()
	const pan = "4111111111111111003"
	left := built(t, SpecConfig{Dialect: Dialect1987BCD})
	right := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{PAN: {Filler: "right-f"}}})
	zero, f := wire(t, "0100", 2, "19"+"0"+pan, 3, "000000"), wire(t, "0100", 2, "19"+pan+"F", 3, "000000")
	want := map[Element]string{PAN: pan, ProcessingCode: "000000"}
	holds(t, left, zero, want)
	holds(t, right, f, want)
	for i, err := range []error{decodeError(left, f), decodeError(right, zero)} {
		if refusesElement(t, err, PAN, "4111", "1003"); !strings.Contains(err.Error(), ruleFiller) && !strings.Contains(err.Error(), "digits only") {
			t.Errorf("%d: %v", i, err)
		}
	}
	for _, wrong := range []string{"19" + "F" + pan, "19" + pan + "0", "19" + pan + "A", "19" + pan + "1"} {
		if decodeError(right, wire(t, "0100", 2, wrong, 3, "000000")) == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
	for n := 12; n <= 19; n++ {
		holds(t, left, encoded(t, left, MTIAuthorizationRequest, map[Element]string{PAN: pan[:n]}), map[Element]string{PAN: pan[:n]})
		holds(t, right, encoded(t, right, MTIAuthorizationRequest, map[Element]string{PAN: pan[:n]}), map[Element]string{PAN: pan[:n]})
	}
}

// TestW2_BytesThatHoldMoreDigitsThanTheTable: behind a length in bytes ten bytes are 20 digits, and no card number has them.
func TestW2_BytesThatHoldMoreDigitsThanTheTable(t *testing.T) {
	t.Parallel()
	const pan = "4111111111111111003"
	right := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{PAN: {LengthUnit: "bytes", Filler: "right-f"}}})
	left := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{PAN: {LengthUnit: "bytes"}}})
	holds(t, right, wire(t, "0100", 2, "10"+pan+"F", 3, "000000"), map[Element]string{PAN: pan, ProcessingCode: "000000"})
	holds(t, left, wire(t, "0100", 2, "09"+pan[:18]), map[Element]string{PAN: pan[:18]})
	for _, test := range []struct {
		spec  *Spec
		value string
	}{{right, pan + "0"}, {left, "0" + pan}, {left, pan + "0"}} {
		body := wire(t, "0100", 2, "10"+test.value, 3, "000000")
		var p Peeked
		refusesElement(t, test.spec.Peek(body, &p), PAN, "4111", "1003")
		refusesElement(t, decodeError(test.spec, body), PAN, "4111", "1003")
		if x := test.spec.Explain(body); len(x.Faults) != 1 || x.Faults[0].Element != PAN || x.Faults[0].Rule != "at most 19 characters, not 20" {
			t.Errorf("explained as %+v", x.Faults)
		}
	}
}

func decodeError(s *Spec, body []byte) error {
	_, err := s.Decode(body)
	return err
}

// TestW3_J5_W10_PackedTrack2: 37 half bytes in 19 bytes, the separator D and the filler F, with its length as a binary number; what follows is
// still found.
func TestW3_J5_W10_PackedTrack2(t *testing.T) {
	t.Parallel()
	binary := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{Track2: {LengthEncoding: "binary"}}})
	packed := built(t, SpecConfig{Dialect: Dialect1987BCD})
	bytewise := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{Track2: {LengthUnit: "bytes"}}})
	const long, short = "4111111111111111D29122011234567890123", "4111111111111111D2912201123456789012"
	for _, test := range []struct {
		spec         *Spec
		length, odds string
	}{{binary, "25", "24"}, {packed, "37", "36"}, {bytewise, "19", "18"}} {
		holds(t, test.spec, wire(t, "0100", 35, test.length+long+"F", 37, "363333353130303030313233"), map[Element]string{Track2: long, RRN: "633510000123"})
		holds(t, test.spec, wire(t, "0100", 35, test.odds+short, 37, "363333353130303030313233"), map[Element]string{Track2: short, RRN: "633510000123"})
	}
	refusesElement(t, decodeError(binary, wire(t, "0100", 35, "26"+long+"F")), Track2) // 38 are too many
	for _, wrong := range []string{long + "0", "F" + long, strings.Replace(long, "D", "C", 1) + "F", strings.Replace(long, "D", "F", 1) + "F"} {
		refusesElement(t, decodeError(packed, wire(t, "0100", 35, "37"+wrong)), Track2, "2912")
	}
	// What a stripe has between its parts is the same half byte; other characters have none.
	m := packed.NewMessage(MTIAuthorizationRequest)
	noError(t, m.Set(Track2, strings.Replace(long, "D", "=", 1)))
	if body, err := packed.Encode(m); err != nil || !bytes.HasSuffix(body, fromHex(t, "37"+long+"F")) {
		t.Errorf("%x, %v", body, err)
	}
	for _, bad := range []string{";4111111111111111=2912?", "4111111111111111^2912", "B4111"} {
		refusesElement(t, m.Set(Track2, bad), Track2, bad)
	}
}

// TestW4_J7_LengthInBytes: six bytes of packed digits behind the length 6, and the same as a fixed element afterwards.
func TestW4_J7_LengthInBytes(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{
		60: {Format: "n", Prefix: "ll", Length: 12, LengthUnit: "bytes"}, 61: {Format: "n", Prefix: "ll", Length: 12, LengthUnit: "bytes", Filler: "right-f"}}})
	holds(t, s, append(fromHex(t, "0100 2000000000000010"), fromHex(t, "123456 06 005100000005")...), map[Element]string{ProcessingCode: "123456", 60: "005100000005"})
	holds(t, s, wire(t, "0100", 60, "02"+"1234", 61, "03"+"12345F", 63, "000141"), map[Element]string{60: "1234", 61: "12345", 63: "A"})
	holds(t, s, wire(t, "0100", 61, "02"+"1234"), map[Element]string{61: "1234"})
	m := s.NewMessage(MTIAuthorizationRequest)
	refusesElement(t, m.Set(60, "12345"), 60) // behind a zero it would come back as 012345
	refusesElement(t, m.Set(60, "12345678901234"), 60)
	refusesElement(t, decodeError(s, wire(t, "0100", 60, "07"+strings.Repeat("11", 7))), 60)
	refusesElement(t, decodeError(s, wire(t, "0100", 61, "01"+"FF")), 61)
}

// TestW7_BinaryLengths are read whole, whatever they say.
func TestW7_BinaryLengths(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{
		AdditionalData: {LengthEncoding: "binary"}, 55: {Prefix: "ll", LengthEncoding: "binary"}, 44: {Prefix: "l", LengthEncoding: "binary", Length: 255}}})
	for n, length := range map[int]string{1: "0001", 255: "00FF", 256: "0100", 513: "0201", 999: "03E7"} {
		holds(t, s, wire(t, "0100", 48, length+strings.Repeat("41", n)), map[Element]string{AdditionalData: strings.Repeat("A", n)})
	}
	for _, length := range []string{"03E8", "FFFF", "8000"} {
		refusesElement(t, decodeError(s, wire(t, "0100", 48, length+strings.Repeat("41", 2000))), AdditionalData)
	}
	icc := "9A81FC" + strings.Repeat("00", 252)
	holds(t, s, wire(t, "0100", 44, "FF"+strings.Repeat("41", 255), 55, "FF"+icc), map[Element]string{44: strings.Repeat("A", 255), ICCData: string(fromHex(t, icc))})
}

// TestJ6_OddDigitsInFixedElements: DE 22 and 24 of three digits, behind a zero or before an F.
func TestJ6_OddDigitsInFixedElements(t *testing.T) {
	t.Parallel()
	left := built(t, SpecConfig{Dialect: Dialect1987BCD})
	right := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{22: {Filler: "right-f"}, 24: {Filler: "right-f"}}})
	want := map[Element]string{ProcessingCode: "000000", AmountTransaction: "000000001050", STAN: "000123", POSEntryMode: "051", 24: "001", POSConditionCode: "00",
		Track2: "4111111111111111D29122011234567890123", TerminalID: "TERM0001"}
	head := "0200 3020058020800000 000000 000000001050 000123"
	tail := "00 37 4111111111111111D29122011234567890123F 5445524D30303031"
	holds(t, left, fromHex(t, head+"0051 0001"+tail), want)
	holds(t, right, fromHex(t, head+"051F 001F"+tail), want)
	refusesElement(t, decodeError(left, fromHex(t, head+"051F 0001"+tail)), POSEntryMode)
	refusesElement(t, decodeError(right, fromHex(t, head+"051F 0001"+tail)), 24)
}

// TestJ9_AdditionalAmountsAreCarriedAsTheyAre: one and a half block, or three bytes, are nobody's business here; of what is wrong the
// first element is named, in the order of the bitmap.
func TestJ9_AdditionalAmountsAreCarriedAsTheyAre(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	block := "0001978C000000001050"
	for _, amounts := range []string{"000", block, block + block, block + block[:10]} {
		holds(t, s, raw("0110", 54, fmt.Sprintf("%03d", len(amounts))+amounts), map[Element]string{AdditionalAmounts: amounts})
	}
	shifted := raw("0110", 43, strings.Repeat("A", 39), 49, "978", 54, "003000") // DE 43 one short: it takes a digit of DE 49
	x := s.Explain(shifted)
	if len(x.Faults) == 0 || x.Faults[0].Element != AdditionalAmounts || len(x.Present) != 3 {
		t.Errorf("%+v", x)
	}
}

// TestJ12_PackedAdviceWithASecondBitmap: packed card number, binary bitmap, an element of the second half.
func TestJ12_PackedAdviceWithASecondBitmap(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD})
	values := map[Element]string{2: testPAN, 3: "000000", 4: "000000001050", 7: "1201094501", 11: "000123", 12: "104501", 13: "1201", 14: "2912", 18: "5999", 19: "276",
		22: "051", 23: "001", 25: "00", 32: "123456", 37: "633510000123", 38: "A1B2C3", 39: "00", 41: "TERM0001", 42: "MERCHANT0000001", 43: strings.Repeat("S", 40),
		47: "way4", 48: "private", 49: "978", 112: "data"}
	got := encoded(t, s, MTIAuthorizationAdvice, values)
	if !bytes.HasPrefix(got, fromHex(t, "0120 F23C66810EE38000 0000000000010000 16 4111111111111111")) {
		t.Errorf("begins %x", got[:30])
	}
	holds(t, s, got, values)
	for i := range got {
		if decodeError(s, got[:i]) == nil {
			t.Errorf("the first %d bytes are an advice", i)
		}
	}
}

// TestJ22_PairsOfTypesByProfile: 1460 is answered by 1480 and 0370 by 0360, each in its own exchange.
func TestJ22_PairsOfTypesByProfile(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{ResponseMTIs: map[string]string{"1460": "1480", "0370": "0360"}})
	for _, test := range []struct {
		mti, response, exchange MTI
		isResponse              bool
	}{
		{0x1460, 0x1480, 0x1460, false}, {0x1461, 0x1480, 0x1460, false}, {0x1480, 0x1480, 0x1460, true},
		{0x0370, 0x0360, 0x0370, false}, {0x0371, 0x0360, 0x0370, false}, {0x0360, 0x0360, 0x0370, true},
		{0x0100, 0x0110, 0x0100, false}, {0x0421, 0x0430, 0x0420, false}, {0x0430, 0x0430, 0x0420, true}, {0x0180, 0x0180, 0x0180, false},
	} {
		if got := s.ResponseTo(test.mti); got != test.response {
			t.Errorf("%s is answered by %s", test.mti, got)
		}
		if got := s.Exchange(test.mti); got != test.exchange {
			t.Errorf("%s is of the exchange %s", test.mti, got)
		}
		if s.IsResponse(test.mti) != test.isResponse {
			t.Errorf("%s is taken for a response: %t", test.mti, !test.isResponse)
		}
	}
	key := func(mti MTI) string {
		var p Peeked
		noError(t, s.Peek(encoded(t, s, mti, map[Element]string{STAN: "000123"}), &p))
		k, err := AppendKey(nil, &p, []Element{STAN})
		noError(t, err)
		return string(k)
	}
	if key(0x1460) != key(0x1480) || key(0x1461) != key(0x1460) || key(0x0371) != key(0x0360) || key(0x0370) != key(0x0360) || key(0x1460) == key(0x0370) {
		t.Error("requests and responses are not of one key")
	}
	standard := Spec1987(BitmapBinary)
	if standard.ResponseTo(0x0360) != 0x0370 || standard.IsResponse(0x0360) || standard.Exchange(0x0370) != 0x0360 {
		t.Error("without pairs the standard's do not hold")
	}
}

// TestS77_OneElementInEBCDIC inside a packed message.
func TestS77_OneElementInEBCDIC(t *testing.T) {
	t.Parallel()
	s := built(t, SpecConfig{Dialect: Dialect1987BCD, Elements: map[Element]ElementConfig{
		ResponseCode: {Encoding: "ebcdic"}, 44: {Encoding: "ebcdic", LengthEncoding: "ebcdic"}, 28: {Encoding: "ebcdic"}}})
	holds(t, s, wire(t, "0110", 11, "000123", 28, "C4F0F0F0F0F0F0F0F5", 39, "F0F0", 41, "5445524D30303031", 44, "F0F2C181"),
		map[Element]string{STAN: "000123", 28: "D00000005", ResponseCode: "00", TerminalID: "TERM0001", 44: "Aa"})
	refusesElement(t, decodeError(s, wire(t, "0110", 39, "3030")), ResponseCode)
	var p Peeked
	noError(t, s.Peek(wire(t, "0110", 39, "F0F0"), &p))
	if got := string(p.AppendValue([]byte("RC "), ResponseCode)); got != "RC 00" || s.AuthorizationAction(got[3:]) != Approved {
		t.Errorf("%q", got)
	}
}

// TestS78_ICCDataPassesUnchanged in every dialect: unknown, private and three-byte tags, empty values, padding.
func TestS78_ICCDataPassesUnchanged(t *testing.T) {
	t.Parallel()
	for _, s := range fuzzedSpecs(t) {
		for _, icc := range []string{"DF81010107", "9F7F029988", "C10155DF8F7F0101", "9F0200", "00009A0326120100", "E3049F3602 00", "DFFEFE3F0100", "9F36020001 9F36020001"} {
			want := fromHex(t, icc)
			m := s.NewMessage(s.mtis[0])
			noError(t, m.SetBytes(ICCData, want))
			body, err := s.Encode(m)
			noError(t, err)
			read, err := s.Decode(body)
			noError(t, err)
			if got := read.Bytes(ICCData); !bytes.Equal(got, want) {
				t.Errorf("%s: %s comes back as %x", s.dialect.name, icc, got)
			}
		}
	}
}

// TestS79_HostileInputsInEveryDialect, cut at every byte too: an error or a message, never a panic.
func TestS79_HostileInputsInEveryDialect(t *testing.T) {
	t.Parallel()
	bodies := hostileBodies()
	for _, g := range append(loadGolden(t), loadDialects(t)...) {
		for i := range g.body {
			bodies = append(bodies, g.body[:i])
		}
	}
	for _, s := range fuzzedSpecs(t) {
		for _, body := range bodies {
			m, err := s.Decode(body)
			var p Peeked
			peekErr := s.Peek(body, &p)
			if err == nil && (m == nil || peekErr != nil) || m != nil && err != nil {
				t.Errorf("%s: %x gives %v, %v; peeked %v", s.dialect.name, body, m, err, peekErr)
			}
		}
	}
}

// TestJ10_ThirdBitmapInEveryDialect is refused by name.
func TestJ10_ThirdBitmapInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, s := range fuzzedSpecs(t) {
		body := s.appendMTI(nil, s.mtis[0])
		for _, word := range []uint64{firstBit, firstBit, firstBit >> 1} { // bits 1, 65 and 130
			body = s.appendBitmap(body, word)
		}
		_, err := s.Decode(body)
		if refusesElement(t, err, secondBitmap); !strings.Contains(err.Error(), "third bitmap") {
			t.Errorf("%s: %v", s.dialect.name, err)
		}
	}
}

// TestP4_CostIsBoundedInEveryDialect: no length takes more than the table allows, however large the number in front of it is.
func TestP4_CostIsBoundedInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, s := range fuzzedSpecs(t) {
		for e := firstElement; e <= lastElement; e++ {
			r := s.rules[e]
			if r.prefix == fixed {
				continue
			}
			beyond := int(r.most) + 1
			if beyond > mostOf(r.prefix, r.lengthCoding) {
				continue
			}
			body := s.appendMTI(nil, s.mtis[0])
			var words [2]uint64
			words[0] = firstBit
			words[(e-1)/64] |= firstBit >> ((e - 1) % 64)
			body = s.appendBitmap(s.appendBitmap(body, words[0]), words[1])
			body = append(r.appendLength(body, beyond), make([]byte, 2000)...)
			var p Peeked
			err := s.Peek(body, &p)
			if refusesElement(t, err, e); !strings.Contains(err.Error(), "at most") {
				t.Errorf("%s, %s: %v", s.dialect.name, e, err)
			}
		}
	}
}

// TestB11_ZeroLengthInEveryDialect: an element without a value is there, empty, and goes out as it came.
func TestB11_ZeroLengthInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, s := range fuzzedSpecs(t) {
		for e := firstElement; e < secondBitmap; e++ {
			r := s.rules[e]
			if r.prefix == fixed {
				continue
			}
			body := s.appendBitmap(s.appendMTI(nil, s.mtis[0]), firstBit>>(e-1))
			body = r.appendLength(body, 0)
			m, err := s.Decode(body)
			noError(t, err)
			if value := m.Bytes(e); !m.Has(e) || value == nil || len(value) != 0 || m.Get(e) != "" {
				t.Errorf("%s, %s: %q", s.dialect.name, e, value)
			}
			if again, err := s.Encode(m); err != nil || !bytes.Equal(again, body) {
				t.Errorf("%s, %s: %x, %v", s.dialect.name, e, again, err)
			}
		}
	}
}

// TestB14_B15_NothingShowsInAnyDialect: neither an image nor, of a message that is spoiled or cut anywhere, an error.
func TestB14_B15_NothingShowsInAnyDialect(t *testing.T) {
	t.Parallel()
	for _, g := range loadDialects(t) {
		s := g.spec(t)
		m, err := s.Decode(g.body)
		noError(t, err)
		for _, text := range []string{fmt.Sprint(m), fmt.Sprintf("%#v %x", m, *m)} {
			for _, secret := range []string{testPAN, testPAN[:7] + "1", "D2912", "2912201", "00FF1020", "9F2608"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s shows %s: %s", g.name, secret, text)
				}
			}
		}
		for i := range g.body {
			for _, c := range []byte{0x00, 0xFF, 0x4A, 0xD1, 0x60} {
				body := bytes.Clone(g.body)
				body[i] = c
				holdsNothing(t, decodeError(s, body))
			}
			holdsNothing(t, decodeError(s, g.body[:i]))
		}
	}
}
