package iso8583_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/iso8583"
)

// referenceWalk reads a message as the standard says it, slowly and from the peer's table: the elements' values, or false where its
// structure is wrong. It shares nothing with the walk it is compared with.
func referenceWalk(form iso8583.BitmapForm, body string) (values map[int]string, ok bool) {
	take := func(n int) string {
		if n > len(body) {
			ok = false
			return ""
		}
		part := body[:n]
		body = body[n:]
		return part
	}
	ok = true
	if mti := take(4); !ok || !slices.ContainsFunc(mtis, func(m iso8583.MTI) bool { return m.String() == mti }) {
		return nil, false
	}
	var bits string
	for blocks := 1; blocks > 0 && len(bits) <= 64; blocks-- {
		block := []byte(take(8))
		if form == iso8583.BitmapHex {
			var err error
			if block, err = hex.DecodeString(string(block) + take(8)); err != nil {
				return nil, false
			}
		}
		if !ok {
			return nil, false
		}
		for _, b := range block {
			bits += fmt.Sprintf("%08b", b)
		}
		if bits[len(bits)-64] == '1' {
			blocks++
		}
	}
	values = map[int]string{}
	for _, e := range peerElements {
		if e.number > len(bits) || bits[e.number-1] == '0' {
			continue
		}
		length := e.wireLength()
		if e.dots > 0 {
			text := take(e.dots)
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || int(n) > length {
				return nil, false
			}
			length = int(n)
		}
		values[e.number] = take(length)
		if !ok {
			return nil, false
		}
	}
	if len(bits) > 64 && bits[64] == '1' {
		return nil, false
	}
	return values, body == ""
}

// formatsOf the classes, for what Decode refuses beyond the structure.
var formatsOf = map[string]*regexp.Regexp{
	"n": regexp.MustCompile(`\A[0-9]*\z`), "an": regexp.MustCompile(`\A[0-9A-Za-z ]*\z`), "ans": regexp.MustCompile(`\A[ -~]*\z`),
	"x": regexp.MustCompile(`\A[CD][0-9]*\z`), "b": regexp.MustCompile(`(?s)\A.*\z`),
}

// longDigits are what no error may hold: the longest numbers of its own are a message type or a length.
var longDigits = regexp.MustCompile(`[0-9]{6,}`)

// checkAgreement holds Peek, Decode, the reference walk and the stock library against each other on one input.
func checkAgreement(t fataler, specs map[iso8583.BitmapForm]*iso8583.Spec, form iso8583.BitmapForm, body []byte) {
	s := specs[form]
	before := string(body)
	want, whole := referenceWalk(form, before)
	var p iso8583.Peeked
	peekErr := s.Peek(body, &p)
	if (peekErr == nil) != whole {
		t.Fatalf("the reference walk says %v, Peek %v, of %x", whole, peekErr, body)
	}
	m, err := s.Decode(body)
	if string(body) != before {
		t.Fatalf("the input was changed")
	}
	for _, err := range []error{peekErr, err} {
		if err != nil && longDigits.MatchString(err.Error()) {
			t.Fatalf("the error quotes the message: %v", err)
		}
	}
	if !whole {
		if err == nil {
			t.Fatalf("Decode takes what Peek refuses: %x", body)
		}
		for _, e := range peerElements {
			if p.Has(iso8583.Element(e.number)) || p.Value(iso8583.Element(e.number)) != nil {
				t.Fatalf("after an error Peeked holds DE %d", e.number)
			}
		}
		return
	}
	got := map[int]string{}
	for n := range 256 {
		if e := iso8583.Element(n); p.Has(e) {
			got[n] = string(p.Value(e))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the reference walk and Peek differ (-want +got):\n%s", diff)
	}
	bad := 0
	for _, e := range peerElements {
		if format := formatsOf[e.class]; format != nil && want[e.number] != "" && !format.MatchString(want[e.number]) {
			bad = e.number
			break
		}
		if e.class == "tlv" && iso8583.CheckBERTLV([]byte(want[e.number])) != nil {
			bad = e.number
			break
		}
	}
	if bad != 0 {
		if element, ok := errors.AsType[*iso8583.ElementError](err); !ok || int(element.Element) != bad {
			t.Fatalf("DE %d has a wrong value, Decode says %v", bad, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Decode refuses %v", err)
	}
	if diff := cmp.Diff(want, valuesOf(m)); diff != "" || m.MTI() != p.MTI() {
		t.Fatalf("Peek and Decode differ (-want +got):\n%s", diff)
	}
	mti, theirs, err := peerUnpack(form, body)
	if diff := cmp.Diff(want, theirs); err != nil || diff != "" || mti != m.MTI().String() {
		t.Fatalf("the stock library: %v (-want +got):\n%s", err, diff)
	}
}

func bothSpecs() map[iso8583.BitmapForm]*iso8583.Spec {
	return map[iso8583.BitmapForm]*iso8583.Spec{
		iso8583.BitmapBinary: iso8583.Spec1987(iso8583.BitmapBinary), iso8583.BitmapHex: iso8583.Spec1987(iso8583.BitmapHex),
	}
}

// damages are what goes wrong with a message on its way; each keeps most of it right, so that the damage reaches far into the walk.
var damages = map[string]func(t *rapid.T, body []byte) []byte{
	"none": func(_ *rapid.T, body []byte) []byte { return body },
	"byte": func(t *rapid.T, body []byte) []byte {
		body[rapid.IntRange(0, len(body)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		return body
	},
	"bit": func(t *rapid.T, body []byte) []byte {
		body[rapid.IntRange(0, min(len(body), 20)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		return body
	},
	"cut": func(t *rapid.T, body []byte) []byte { return body[:rapid.IntRange(0, len(body)-1).Draw(t, "length")] },
	"more": func(t *rapid.T, body []byte) []byte {
		return append(body, rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "more")...)
	},
	"length": func(t *rapid.T, body []byte) []byte { // a digit of a length, mostly
		at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
		copy(body[at:], rapid.SampledFrom([]string{"00", "99", "+5", "-1", " 1", "0x", "1e", "01", "000", "-01", "999"}).Draw(t, "digits"))
		return body
	},
	"doubled": func(t *rapid.T, body []byte) []byte {
		at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
		return slices.Insert(body, at, body[at])
	},
}

// TestAgreement_OnDamagedMessages: whatever happens to a message, walk, decoder, reference and stock library stay of one opinion.
func TestAgreement_OnDamagedMessages(t *testing.T) {
	t.Parallel()
	specs := bothSpecs()
	names := make([]string, 0, len(damages))
	for name := range damages {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(t *rapid.T) {
		form := rapid.SampledFrom(bothForms).Draw(t, "form")
		body := encode(t, specs[form], rapid.SampledFrom(mtis).Draw(t, "mti"), drawElements(t))
		for range rapid.IntRange(1, 3).Draw(t, "damages") {
			if len(body) == 0 {
				break
			}
			body = damages[rapid.SampledFrom(names).Draw(t, "damage")](t, body)
		}
		checkAgreement(t, specs, form, body)
	})
}

// TestAgreement_EveryByteOfOneMessage replaces each byte of a message by those that mean something somewhere, and cuts it everywhere.
func TestAgreement_EveryByteOfOneMessage(t *testing.T) {
	t.Parallel()
	specs := bothSpecs()
	for _, form := range bothForms {
		body := encode(t, specs[form], iso8583.MTIReversalAdvice, map[int]string{2: "4111111111111111", 11: "000001", 28: "C00000000", 39: "00",
			48: "abc", 55: "\x9F\x02\x01\x00\x9A\x00", 64: "12345678", 90: strings.Repeat("1", 42), 102: "x"})
		for at := range body {
			for _, b := range append([]byte("\x00\x01\x1F\x7F\x80\x81\xFE\xFF +-/09:ACDFGaz~"), body[at]^1, body[at]^0x10) {
				damaged := slices.Clone(body)
				damaged[at] = b
				checkAgreement(t, specs, form, damaged)
			}
			checkAgreement(t, specs, form, slices.Clone(body[:at]))
		}
	}
}

// TestAgreement_PeekedIsReused: nothing of the message before shows through.
func TestAgreement_PeekedIsReused(t *testing.T) {
	t.Parallel()
	s := iso8583.Spec1987(iso8583.BitmapBinary)
	rapid.Check(t, func(t *rapid.T) {
		var p iso8583.Peeked
		for range 3 {
			values := drawElements(t)
			body := encode(t, s, iso8583.MTIAuthorizationRequest, values)
			if rapid.Bool().Draw(t, "cut") {
				if err := s.Peek(body[:len(body)-1], &p); err == nil {
					t.Fatalf("takes a message that is cut")
				}
			}
			if err := s.Peek(body, &p); err != nil {
				t.Fatalf("peek: %v", err)
			}
			for _, e := range peerElements {
				if value, has := values[e.number]; p.Has(iso8583.Element(e.number)) != has || string(p.Value(iso8583.Element(e.number))) != value {
					t.Fatalf("DE %d is not this message's", e.number)
				}
			}
		}
	})
}

// FuzzAgreement is the same for bytes of any kind, grown from messages of every shape.
func FuzzAgreement(f *testing.F) {
	specs := bothSpecs()
	for _, form := range bothForms {
		for _, body := range threeMessages(f, form) {
			f.Add(form == iso8583.BitmapHex, body)
		}
		for _, mti := range mtis {
			values := map[int]string{}
			for i, e := range peerElements {
				if i%3 == int(mti>>4)%3 && e.class == "n" {
					values[e.number] = strings.Repeat("0", e.length)
				}
			}
			f.Add(form == iso8583.BitmapHex, encode(f, specs[form], mti, values))
		}
	}
	for _, body := range []string{"", "0100", "zzzz", "0100\x80\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00", "08002220000000800000", "0100\x40\x00\x00\x00\x00\x00\x00\x00+5444"} {
		f.Add(false, []byte(body))
		f.Add(true, []byte(body))
	}
	f.Fuzz(func(t *testing.T, useHex bool, body []byte) {
		if useHex {
			checkAgreement(t, specs, iso8583.BitmapHex, body)
			return
		}
		checkAgreement(t, specs, iso8583.BitmapBinary, body)
	})
}
