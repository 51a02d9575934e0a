package iso8583

import (
	"fmt"
	"math/bits"
)

// maxLengthSize is how many bytes the length in front of a value takes at most.
const maxLengthSize = 3

// Encode gives the message's bytes: type, bitmap and elements, without a frame. The type must be one the profile lists. The bytes are walked
// once more before they are given out, so that nothing leaves that the own reader would refuse.
func (s *Spec) Encode(m *Message) ([]byte, error) {
	if !containsMTI(s.mtis, m.mti) {
		return nil, fmt.Errorf("encode message: message type indicator %s %w", m.mti, errUnlistedMTI)
	}
	if m.spec != s {
		if err := s.checkValues(m); err != nil {
			return nil, fmt.Errorf("encode message: %w", err)
		}
	}
	head := mtiDigits + len(m.present)*bitmapHexDigits
	body := s.appendMTI(make([]byte, 0, head+len(m.data)+maxLengthSize*len(m.spans)), m.mti)
	first := m.present[0]
	if m.present[1] != 0 {
		first |= firstBit
	}
	body = s.appendBitmap(body, first)
	if m.present[1] != 0 {
		body = s.appendBitmap(body, m.present[1])
	}
	next := 0
	for half, word := range m.present {
		for word != 0 {
			n := bits.LeadingZeros64(word)
			word &^= firstBit >> n
			at := m.spans[next]
			next++
			body = s.rules[half*64+n+1].appendWire(body, m.data[at.start:at.end])
		}
	}
	var p Peeked
	if err := s.Peek(body, &p); err != nil {
		return nil, fmt.Errorf("encode message: read back: %w", err)
	}
	return body, nil
}

// checkValues holds the values of a message that was made for another dialect against this one; its own were checked on their way in.
func (s *Spec) checkValues(m *Message) error {
	for _, e := range m.Elements() {
		r, err := s.ruleOf(e)
		if err == nil {
			err = checkValue(r, e, m.value(e))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Decode reads a message of the dialect. The walk of Peek holds type, lengths and end of the message against the table; then each value
// is taken out of its coding once and held against its format. ICC data (DE 55) must be whole BER-TLV and is kept as it is. Errors name
// the element and the rule and hold nothing of the message.
func (s *Spec) Decode(body []byte) (*Message, error) {
	var p Peeked
	if err := s.Peek(body, &p); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	m := &Message{spec: s, mti: p.mti, present: p.bitmap}
	m.present[0] &^= firstBit
	count := bits.OnesCount64(m.present[0]) + bits.OnesCount64(m.present[1])
	m.spans = make([]span, 0, count)
	m.data = make([]byte, 0, p.dataSize(m.present))
	for half, word := range m.present {
		for word != 0 {
			n := bits.LeadingZeros64(word)
			word &^= firstBit >> n
			e := Element(half*64 + n + 1)
			start := len(m.data)
			r := &s.rules[e]
			m.data = r.appendText(m.data, body[p.at[e].start:p.at[e].end], p.isOdd(e))
			if err := r.checkRead(e, m.data[start:], p.textSize(e)); err != nil {
				m.Wipe()
				return nil, fmt.Errorf("decode message: %w", err)
			}
			m.spans = append(m.spans, span{uint32(start), uint32(len(m.data))})
		}
	}
	return m, nil
}

// dataSize is how many bytes the values take out of their coding; a wrong filler, which is refused, takes one more.
func (p *Peeked) dataSize(present [2]uint64) int {
	size := 1
	for half, word := range present {
		for word != 0 {
			n := bits.LeadingZeros64(word)
			word &^= firstBit >> n
			size += p.textSize(Element(half*64 + n + 1))
		}
	}
	return size
}
