package iso8583

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"

	moov "github.com/moov-io/iso8583"
	moovErrors "github.com/moov-io/iso8583/errors"
)

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
	var body []byte
	err := guard(func() (err error) {
		body, err = s.pack(m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	var p Peeked
	if err := s.Peek(body, &p); err != nil {
		return nil, fmt.Errorf("encode message: read back: %w", err)
	}
	return body, nil
}

// checkValues holds the values of a message that was made for another dialect against this one; its own were checked on their way in.
func (s *Spec) checkValues(m *Message) error {
	for _, v := range m.values {
		r, err := s.ruleOf(v.element)
		if err == nil {
			err = r.checkLength(v.element, len(v.value))
		}
		if err == nil {
			err = r.format.check(v.element, v.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Spec) pack(m *Message) ([]byte, error) {
	packed := moov.NewMessage(s.codec)
	packed.MTI(m.mti.String())
	for _, v := range m.values {
		if err := packed.BinaryField(int(v.element), []byte(v.value)); err != nil {
			return nil, &ElementError{v.element, ruleCodec}
		}
	}
	body, err := packed.Pack()
	if err != nil {
		return nil, withoutValues(err)
	}
	return body, nil
}

// Decode reads a message of the dialect. Before the codec sees the bytes, the walk of Peek has held type, lengths and end of the message
// against the table, and every value its format; the codec's panics become errors. ICC data (DE 55) must be whole BER-TLV and is kept as
// it is. Errors name the element and the rule and hold nothing of the message.
func (s *Spec) Decode(body []byte) (*Message, error) {
	var p Peeked
	if err := s.Peek(body, &p); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	m := &Message{spec: s, mti: p.mti, values: make([]elementValue, 0, bits.OnesCount64(p.bitmap[0])+bits.OnesCount64(p.bitmap[1]))}
	for e := firstElement; e <= lastElement; e++ {
		if !p.Has(e) {
			continue
		}
		value := string(p.Value(e))
		if err := s.rules[e].format.check(e, value); err != nil {
			return nil, fmt.Errorf("decode message: %w", err)
		}
		m.values = append(m.values, elementValue{element: e})
	}
	if err := guard(func() error { return s.unpack(body, m) }); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}

// unpack fills in the values of the elements that the walk has found.
func (s *Spec) unpack(body []byte, m *Message) error {
	unpacked := moov.NewMessage(s.codec)
	if err := unpacked.Unpack(body); err != nil {
		return withoutValues(err)
	}
	for i := range m.values {
		e := m.values[i].element
		value, err := s.valueOf(unpacked, e)
		if err != nil {
			return &ElementError{e, ruleCodec}
		}
		m.values[i].value = value
	}
	return nil
}

func (s *Spec) valueOf(unpacked *moov.Message, e Element) (string, error) {
	if !s.rules[e].format.isBinary() {
		return unpacked.GetString(int(e))
	}
	value, err := unpacked.GetBytes(int(e))
	return string(value), err
}

const ruleCodec = "the codec refuses it"

var (
	errCodecRefuses = errors.New("the codec refuses the message")
	errCodecPanics  = errors.New("the codec failed on the message")
)

// withoutValues gives a codec's error without its text and its chain: they may quote values, and an UnpackError carries the whole frame.
func withoutValues(err error) error {
	if unpack, ok := errors.AsType[*moovErrors.UnpackError](err); ok {
		if n, err := strconv.ParseUint(unpack.FieldID, 10, 8); err == nil && Element(n).Valid() {
			return &ElementError{Element(n), ruleCodec}
		}
	}
	return errCodecRefuses
}

// guard calls the codec. A panic becomes an error without the panic's value, which may quote the message.
func guard(call func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errCodecPanics
		}
	}()
	return call()
}
