package link

import (
	"bytes"
	"iter"
	"slices"
	"time"

	"github.com/schemegate/schemegate/iso8583"
)

// elementValue is one element of a request as text; its response must carry the same, if it carries the element.
type elementValue struct {
	element iso8583.Element
	value   []byte
}

// valuesOf gives what a message carries of the elements.
func valuesOf(p *iso8583.Peeked, elements []iso8583.Element) []elementValue {
	var values []elementValue
	for _, e := range elements {
		if p.Has(e) {
			values = append(values, elementValue{element: e, value: p.AppendValue(nil, e)})
		}
	}
	return values
}

// fallbackKeys are the call's keys by Config.CorrelationFallback, each beginning with the number of its list; none for a list of which the
// request lacks an element.
func fallbackKeys(p *iso8583.Peeked, lists [][]iso8583.Element) []string {
	var keys []string
	for i, elements := range lists {
		if key, err := iso8583.AppendKey([]byte{byte(i)}, p, elements); err == nil {
			keys = append(keys, string(key))
		}
	}
	return keys
}

// isRequest tells that a message asks for an answer.
func isRequest(spec *iso8583.Spec, m iso8583.MTI) bool { return spec.ResponseTo(m) != m }

// deliver completes the call that a response answers.
func (s *socket) deliver(mti iso8583.MTI, body []byte) {
	l := s.line
	key, missing := iso8583.AppendKey(s.key[:0], &s.peeked, l.cfg.keyElements(l.spec.Exchange(mti)))
	s.key = key
	if missing != nil {
		s.warnOnce("response lacks an element of the correlation key", missing.Error())
	}
	var action iso8583.ResponseAction
	if mti.Class() != networkClass {
		s.text = s.peeked.AppendValue(s.text[:0], iso8583.ResponseCode)
		action = l.spec.AuthorizationAction(string(s.text))
	}
	c, kind := s.take(key, missing != nil, action)
	if c == nil {
		diagnostic := unmatchedDiagnostics[kind]
		if missing != nil {
			diagnostic = missing.Error() + "; " + diagnostic
		}
		s.handOn(kind, mti, body, diagnostic)
		return
	}
	if action == iso8583.NotSignedOn && l.cfg.SignOn.Required && l.become(SigningOn, SignedOn) {
		s.wake()
	}
	if c.signOn {
		s.noteSignOn(string(s.peeked.AppendValue(nil, iso8583.ResponseCode)))
	}
	c.reply <- answer{body: bytes.Clone(body)}
}

// noteSignOn notes the answer to our sign-on. An approval undoes a sign-off that the peer sent before it, and is undone by one sent after.
func (s *socket) noteSignOn(code string) {
	if s.line.table.approves(code) {
		s.announced.Store(true)
	} else {
		s.refused = code
	}
}

// unmatchedDiagnostics are for responses; they name no values.
var unmatchedDiagnostics = map[UnmatchedKind]string{
	Late:              "no call with this key is waiting: late, repeated, or never asked for",
	Ambiguous:         "more than one waiting call fits what the response has of its key",
	ConfirmMismatch:   "a call with this key is waiting, but an element of confirm differs from its request",
	MissingKeyElement: "no list of correlation_fallback fits the response",
	Interim:           "the peer is still working; the call goes on waiting",
}

// take finds the call that the peeked response answers and removes it from the pending map, in one critical section. Without a call
// it gives the kind of the unmatched response instead.
func (s *socket) take(key []byte, incomplete bool, action iso8583.ResponseAction) (*call, UnmatchedKind) {
	l := s.line.link
	l.mu.Lock()
	defer l.mu.Unlock()
	c, kind := l.pending[string(key)], Late
	if incomplete {
		c, kind = s.fallback()
	}
	switch {
	case c == nil || !c.begun || c.network() && c.socket != s:
		return nil, kind // an echo is about its own line
	case s.contradicts(c, action):
		return nil, ConfirmMismatch
	case action == iso8583.StillWorking && c.mti.Class() != reversalClass:
		// A reversal's "still working" has its action in a table of its own, and is the reversal's affair.
		c.extend(l.cfg.InterimExtension.Std())
		return nil, Interim
	}
	l.remove(c)
	return c, ""
}

// fallback finds the one call that a response without an element of its key can answer: by the lists of Config.CorrelationFallback in
// their order, and in class 8, whose answers often lack DE 41 and more, by what the response has of its key. Two calls that fit are
// none, since the first is as likely wrong as right; nor is one that the response contradicts in what it does have of its key. The
// caller holds mu. In class 8, which is rare, its cost grows with the pending calls.
func (s *socket) fallback() (*call, UnmatchedKind) {
	kind := MissingKeyElement
	for i, elements := range s.line.cfg.CorrelationFallback {
		key, err := iso8583.AppendKey(append(s.key[:0], byte(i)), &s.peeked, elements)
		s.key = key
		if err != nil {
			continue
		}
		kind = Late
		c, several := s.onlyCall(slices.Values(s.line.link.fallbacks[string(key)]))
		if several {
			return nil, Ambiguous
		}
		if c != nil {
			return c, kind
		}
	}
	exchange := s.line.spec.Exchange(s.peeked.MTI())
	if exchange.Class() != networkClass || !slices.ContainsFunc(s.line.cfg.keyElements(exchange), s.peeked.Has) {
		return nil, kind
	}
	c, several := s.onlyCall(func(yield func(*call) bool) {
		for _, c := range s.line.link.pending {
			if c.exchange == exchange && c.socket == s && !yield(c) {
				return
			}
		}
	})
	if several {
		return nil, Ambiguous
	}
	return c, Late
}

// onlyCall finds the one of the pending calls that the response does not contradict in its key, and reports whether there are several.
func (s *socket) onlyCall(calls iter.Seq[*call]) (only *call, several bool) {
	for c := range calls {
		if !c.begun || slices.ContainsFunc(c.known, s.differs) {
			continue
		}
		if only != nil {
			return nil, true
		}
		only = c
	}
	return only, false
}

// contradicts reports whether the peeked response differs from the request in an element that it must repeat. A partial approval
// lowers the amount (DE 4) lawfully.
func (s *socket) contradicts(c *call, action iso8583.ResponseAction) bool {
	return slices.ContainsFunc(c.confirm, func(want elementValue) bool {
		if !s.differs(want) {
			return false
		}
		lowered := want.element == iso8583.AmountTransaction && action == iso8583.PartiallyApproved &&
			len(s.text) == len(want.value) && bytes.Compare(s.text, want.value) < 0
		return !lowered
	})
}

// differs reports whether the peeked response carries the element with another value, which then is in s.text.
func (s *socket) differs(want elementValue) bool {
	if !s.peeked.Has(want.element) {
		return false
	}
	s.text = s.peeked.AppendValue(s.text[:0], want.element)
	return !bytes.Equal(s.text, want.value)
}

// extend moves the call's deadline, never past its Latest.
func (c *call) extend(by time.Duration) {
	until := c.until.Add(by)
	if until.After(c.Latest) {
		until = c.Latest
	}
	if until.After(c.until) {
		c.until = until
	}
}
