package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/schemegate/schemegate/iso8583"
)

const (
	// cutBytes is what a garbled answer lacks at its end.
	cutBytes = 3
	// mtiBytes is the longest message type on the wire: 4 characters, or 2 bytes packed.
	mtiBytes = 4
	// interimCode is DE 39 of an answer that is not yet one: request in progress.
	interimCode = "09"
)

// build makes the answer and its frame.
func (c *Card) build(m *iso8583.Message, r ruling) (out *iso8583.Message, body, frame []byte, err error) {
	if out, err = c.response(m, r.verdict, r.action); err != nil {
		return nil, nil, nil, err
	}
	return c.frameReply(out, r)
}

// interim makes an answer that says that the one to come takes longer.
func (c *Card) interim(m *iso8583.Message, r ruling) (out *iso8583.Message, body, frame []byte, err error) {
	waiting := verdict{code: c.wire.code(m.MTI().Class(), interimCode), amount: -1}
	if out, err = c.response(m, waiting, Action{}); err != nil {
		return nil, nil, nil, err
	}
	r.action.Damage, r.action.Garble = "", false
	return c.frameReply(out, r)
}

// frameReply encodes an answer, damages it as the rule says, and frames it as the answer to its request's frame.
func (c *Card) frameReply(out *iso8583.Message, r ruling) (*iso8583.Message, []byte, []byte, error) {
	body, err := c.spec.Encode(out)
	if err != nil {
		return nil, nil, nil, err
	}
	body = damaged(body, r.action)
	frame, err := c.framing.AppendReply(nil, body, r.header)
	if err != nil {
		frame, err = c.framing.Append(nil, body)
	}
	return out, body, frame, err
}

// damaged changes a message's bytes so that it cannot be read, or is another one than it says.
func damaged(body []byte, a Action) []byte {
	switch {
	case a.Garble || a.Damage == DamageCut:
		return body[:max(1, len(body)-cutBytes)]
	case len(body) <= 2*mtiBytes:
		return body
	case a.Damage == DamageBitmap:
		for i := mtiBytes; i < 2*mtiBytes; i++ {
			body[i] = 0xFF
		}
	case a.Damage == DamageMTI:
		body[0], body[1] = '9', '9'
	case a.Damage == DamageFlip:
		body[len(body)-1] ^= 0x80
	}
	return body
}

// response is the answer's message.
func (c *Card) response(m *iso8583.Message, v verdict, a Action) (*iso8583.Message, error) {
	values := make(map[iso8583.Element]string, len(c.wire.echoed)+3)
	for _, e := range c.wire.echoed {
		if m.Has(e) {
			values[e] = m.Get(e)
		}
	}
	class := m.MTI().Class()
	if class == networkClass && m.Has(c.wire.network.CodeElement) {
		values[c.wire.network.CodeElement] = m.Get(c.wire.network.CodeElement)
	}
	values[iso8583.ResponseCode] = v.code
	if v.approvalCode != "" {
		values[iso8583.ApprovalCode] = v.approvalCode
	}
	if v.amount >= 0 {
		values[iso8583.AmountTransaction] = fmt.Sprintf("%012d", v.amount)
		if c.wire.is1993 {
			values[iso8583.AmountsOriginal] = fmt.Sprintf("%012d%012d", max(0, amountOf(m)), 0)
		}
	}
	if v.balances {
		values[iso8583.AdditionalAmounts] = balances(m, c.balance)
	}
	for _, e := range a.Drop {
		delete(values, e)
	}
	for e, value := range a.Set {
		if e == iso8583.ResponseCode {
			value = c.wire.code(class, value)
		}
		values[e] = value
	}
	out := c.spec.NewMessage(c.spec.ResponseTo(m.MTI()))
	for _, e := range slices.Sorted(maps.Keys(values)) {
		if err := out.Set(e, values[e]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// balances is DE 54: the ledger balance (01) and the available one (02) of the account that DE 3 names, in the request's currency.
func balances(m *iso8583.Message, minor int64) string {
	account, currency := "00", m.Get(iso8583.CurrencyTransaction)
	if code := m.Get(iso8583.ProcessingCode); len(code) == 6 {
		account = code[2:4]
	}
	if currency == "" {
		currency = "000"
	}
	text := ""
	for _, kind := range []string{"01", "02"} {
		text += account + kind + currency + "C" + fmt.Sprintf("%012d", minor)
	}
	return text
}

// frame encodes a message of our own and puts it into a frame.
func (c *Card) frame(m *iso8583.Message) (body, frame []byte, err error) {
	if body, err = c.spec.Encode(m); err != nil {
		return nil, nil, err
	}
	frame, err = c.framing.Append(nil, body)
	return body, frame, err
}
