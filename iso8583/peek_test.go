package iso8583

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPeek_DoesNotAllocate(t *testing.T) { // AllocsPerRun does not go with t.Parallel
	for _, form := range []string{"0100_binary", "0100_hex", "0420_binary"} {
		g := readGolden(t, "testdata/golden/"+form+".txt")
		s := Spec1987(g.bitmap)
		var p Peeked
		key, elements := make([]byte, 0, 64), []Element{TransmissionDateTime, STAN, TerminalID}
		var err error
		allocations := testing.AllocsPerRun(100, func() {
			if err = s.Peek(g.body, &p); err == nil {
				key, err = AppendKey(key[:0], &p, elements)
			}
		})
		if err != nil || allocations != 0 {
			t.Errorf("%s: %v allocations, %v", form, allocations, err)
		}
	}
}

// someMessage draws a message of any elements with values of their formats.
func someMessage(t *rapid.T, s *Spec) *Message {
	m := s.NewMessage(rapid.SampledFrom(s.mtis).Draw(t, "mti"))
	var all []Element
	for _, d := range s.dialect.table {
		all = append(all, d.element)
	}
	for _, e := range rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 30, rapid.ID[Element]).Draw(t, "elements") {
		r := s.rules[e]
		n := int(r.length)
		if r.prefix != 0 {
			n = rapid.IntRange(1, min(n, 300)).Draw(t, fmt.Sprint("length of ", e))
		}
		if r.countsBytes && r.filler == leftZero && n%2 == 1 {
			n++
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, fmt.Sprint("value of ", e)), uint64(e)))
		value := someValue(random, r.format, n)
		if r.format == track && r.coding == packed {
			value = someValue(random, numeric, n)
			if n > 13 {
				value = value[:13] + "D" + value[14:]
			}
		}
		err := m.Set(e, value)
		if r.format.isBinary() {
			err = m.SetBytes(e, []byte(value))
		}
		if err != nil {
			t.Fatalf("%s: %v", e, err)
		}
	}
	return m
}

func someValue(random *rand.Rand, f format, n int) string {
	b := make([]byte, n)
	switch f {
	case opaque:
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return string(b)
	case berTLV:
		if n == 1 {
			return "\x00"
		}
		// One object that fills the element, or padding with nothing in it.
		switch value := n - 2; {
		case value < 0x80:
			b[0], b[1] = 0x9A, byte(value)
		default:
			b[0], b[1], b[2], b[3] = 0x9A, 0x82, byte((n-4)>>8), byte(n-4)
		}
		return string(b)
	}
	for i := range b {
		for b[i] = byte(random.Uint32()); classes[b[i]]&allowed[f] == 0; {
			b[i] = byte(random.Uint32())
		}
	}
	if f == signed {
		b[0] = "CD"[random.IntN(2)]
	}
	return string(b)
}

// TestPeekAndDecodeAgree: whatever is encoded comes back from both, the same, in every dialect.
func TestPeekAndDecodeAgree(t *testing.T) {
	t.Parallel()
	specs := fuzzedSpecs(t)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(specs).Draw(t, "dialect")
		m := someMessage(t, s)
		body, err := s.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		agree(t, s, body, m)
	})
}

// TestPeekAndDecodeAgree_OnDamage: of a damaged message, Decode accepts nothing that Peek refuses, and they never differ.
func TestPeekAndDecodeAgree_OnDamage(t *testing.T) {
	t.Parallel()
	specs := fuzzedSpecs(t)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(specs).Draw(t, "dialect")
		body, err := s.Encode(someMessage(t, s))
		if err != nil {
			t.Fatal(err)
		}
		switch i := rapid.IntRange(0, len(body)-1).Draw(t, "at"); rapid.IntRange(0, 2).Draw(t, "damage") {
		case 0:
			body[i] = rapid.Byte().Draw(t, "byte")
		case 1:
			body = body[:i]
		case 2:
			body = append(body, rapid.Byte().Draw(t, "extra"))
		}
		m, err := s.Decode(body)
		if err != nil {
			return
		}
		agree(t, s, body, m)
	})
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// agree holds a message against what Peek and Decode give of its bytes, and against being encoded again.
func agree(t fataler, s *Spec, body []byte, m *Message) {
	t.Helper()
	var p Peeked
	if err := s.Peek(body, &p); err != nil {
		t.Fatalf("peek: %v", err)
	}
	decoded, err := s.Decode(body)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if p.MTI() != m.MTI() || decoded.MTI() != m.MTI() {
		t.Fatalf("MTI %s, peeked %s, decoded %s", m.MTI(), p.MTI(), decoded.MTI())
	}
	for e := Element(0); e < 255; e++ {
		if p.Has(e) != m.Has(e) || decoded.Has(e) != m.Has(e) {
			t.Fatalf("%s: there %t, peeked %t, decoded %t", e, m.Has(e), p.Has(e), decoded.Has(e))
		}
		want := m.Bytes(e)
		if peeked := p.AppendValue(nil, e); !bytes.Equal(peeked, want) || !bytes.Equal(decoded.Bytes(e), want) {
			t.Fatalf("%s: %q, peeked %q, decoded %q", e, want, peeked, decoded.Bytes(e))
		}
	}
	again, err := s.Encode(decoded)
	if err != nil {
		t.Fatalf("encode again: %v", err)
	}
	if back, err := s.Decode(again); err != nil || back.Image() != m.Image() {
		t.Fatalf("encoded again, it is another message: %v", err)
	}
}

func TestAppendKey(t *testing.T) {
	t.Parallel()
	s := Spec1987(BitmapBinary)
	key := func(mti MTI, values map[Element]string, elements ...Element) string {
		t.Helper()
		var p Peeked
		noError(t, s.Peek(encoded(t, s, mti, values), &p))
		k, err := AppendKey(nil, &p, elements)
		noError(t, err)
		return string(k)
	}
	a := map[Element]string{STAN: "000123", TerminalID: "TERM0001", AcquirerID: "12", ForwarderID: "345"}
	b := map[Element]string{STAN: "000123", TerminalID: "TERM0001", AcquirerID: "123", ForwarderID: "45"}
	elements := []Element{STAN, TerminalID}
	if key(MTIReversalAdvice, a, elements...) != key(MTIReversalAdviceRepeat, a, elements...) || key(MTIReversalAdvice, a, elements...) != key(MTIReversalAdviceResponse, a, elements...) {
		t.Error("a request, its repeat and its response differ")
	}
	if key(MTIAuthorizationRequest, a, elements...) == key(MTIReversalAdvice, a, elements...) {
		t.Error("an authorisation and its reversal with the same STAN are the same")
	}
	if key(MTIAuthorizationRequest, a, AcquirerID, ForwarderID) == key(MTIAuthorizationRequest, b, AcquirerID, ForwarderID) {
		t.Error("12 + 345 and 123 + 45 run together")
	}
	var p Peeked
	noError(t, s.Peek(encoded(t, s, MTIAuthorizationResponse, a), &p))
	dst := []byte("kept")
	got, err := AppendKey(dst, &p, []Element{STAN, RRN})
	missing, ok := err.(*MissingKeyElementError)
	if !ok || missing.Element != RRN || missing.MTI != MTIAuthorizationResponse || string(got) != "kept" || !strings.Contains(err.Error(), "0110 lacks DE 37") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestPeeked_ValuesCannotGrowIntoTheirNeighbours(t *testing.T) {
	t.Parallel()
	s, body := Spec1987(BitmapBinary), goldenBody(t, "0110_binary")
	var p Peeked
	noError(t, s.Peek(body, &p))
	before := bytes.Clone(body)
	_ = append(p.Value(STAN), 'X')
	if !bytes.Equal(body, before) {
		t.Error("appending to a value changes the message")
	}
}
