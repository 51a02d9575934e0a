package iso8583

import (
	"encoding/hex"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
)

// Message is one message's type and data elements. It belongs to one goroutine; every frame and every message to send has a fresh one.
// However it is printed, it shows itself masked.
type Message struct {
	spec    *Spec
	mti     MTI
	present [2]uint64 // by element number, as in a bitmap; bit 1 is never set
	spans   []span    // one for each element that is present, ascending
	data    []byte    // the values: a copy of its own, which Wipe can take out of memory
}

// span is where one value lies in a message's data.
type span struct{ start, end uint32 }

const (
	usualElements = 24  // of a message being built, before it must grow
	usualBytes    = 512 // of all its values
)

// NewMessage begins a message of the dialect.
func (s *Spec) NewMessage(mti MTI) *Message {
	return &Message{spec: s, mti: mti, spans: make([]span, 0, usualElements), data: make([]byte, 0, usualBytes)}
}

// MTI is the message's type.
func (m *Message) MTI() MTI { return m.mti }

// SetMTI changes the message's type. Whether the profile allows it is checked by Encode.
func (m *Message) SetMTI(mti MTI) { m.mti = mti }

// find gives the element's place among the spans, whether it is there or would be.
func (m *Message) find(e Element) (place int, found bool) {
	if !e.Valid() {
		return 0, false
	}
	n := uint(e) - 1
	bit := firstBit >> (n % 64)
	place = bits.OnesCount64(m.present[n/64] &^ (bit | (bit - 1)))
	if n >= 64 {
		place += bits.OnesCount64(m.present[0])
	}
	return place, m.present[n/64]&bit != 0
}

// value gives an element's bytes within the message's own; nil when absent.
func (m *Message) value(e Element) []byte {
	place, found := m.find(e)
	if !found {
		return nil
	}
	at := m.spans[place]
	return m.data[at.start:at.end:at.end]
}

// addSpan makes room for an element that is not there yet, and says that it is.
func (m *Message) addSpan(e Element, place int, at span) {
	n := uint(e) - 1
	m.present[n/64] |= firstBit >> (n % 64)
	m.spans = slices.Insert(m.spans, place, at)
}

// remove takes an element out, closes the gap it leaves and clears what was there.
func (m *Message) remove(e Element, place int) {
	at := m.spans[place]
	size := at.end - at.start
	rest := copy(m.data[at.start:], m.data[at.end:])
	clear(m.data[int(at.start)+rest:])
	m.data = m.data[:int(at.start)+rest]
	m.spans = slices.Delete(m.spans, place, place+1)
	for i := range m.spans {
		if m.spans[i].start >= at.end {
			m.spans[i].start -= size
			m.spans[i].end -= size
		}
	}
	n := uint(e) - 1
	m.present[n/64] &^= firstBit >> (n % 64)
}

// reserve makes room for n more bytes, and leaves no copy of the values where they were.
func (m *Message) reserve(n int) {
	if len(m.data)+n <= cap(m.data) {
		return
	}
	grown := make([]byte, len(m.data), 2*cap(m.data)+n)
	copy(grown, m.data)
	clear(m.data)
	m.data = grown
}

// Set gives a text element its value, whatever the dialect writes it as: nothing is padded. The error is an *ElementError, without the
// value.
func (m *Message) Set(e Element, value string) error {
	r, err := m.spec.ruleOf(e)
	if err != nil {
		return err
	}
	if r.format.isBinary() {
		return &ElementError{e, "binary, so its value is bytes"}
	}
	return setValue(m, e, r, value)
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
	return setValue(m, e, r, value)
}

func setValue[T string | []byte](m *Message, e Element, r *rule, value T) error {
	if len(value) == 0 {
		return &ElementError{e, "not empty: an element without a value is left out"}
	}
	if err := checkValue(r, e, value); err != nil {
		return err
	}
	putValue(m, e, value)
	return nil
}

func putValue[T string | []byte](m *Message, e Element, value T) {
	place, found := m.find(e)
	if found {
		if old := m.value(e); len(value) == len(old) {
			copy(old, value)
			return
		}
		m.remove(e, place)
	}
	start := len(m.data)
	m.reserve(len(value))
	m.data = append(m.data, value...)
	m.addSpan(e, place, span{uint32(start), uint32(len(m.data))})
}

// Unset takes the element out of the message.
func (m *Message) Unset(e Element) {
	if place, found := m.find(e); found {
		m.remove(e, place)
	}
}

// Wipe takes every element out and clears the memory that held the values. What Get and Bytes gave are copies and stay.
func (m *Message) Wipe() {
	clear(m.data[:cap(m.data)])
	m.data, m.spans, m.present = m.data[:0], m.spans[:0], [2]uint64{}
}

// Get gives a text element's value, with every zero and space of the wire, "" when absent; of a binary element upper-case hexadecimal digits.
func (m *Message) Get(e Element) string {
	value := m.value(e)
	if value != nil && m.spec.IsBinary(e) {
		return strings.ToUpper(hex.EncodeToString(value))
	}
	return string(value)
}

// Bytes gives an element's value, text or binary, as a copy; nil when absent.
func (m *Message) Bytes(e Element) []byte {
	value := m.value(e)
	if value == nil {
		return nil
	}
	return append(make([]byte, 0, len(value)), value...)
}

// Has tells whether the element is in the message.
func (m *Message) Has(e Element) bool {
	_, found := m.find(e)
	return found
}

// Elements lists the data elements in the message, ascending.
func (m *Message) Elements() []Element {
	elements := make([]Element, 0, len(m.spans))
	for half, word := range m.present {
		for ; word != 0; word &^= firstBit >> bits.LeadingZeros64(word) {
			elements = append(elements, Element(half*64+bits.LeadingZeros64(word)+1))
		}
	}
	return elements
}

// Image gives the message in one line for people: its type and elements, the card number masked, and of everything that may hold
// sensitive data only that it is present.
func (m *Message) Image() string {
	var b strings.Builder
	b.WriteString(m.mti.String())
	for i, e := range m.Elements() {
		b.WriteByte(' ')
		appendMasked(&b, e, m.spec.exposures[e], string(m.data[m.spans[i].start:m.spans[i].end]))
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
func (s *Spec) ruleOf(e Element) (*rule, error) {
	if !e.Valid() {
		return nil, &ElementError{e, errElementNumber.Error()}
	}
	if s.rules[e].format == noFormat {
		return nil, &ElementError{e, ruleAbsent}
	}
	return &s.rules[e], nil
}

const ruleAbsent = "the profile's dialect does not have it"
