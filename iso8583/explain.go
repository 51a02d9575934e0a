package iso8583

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Explanation is what can be told of one message's bytes, for people. Nothing in it is card data: values are masked as in an image, and
// rules never quote.
type Explanation struct {
	Bytes    int    // of the message
	MTI      MTI    // 0 when it could not be read
	Meaning  string // of the message type
	Bitmap   int    // its offset
	Present  []Element
	Elements []ExplainedElement // those that could be read, in the order of the message
	Faults   []ExplainedFault   // in the order of the message; empty for one that is right
	Shapes   bool               // the elements' values are not shown, only their shapes
}

// ExplainedElement is one data element of the message.
type ExplainedElement struct {
	Element Element
	Name    string
	Offset  int    // of its first byte in the message, that of its length where it has one
	Length  int    // bytes on the wire, with those of its length
	Value   string // masked; its shape alone in a message with a fault
}

// ExplainedFault is what is wrong with a message, and where.
type ExplainedFault struct {
	Element Element // 0 where it is the message type, the bitmap or the message's end
	Offset  int
	Rule    string
}

// Explain reads as much of a message as can be read. Unlike Peek and Decode it goes on where a value alone is wrong, or where the
// profile does not list the message type. In a message with a fault no value is shown, only its shape: what is read in the wrong
// dialect or place can be the digits of a card number, whatever element they seem to be.
func (s *Spec) Explain(body []byte) Explanation {
	x := Explanation{Bytes: len(body)}
	fault := func(e Element, offset int, rule string) {
		x.Faults = append(x.Faults, ExplainedFault{e, offset, rule})
	}
	var p Peeked
	lenient := *s
	start, err := lenient.head(body, &p)
	unlisted := errors.Is(err, errUnlistedMTI)
	if unlisted {
		fault(0, 0, err.Error())
	}
	if unlisted && p.mti.Version() <= 1 { // others are more likely digits of something else
		lenient.mtis = []MTI{p.mti}
		start, err = lenient.head(body, &p)
	}
	if x.MTI = p.mti; x.MTI != 0 {
		x.Meaning = x.MTI.Meaning()
	}
	if err != nil {
		if !errors.Is(err, errUnlistedMTI) {
			fault(0, 0, withoutPrefix(err))
		}
		return x
	}
	x.Bitmap = s.mtiSize()
	end, err := lenient.walk(body, &p)
	bad := Element(0)
	if element, ok := errors.AsType[*ElementError](err); ok {
		bad = element.Element
	}
	at := start
	for e := firstElement; e <= lastElement; e++ {
		if !p.Has(e) {
			continue
		}
		x.Present = append(x.Present, e)
		if bad != 0 && e >= bad {
			continue
		}
		value, rule := s.explainValue(&p, e)
		next := int(p.at[e].end)
		x.Elements = append(x.Elements, ExplainedElement{e, s.ElementName(e), at, next - at, value})
		if rule != "" {
			fault(e, at, rule)
		}
		at = next
	}
	switch {
	case bad != 0:
		fault(bad, at, ruleOf(err))
	case err != nil:
		fault(0, at, withoutPrefix(err))
	case end != len(body):
		fault(0, end, fmt.Sprintf("%d bytes are left over after the last element", len(body)-end))
	case len(x.Faults) == 0:
		if _, err := s.Decode(body); err != nil { // rules about the value's bytes, such as their filler
			element, _ := errors.AsType[*ElementError](err)
			e, at := x.placeOf(element)
			fault(e, at, ruleOf(err))
		}
	}
	x.hide(unlisted)
	return x
}

// placeOf is where the element of an error begins.
func (x *Explanation) placeOf(err *ElementError) (e Element, offset int) {
	if err == nil {
		return 0, 0
	}
	for _, explained := range x.Elements {
		if explained.Element == err.Element {
			return err.Element, explained.Offset
		}
	}
	return err.Element, 0
}

// hide takes out of a faulty message what could be read off it. A type that is not the profile's can be another dialect's, whose elements
// lie elsewhere; with a second fault even the bits that seem to be a bitmap may be digits.
func (x *Explanation) hide(unlisted bool) {
	switch {
	case len(x.Faults) == 0:
		return
	case unlisted && len(x.Faults) > 1:
		x.Present, x.Elements = nil, nil
	}
	x.Shapes = len(x.Elements) > 0
	for i := range x.Elements {
		x.Elements[i].Value = shape(x.Elements[i].Value)
	}
}

// shape keeps of a value what its characters are: 9 for a digit, A for a letter, and what is neither.
func shape(value string) string {
	if value == present || value == notShown {
		return value
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9':
			return '9'
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			return 'A'
		}
		return r
	}, value)
}

// explainValue gives the masked value of one element, and what is wrong with it.
func (s *Spec) explainValue(p *Peeked, e Element) (value, rule string) {
	raw := p.AppendValue(nil, e)
	if len(raw) == 0 {
		return `""`, ""
	}
	alone := s.NewMessage(p.mti)
	var err error
	if s.IsBinary(e) {
		err = alone.SetBytes(e, raw)
	} else {
		err = alone.Set(e, string(raw))
	}
	if err != nil {
		return notShown, ruleOf(err)
	}
	_, value, _ = strings.Cut(alone.Image(), "=")
	return value, ""
}

const notShown = "not shown"

// ruleOf is an error's rule without the element that the explanation names beside it.
func ruleOf(err error) string {
	if element, ok := errors.AsType[*ElementError](err); ok {
		return element.Rule
	}
	return withoutPrefix(err)
}

func withoutPrefix(err error) string {
	text := err.Error()
	for _, prefix := range []string{"peek message: ", "decode message: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

// String gives the explanation as lines of text.
func (x Explanation) String() string {
	var b strings.Builder
	if x.MTI != 0 {
		fmt.Fprintf(&b, "%s  %s\n", x.MTI, x.Meaning)
	}
	if len(x.Present) > 0 {
		fmt.Fprintf(&b, "bitmap at %d:", x.Bitmap)
		for _, e := range x.Present {
			b.WriteString(" " + strconv.Itoa(int(e)))
		}
		b.WriteByte('\n')
	}
	if len(x.Elements) > 0 {
		fmt.Fprintf(&b, "%4s %6s %6s  %-46s %s\n", "DE", "offset", "bytes", "name", "value")
	}
	for _, e := range x.Elements {
		fmt.Fprintf(&b, "%4d %6d %6d  %-46s %s\n", uint8(e.Element), e.Offset, e.Length, e.Name, e.Value)
	}
	if x.Shapes {
		b.WriteString("values are shown by their shape where something is wrong: 9 for a digit, A for a letter\n")
	}
	for _, f := range x.Faults {
		what := ""
		if f.Element != 0 {
			what = f.Element.String() + " "
		}
		fmt.Fprintf(&b, "wrong: %sat offset %d: %s\n", what, f.Offset, f.Rule)
	}
	return b.String()
}

// The words of a message type, by digit.
var (
	versionWords  = [...]string{"ISO 8583:1987", "ISO 8583:1993", "ISO 8583:2003", 8: "national version", 9: "private version"}
	classWords    = [...]string{1: "authorization", 2: "financial", 3: "file action", 4: "reversal", 5: "reconciliation", 6: "administrative", 7: "fee collection", 8: "network management"}
	functionWords = [...]string{"request", "response", "advice", "advice response", "notification", "notification acknowledgement",
		"instruction", "instruction acknowledgement", "positive acknowledgement", "negative acknowledgement"}
	originWords = [...]string{"acquirer", "acquirer, repeated", "issuer", "issuer, repeated", "other", "other, repeated"}
)

// Meaning tells the type in words: 0421 is "reversal advice (acquirer, repeated), ISO 8583:1987".
func (m MTI) Meaning() string {
	return fmt.Sprintf("%s %s (%s), %s", word(classWords[:], m.Class()), word(functionWords[:], m.Function()), word(originWords[:], m.Origin()),
		word(versionWords[:], m.Version()))
}

func word(words []string, digit uint8) string {
	if int(digit) < len(words) && words[digit] != "" {
		return words[digit]
	}
	return "reserved " + strconv.Itoa(int(digit))
}
