package iso8583_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/iso8583"
)

// handmade puts a body with one element together from its wire bytes, with a binary bitmap of two blocks.
func handmade(number int, wire string) []byte {
	bitmap := [16]byte{0x80}
	bitmap[(number-1)/8] |= 0x80 >> ((number - 1) % 8)
	return append(append([]byte("0100"), bitmap[:]...), wire...)
}

// TestB12_EveryLengthPrefixDigit gives each variable element a length in which one digit is a neighbour of the digits, or a sign, and just the
// bytes that a careless reader would take it for.
func TestB12_EveryLengthPrefixDigit(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	for _, e := range peerElements {
		if e.dots == 0 {
			continue
		}
		for at := range e.dots {
			for _, c := range []byte(":;/+- .\x00\xB0aA") {
				prefix := []byte(strings.Repeat("0", e.dots))
				prefix[at] = c
				for _, n := range []int{0, 1, 10, 11, 100} { // ':' - '0' is 10
					body := handmade(e.number, string(prefix)+strings.Repeat("1", n))
					var p iso8583.Peeked
					if s.Peek(body, &p) == nil {
						t.Fatalf("DE %d: the length %q is taken with %d bytes", e.number, prefix, n)
					}
					if _, err := s.Decode(body); err == nil {
						t.Fatalf("DE %d: the length %q is decoded", e.number, prefix)
					}
				}
			}
		}
	}
}

// TestP4_EveryLengthIsCapped: one more than the table allows is refused by the walk, before the codec, even when the bytes are there.
func TestP4_EveryLengthIsCapped(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	for _, e := range peerElements {
		for _, n := range []int{e.length + 1, 99, 999} {
			if e.dots == 0 || n <= e.length || len(fmt.Sprint(n)) > e.dots {
				continue
			}
			var p iso8583.Peeked
			err := s.Peek(handmade(e.number, fmt.Sprintf("%0*d", e.dots, n)+strings.Repeat("1", n)), &p)
			element, ok := errors.AsType[*iso8583.ElementError](err)
			if !ok || int(element.Element) != e.number || !strings.Contains(element.Rule, fmt.Sprint("at most ", e.length)) {
				t.Errorf("DE %d of %d: %v", e.number, n, err)
			}
		}
	}
}

// TestJ10_ThirdBitmap: bit 65 would announce one, whatever stands behind it.
func TestJ10_ThirdBitmap(t *testing.T) {
	t.Parallel()
	for _, form := range bothForms {
		s := iso8583.Spec1987(form)
		bitmap := "8000000000000000" + "8000000000000000" + "4000000000000000" // bits 1, 65 and 130
		body := []byte("0100" + bitmap)
		if form == iso8583.BitmapBinary {
			body = append([]byte("0100"), unhex(t, bitmap)...)
		}
		for _, body := range [][]byte{body, append(bytes.Clone(body), "data"...), body[:len(body)/2]} {
			var p iso8583.Peeked
			if err := s.Peek(body, &p); err == nil || p.Has(65) {
				t.Errorf("%s: a third bitmap is taken: %v", form, err)
			}
			if _, err := s.Decode(body); err == nil {
				t.Errorf("%s: a third bitmap is decoded", form)
			}
		}
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(s, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// readTLV is the rule a second time, written with slices and by hand: the tag and value lengths, or false.
func readTLV(b []byte) bool {
	for len(b) > 0 {
		if b[0] == 0 {
			b = b[1:]
			continue
		}
		tag := 1
		if b[0]&0x1F == 0x1F {
			for {
				if tag >= len(b) {
					return false
				}
				last := b[tag] < 0x80
				tag++
				if last {
					break
				}
			}
		}
		b = b[tag:]
		if tag > 4 || len(b) == 0 {
			return false
		}
		var length int
		switch first := b[0]; {
		case first < 0x80:
			length, b = int(first), b[1:]
		case first == 0x81 && len(b) > 1:
			length, b = int(b[1]), b[2:]
		case first == 0x82 && len(b) > 2:
			length, b = int(b[1])*256+int(b[2]), b[3:]
		default:
			return false
		}
		if length > len(b) {
			return false
		}
		b = b[length:]
	}
	return true
}

// TestW6_TLVScanAgreesWithASecondReading on whole, damaged and random ICC data.
func TestW6_TLVScanAgreesWithASecondReading(t *testing.T) {
	t.Parallel()
	for _, hexICC := range []string{
		"", "00", "9A", "9A00", "9A01", "9A0100", "9A0200", "9F0200", "9F02", "9F", "9F8001", "9F800100", "9F8080010100", "9F808080010100", "1F00",
		"9A80", "9A8000", "9A8100", "9A810100", "9A8101", "9A81", "9A8200", "9A82000100", "9A820001", "9A83000001FF", "E188FFFFFFFFFFFFFFFF",
		"9F36888000000000000000AA", "9A84", "9AFF", "00009A0100" + "0000", "9A0100" + "9A0100", "DF8181010100",
	} {
		icc := []byte{}
		if hexICC != "" {
			icc = unhex(t, hexICC)
		}
		if err := iso8583.CheckBERTLV(icc); (err == nil) != readTLV(icc) {
			t.Errorf("%s: %v", hexICC, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		icc := []byte(drawTLV(t, 120))
		if !readTLV(icc) || iso8583.CheckBERTLV(icc) != nil {
			t.Fatalf("whole objects are refused: %x", icc)
		}
		cut := icc[:rapid.IntRange(0, len(icc)).Draw(t, "cut")]
		changed := bytes.Clone(icc)
		changed[rapid.IntRange(0, len(icc)-1).Draw(t, "at")] = rapid.SampledFrom([]byte{0, 1, 2, 0x1F, 0x7F, 0x80, 0x81, 0x82, 0x83, 0x9F, 0xFF}).Draw(t, "byte")
		random := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 3, 0x1F, 0x80, 0x81, 0x82, 0x83, 0x9F}), 0, 12).Draw(t, "random")
		for _, b := range [][]byte{cut, changed, random} {
			if err := iso8583.CheckBERTLV(b); (err == nil) != readTLV(b) {
				t.Fatalf("%x: %v", b, err)
			}
		}
	})
}

// TestKey_DifferentMessagesHaveDifferentKeys where values, elements or types could run together to the same bytes.
func TestKey_DifferentMessagesHaveDifferentKeys(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	key := func(mti iso8583.MTI, values map[int]string, elements ...iso8583.Element) string {
		t.Helper()
		var p iso8583.Peeked
		if err := s.Peek(encode(t, s, mti, values), &p); err != nil {
			t.Fatal(err)
		}
		k, err := iso8583.AppendKey([]byte("head"), &p, elements)
		if err != nil || !strings.HasPrefix(string(k), "head") {
			t.Fatalf("%q, %v", k, err)
		}
		return string(k)
	}
	request := iso8583.MTIAuthorizationRequest
	for name, pair := range map[string][2]string{
		"a value on the other side of a border": {key(request, map[int]string{44: "x", 102: "yfz"}, 44, 102), key(request, map[int]string{44: "xfy", 102: "z"}, 44, 102)}, // 'f' is 102
		"digits moved to the next element":      {key(request, map[int]string{32: "12", 33: "3"}, 32, 33), key(request, map[int]string{32: "1", 33: "23"}, 32, 33)},
		"the same value in another element":     {key(request, map[int]string{11: "104501"}, 11), key(request, map[int]string{12: "104501"}, 12)},
		"another order of elements":             {key(request, map[int]string{11: "104501", 12: "104501"}, 11, 12), key(request, map[int]string{11: "104501", 12: "104501"}, 12, 11)},
		"another class":                         {key(request, map[int]string{11: "000001"}, 11), key(iso8583.MTIReversalRequest, map[int]string{11: "000001"}, 11)},
		"request and advice":                    {key(iso8583.MTIReversalRequest, map[int]string{11: "000001"}, 11), key(iso8583.MTIReversalAdvice, map[int]string{11: "000001"}, 11)},
		"leading zeros":                         {key(request, map[int]string{32: "01"}, 32), key(request, map[int]string{32: "1"}, 32)},
		"spaces":                                {key(request, map[int]string{41: "TERM0001"}, 41), key(request, map[int]string{41: "TERM 001"}, 41)},
	} {
		if pair[0] == pair[1] {
			t.Errorf("%s: the same key", name)
		}
	}
	for _, same := range [][]iso8583.MTI{{0x0100, 0x0110}, {0x0120, 0x0121, 0x0130}, {0x0200, 0x0210}, {0x0220, 0x0221, 0x0230}, {0x0400, 0x0401, 0x0410},
		{0x0420, 0x0421, 0x0430}, {0x0800, 0x0801, 0x0810}} {
		for _, mti := range same[1:] {
			if key(mti, map[int]string{11: "000001"}, 11) != key(same[0], map[int]string{11: "000001", 3: "000000"}, 11) {
				t.Errorf("%s and %s are not one exchange", same[0], mti)
			}
		}
	}
	var p iso8583.Peeked
	if err := s.Peek(encode(t, s, iso8583.MTINetworkManagementResponse, map[int]string{11: "000001"}), &p); err != nil {
		t.Fatal(err)
	}
	k, err := iso8583.AppendKey([]byte("head"), &p, []iso8583.Element{11, 41, 37})
	if missing, ok := errors.AsType[*iso8583.MissingKeyElementError](err); !ok || missing.Element != 41 || missing.MTI != 0x0810 || string(k) != "head" {
		t.Errorf("%q, %v; want the first missing element", k, err)
	}
}

// TestB2_RepeatsRoundTrip: every listed type goes out and comes back, and nothing else does.
func TestB2_RepeatsRoundTrip(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	listed := map[iso8583.MTI]bool{}
	for _, mti := range mtis {
		listed[mti] = true
	}
	var p iso8583.Peeked
	for n := range 1 << 16 {
		mti := iso8583.MTI(n)
		_, err := s.Encode(s.NewMessage(mti))
		if (err == nil) != listed[mti] {
			t.Fatalf("encode %04X: %v", n, err)
		}
		body := append([]byte(fmt.Sprintf("%04X", n)), make([]byte, 8)...)
		if err := s.Peek(body, &p); (err == nil) != listed[mti] || err == nil && p.MTI() != mti {
			t.Fatalf("peek %04X: %v", n, err)
		}
	}
}
