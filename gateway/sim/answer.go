package sim

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/iso8583"
)

// DE 70 of the network management messages that the scheme knows.
const (
	signOn   = "001"
	signOff  = "002"
	echoTest = "301"
)

// echoed are the elements that an answer has from its request.
var echoed = []iso8583.Element{iso8583.PAN, iso8583.ProcessingCode, iso8583.AmountTransaction, iso8583.TransmissionDateTime,
	iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal, iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID,
	iso8583.CardAcceptorID, iso8583.CurrencyTransaction, iso8583.NetworkManagementCode, iso8583.OriginalData}

// cutBytes is what a garbled answer lacks at its end.
const cutBytes = 3

// ruling is what becomes of a request.
type ruling struct {
	rule     string // that decided; empty for the default
	action   Action
	verdict  verdict
	answered bool
}

// decide finds the rule, asks the issuer and says how the answer travels.
func (conn *connection) decide(m *iso8583.Message) ruling {
	c, network := conn.card, m.MTI().Class() == 8
	if c.dropsAll() {
		return ruling{verdict: verdict{note: "thrown away"}}
	}
	if !network && c.cfg.SignOnRequired && !conn.isSignedOn() {
		return ruling{answered: c.cfg.BeforeSignOn == BeforeSignOnRefuse,
			verdict: verdict{code: c.cfg.NotSignedOnCode, amount: -1, violation: "financial traffic before the sign-on"}}
	}
	out := ruling{}
	var partialMinor int64
	c.mu.Lock()
	if r := c.rules.find(look(m)); r != nil {
		out.rule, out.action, partialMinor = r.Name, r.Then, r.partial
	}
	c.mu.Unlock()
	if out.action.Answer == AnswerLost {
		out.verdict.note = "lost"
		return out
	}
	out.answered = out.action.Deliver != DeliverSilent
	switch declined := out.action.Answer == AnswerDecline; {
	case network:
		out.verdict = conn.manage(m, out.action)
	case declined && m.MTI().Class() == 4:
		out.verdict = verdict{code: out.action.ResponseCode, amount: -1, note: "reversal refused"}
	case m.MTI().Class() == 4:
		out.verdict = c.books.reverse(m, reversalCodes{unknownOriginal: c.cfg.UnknownOriginalCode, nothingHeld: c.cfg.NothingHeldCode})
	case m.MTI().Function() == 0 && m.Has(iso8583.AmountTransaction):
		out.verdict = c.books.authorize(m, out.action.wish(amountOf(m), partialMinor))
	case declined:
		out.verdict = verdict{code: out.action.ResponseCode, amount: -1, note: "not booked"}
	default:
		out.verdict = verdict{code: approved, amount: -1, note: "not booked"}
	}
	if !out.answered {
		out.verdict.note = join(out.verdict.note, "no answer")
	}
	return out
}

// look gives rules what they look at.
func look(m *iso8583.Message) seen {
	s := seen{mti: m.MTI(), amount: amountOf(m), pan: m.Get(iso8583.PAN), networkCode: m.Get(iso8583.NetworkManagementCode), original: holdKey(m)}
	if m.MTI().Class() == 4 {
		// A reversal that names nothing is counted under the zero key, like all others that name nothing.
		s.original, _ = originalKey(m)
	}
	return s
}

// wish is what the action wants for a request over an amount, in minor units.
func (a Action) wish(requested, partial int64) wish {
	switch a.Answer {
	case AnswerDecline:
		return wish{code: a.ResponseCode}
	case AnswerPartial:
		if a.Amount == "" {
			// In two parts, so that no amount of 12 digits overflows.
			partial = requested/100*int64(a.Percent) + requested%100*int64(a.Percent)/100
		}
		return wish{code: partiallyApproved, amount: min(partial, requested)}
	}
	if a.ResponseCode != "" {
		return wish{code: a.ResponseCode, amount: requested}
	}
	return wish{code: approved, amount: requested}
}

// manage does what a network management message asks for.
func (conn *connection) manage(m *iso8583.Message, a Action) verdict {
	code := m.Get(iso8583.NetworkManagementCode)
	if a.Answer == AnswerDecline {
		return verdict{code: a.ResponseCode, amount: -1, note: "refused"}
	}
	v := verdict{code: approved, amount: -1}
	switch code {
	case signOn:
		v.note = "signed on"
	case signOff:
		v.note = "signed off"
	case echoTest:
		return v
	default:
		return verdict{code: "12", amount: -1, violation: "DE 70 is none of 001, 002 and 301"}
	}
	conn.mu.Lock()
	conn.signedOn = code == signOn
	conn.mu.Unlock()
	conn.log.Info("peer " + v.note)
	return v
}

func (conn *connection) isSignedOn() bool {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	return conn.signedOn
}

// answer builds the answer and sends it, now or later.
func (conn *connection) answer(m *iso8583.Message, r ruling) {
	c := conn.card
	out, body, frame, err := c.build(m, r)
	if err != nil {
		c.journal.event(conn.number, "answer not built: "+err.Error(), "")
		conn.log.Error("build answer failed", zap.Error(err))
		return
	}
	if r.action.Delay <= 0 {
		conn.deliver(out, body, frame, r)
		return
	}
	if !c.later(conn, r.action.Delay.Std(), func() { conn.deliver(out, body, frame, r) }) {
		c.journal.event(conn.number, "answer dropped: too many are held back", "")
	}
}

// deliver sends an answer the way its rule says. It is noted before it is written.
func (conn *connection) deliver(m *iso8583.Message, body, frame []byte, r ruling) {
	note := func(text string) {
		conn.card.journal.message(Out, conn.number, m, body, r.rule, verdict{note: text})
	}
	switch r.action.Deliver {
	case DeliverHangUpBefore:
		conn.close("hung up instead of answering")
	case DeliverHangUpAfter:
		note("then hung up")
		conn.write(frame, 0)
		conn.hangUpAfterAnswer()
	case DeliverTwice:
		copies := r.action.Copies
		if copies == 0 {
			copies = 2
		}
		for i := range copies {
			note(fmt.Sprintf("copy %d of %d", i+1, copies))
			conn.write(frame, 0)
		}
	case DeliverSplit:
		note("byte by byte")
		conn.write(frame, max(1, conn.card.cfg.ByteGap.Std()))
	case DeliverGlued:
		note("glued")
		conn.glue(frame)
	default:
		if r.action.Delay > 0 {
			note("after " + r.action.Delay.String())
		} else {
			note("")
		}
		conn.write(frame, 0)
	}
}

// build makes the answer and its frame.
func (c *Card) build(m *iso8583.Message, r ruling) (out *iso8583.Message, body, frame []byte, err error) {
	if out, err = c.response(m, r.verdict, r.action); err != nil {
		return nil, nil, nil, err
	}
	body, frame, err = c.frame(out)
	if err == nil && r.action.Garble {
		body = body[:max(1, len(body)-cutBytes)]
		frame, err = c.framing.Append(nil, body)
	}
	return out, body, frame, err
}

// response is the answer's message.
func (c *Card) response(m *iso8583.Message, v verdict, a Action) (*iso8583.Message, error) {
	values := make(map[iso8583.Element]string, len(echoed)+2)
	for _, e := range echoed {
		if m.Has(e) {
			values[e] = m.Get(e)
		}
	}
	values[iso8583.ResponseCode] = v.code
	if v.approvalCode != "" {
		values[iso8583.ApprovalCode] = v.approvalCode
	}
	if v.amount >= 0 {
		values[iso8583.AmountTransaction] = fmt.Sprintf("%012d", v.amount)
	}
	for _, e := range a.Drop {
		delete(values, e)
	}
	for e, value := range a.Set {
		values[e] = value
	}
	out := c.spec.NewMessage(m.MTI().Response())
	for _, e := range slices.Sorted(maps.Keys(values)) {
		if err := out.Set(e, values[e]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// frame encodes a message and puts it into a frame.
func (c *Card) frame(m *iso8583.Message) (body, frame []byte, err error) {
	if body, err = c.spec.Encode(m); err != nil {
		return nil, nil, err
	}
	frame, err = c.framing.Append(nil, body)
	return body, frame, err
}

// join puts two notes together.
func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}
