package iso8583

import "encoding/binary"

// MissingKeyElementError tells that a message lacks an element of the key under which it would be looked up.
type MissingKeyElementError struct {
	Element Element
	MTI     MTI
}

func (e *MissingKeyElementError) Error() string {
	return e.MTI.String() + " lacks " + e.Element.String() + ", which is part of its key"
}

// AppendKey appends the key of the exchange that a message belongs to: a request, its repeats and its response give the same one, for the
// listed elements in their order, as text whatever the dialect's coding. Which types are one exchange the profile says. Every value goes
// in with its number and length, so that two different messages cannot run together to one key. Without one of the elements the error is a *MissingKeyElementError and dst is returned as it was.
func AppendKey(dst []byte, p *Peeked, elements []Element) ([]byte, error) {
	key := binary.BigEndian.AppendUint16(dst, uint16(p.exchange()))
	for _, e := range elements {
		if !p.Has(e) {
			return dst, &MissingKeyElementError{Element: e, MTI: p.mti}
		}
		key = append(key, byte(e), 0, 0)
		start := len(key)
		key = p.AppendValue(key, e)
		binary.BigEndian.PutUint16(key[start-2:], uint16(len(key)-start))
	}
	return key, nil
}

// exchange is the type of the exchange in the dialect that the message was read in; one that was never read has none.
func (p *Peeked) exchange() MTI {
	if p.spec == nil {
		return p.mti
	}
	return p.spec.Exchange(p.mti)
}
