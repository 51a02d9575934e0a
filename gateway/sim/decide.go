package sim

import (
	"github.com/schemegate/schemegate/iso8583"
)

// ruling is what becomes of a request.
type ruling struct {
	rule     string // that decided; empty for the default
	action   Action
	verdict  verdict
	answered bool   // at last: interim answers come all the same
	header   []byte // of the request's frame
}

// decide finds the rule, asks the issuer and says how the answer travels.
func (conn *connection) decide(m *iso8583.Message) ruling {
	c, network := conn.card, m.MTI().Class() == networkClass
	if c.dropsAll() || conn.isDraining() {
		return ruling{verdict: verdict{note: "thrown away"}}
	}
	o := c.repeats.observe(m)
	if !network && c.cfg.SignOnRequired {
		if state := conn.signOnState(); state != peerSignedOn {
			v := verdict{code: c.wire.code(m.MTI().Class(), c.cfg.NotSignedOnCode), amount: -1, note: "we signed the peer off"}
			if state == peerSignedOff {
				v.note, v.violation = "", "financial traffic before the sign-on"
			}
			return ruling{answered: c.cfg.BeforeSignOn == BeforeSignOnRefuse, verdict: v}
		}
	}
	out := ruling{}
	var partialMinor int64
	c.mu.Lock()
	if r := c.rules.find(c.look(m)); r != nil {
		out.rule, out.action, partialMinor = r.Name, r.Then, r.partial
		if len(r.Mix) > 0 {
			out.action, partialMinor = r.pick(c.cfg.Seed, m, o.sendings)
		}
	}
	c.mu.Unlock()
	if out.action.Answer == AnswerLost {
		out.verdict.note, out.verdict.violation = "lost", o.violation
		return out
	}
	out.answered = out.action.Deliver != DeliverSilent
	if network {
		out.verdict = conn.manage(m, out.action)
	} else {
		out.verdict = c.consider(m, o.key, out.action, partialMinor)
	}
	out.verdict.violation = join(o.violation, out.verdict.violation)
	if !out.answered {
		out.verdict.note = join(out.verdict.note, "no answer")
	}
	return out
}

// consider asks the issuer, unless the rule refuses what the issuer would not decide by itself.
func (c *Card) consider(m *iso8583.Message, key HoldKey, a Action, partialMinor int64) verdict {
	class, function := m.MTI().Class(), m.MTI().Function()
	refused := verdict{code: c.wire.code(class, a.ResponseCode), amount: -1, note: "refused"}
	switch declined := a.Answer == AnswerDecline; {
	case declined && class == 4:
		refused.note = "reversal refused"
		return refused
	case class == 4:
		return c.books.reverse(m)
	case isAdvice(m.MTI()) && (class == 2 || c.wire.namesOriginal(m)):
		if declined {
			refused.note = "completion refused"
			return refused
		}
		return c.books.complete(m, key)
	case function == 0 && (class == 1 || class == 2) && (m.Has(iso8583.AmountTransaction) || kindOf(m) == KindInquiry):
		return c.books.authorize(m, key, a.wish(max(0, amountOf(m)), partialMinor))
	case declined:
		refused.note = "not booked"
		return refused
	}
	return verdict{code: c.wire.code(class, approved), amount: -1, note: "not booked"}
}

// look gives rules what they look at.
func (c *Card) look(m *iso8583.Message) seen {
	s := seen{mti: m.MTI(), amount: amountOf(m), pan: m.Get(iso8583.PAN), networkCode: c.wire.networkCode(m), original: c.wire.key(m)}
	if m.MTI().Class() == 4 || isAdvice(m.MTI()) {
		// What names nothing is counted under the zero key, like all others that name nothing.
		s.original, _ = c.wire.originalKey(m)
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
	w := conn.card.wire
	if a.Answer == AnswerDecline {
		return verdict{code: w.code(networkClass, a.ResponseCode), amount: -1, note: "refused"}
	}
	v := verdict{code: w.code(networkClass, approved), amount: -1}
	switch w.networkCode(m) {
	case w.network.SignOn:
		v.note = "signed on"
		conn.setSignOn(peerSignedOn)
	case w.network.SignOff:
		v.note = "signed off"
		conn.setSignOn(peerSignedOff)
	case w.network.Echo:
		return v
	default:
		return verdict{code: w.code(networkClass, "12"), amount: -1, violation: "the network management code is none of sign-on, sign-off and echo"}
	}
	conn.log.Info("peer " + v.note)
	return v
}

// signOnState is where a connection stands between sign-on and sign-off.
type signOnState int

const (
	peerSignedOff signOnState = iota // by itself, or never signed on
	peerSignedOn
	peerSignedOffByUs // and the peer has said that it knows
)

func (conn *connection) setSignOn(state signOnState) {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	conn.signOn = state
}

func (conn *connection) signOnState() signOnState {
	conn.mu.Lock()
	defer conn.mu.Unlock()
	return conn.signOn
}

// join puts two notes together.
func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}
