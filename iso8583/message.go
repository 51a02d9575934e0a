package iso8583

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Message is one message's type and data elements. It belongs to one goroutine; every frame and every message to send has a fresh one.
// However it is printed, it shows itself masked.
type Message struct {
	spec   *Spec
	mti    MTI
	values []elementValue // ascending, each element once
}

// elementValue holds text and bytes alike as a string: it cannot be changed from outside, whoever gave it.
type elementValue struct {
	element Element
	value   string
}

// NewMessage begins a message of the dialect.
func (s *Spec) NewMessage(mti MTI) *Message { return &Message{spec: s, mti: mti} }

// MTI is the message's type.
func (m *Message) MTI() MTI { return m.mti }

// SetMTI changes the message's type. Whether the profile allows it is checked by Encode.
func (m *Message) SetMTI(mti MTI) { m.mti = mti }

func (m *Message) find(e Element) (int, bool) {
	return slices.BinarySearchFunc(m.values, e, func(v elementValue, e Element) int { return cmp.Compare(v.element, e) })
}

func (m *Message) put(e Element, value string) {
	i, found := m.find(e)
	if found {
		m.values[i].value = value
		return
	}
	m.values = slices.Insert(m.values, i, elementValue{e, value})
}

// Set gives a text element its value, exactly as it goes to the wire: nothing is padded. The error is an *ElementError, without the value.
func (m *Message) Set(e Element, value string) error {
	r, err := m.spec.ruleOf(e)
	if err != nil {
		return err
	}
	if r.format.isBinary() {
		return &ElementError{e, "binary, so its value is bytes"}
	}
	return m.set(e, r, value)
}

// SetBytes gives a binary element (DE 52, 55, 64, 128) its value, as a copy. The error is an *ElementError, without the value.
func (m *Message) SetBytes(e Element, value []byte) error {
	r, err := m.spec.ruleOf(e)
	if err != nil {
		return err
	}
	if !r.format.isBinary() {
		return &ElementError{e, "text, so its value is not bytes"}
	}
	return m.set(e, r, string(value))
}

func (m *Message) set(e Element, r rule, value string) error {
	if value == "" {
		return &ElementError{e, "not empty: an element without a value is left out"}
	}
	if err := r.checkLength(e, len(value)); err != nil {
		return err
	}
	if err := r.format.check(e, value); err != nil {
		return err
	}
	m.put(e, value)
	return nil
}

// Unset takes the element out of the message.
func (m *Message) Unset(e Element) {
	if i, found := m.find(e); found {
		m.values = slices.Delete(m.values, i, i+1)
	}
}

// Get gives a text element's value as it stands on the wire, "" when absent; of a binary element upper-case hexadecimal digits.
func (m *Message) Get(e Element) string {
	i, found := m.find(e)
	if !found {
		return ""
	}
	if m.spec.IsBinary(e) {
		return strings.ToUpper(hex.EncodeToString([]byte(m.values[i].value)))
	}
	return m.values[i].value
}

// Bytes gives an element's value as it stands on the wire, as a copy; nil when absent.
func (m *Message) Bytes(e Element) []byte {
	i, found := m.find(e)
	if !found {
		return nil
	}
	return append([]byte{}, m.values[i].value...)
}

// Has tells whether the element is in the message, with whatever value.
func (m *Message) Has(e Element) bool {
	_, found := m.find(e)
	return found
}

// Elements lists the elements in the message, ascending.
func (m *Message) Elements() []Element {
	elements := make([]Element, len(m.values))
	for i, v := range m.values {
		elements[i] = v.element
	}
	return elements
}

// Image gives the message in one line for people: its type and elements, the card number masked, and of everything that may hold
// sensitive data only that it is present.
func (m *Message) Image() string {
	var b strings.Builder
	b.WriteString(m.mti.String())
	for _, v := range m.values {
		b.WriteByte(' ')
		appendMasked(&b, v.element, v.value)
	}
	return b.String()
}

// String gives the same as Image.
func (m *Message) String() string {
	if m == nil {
		return "<nil>"
	}
	return m.Image()
}

// Format writes the image whatever the verb, of a Message behind its pointer too.
func (m Message) Format(f fmt.State, _ rune) { io.WriteString(f, m.Image()) }

// MarshalText gives the image, so that a message inside a logged structure shows nothing else.
func (m *Message) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// ruleOf finds the element's line of the table.
func (s *Spec) ruleOf(e Element) (rule, error) {
	if !e.Valid() {
		return rule{}, &ElementError{e, errElementNumber.Error()}
	}
	if s.rules[e].format == noFormat {
		return rule{}, &ElementError{e, ruleAbsent}
	}
	return s.rules[e], nil
}

const ruleAbsent = "the profile's dialect does not have it"
