package iso8583

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// neededElements are what a card link cannot do without, whatever the edition.
var neededElements = []Element{PAN, ProcessingCode, AmountTransaction, TransmissionDateTime, STAN, RRN, ResponseCode, TerminalID}

const longestPAN = 19 // digits of a card number by ISO/IEC 7812

// Check tells what Build would; it is how a dialect file is checked by itself.
func (c SpecConfig) Check() error {
	_, err := c.Build()
	return err
}

// Warnings joins what is allowed in a dialect and seldom meant, each beginning with the key it is at; nil when there is none.
func (s *Spec) Warnings() error {
	var warnings []error
	warn := func(form string, args ...any) { warnings = append(warnings, fmt.Errorf(form, args...)) }
	if most := s.rules[PAN].length; s.Has(PAN) && most < longestPAN {
		warn("elements.2.length: card numbers have up to %d digits, and %d leaves cards out", longestPAN, most)
	}
	for _, e := range append(slices.Clip(neededElements), s.OriginalElement()) {
		if !s.Has(e) {
			warn("elements.%d: the gateway sends or reads this element (%s), and the dialect does not have it", uint8(e), s.ElementName(e))
		}
	}
	for _, request := range slices.Sorted(maps.Keys(s.responses)) {
		if !s.Lists(request) {
			warn("response_mtis.%s: mtis does not list the type, so the pair has no effect", request)
		}
	}
	answered := map[MTI]MTI{} // by response, the request it answers
	for _, m := range s.mtis {
		switch response := s.ResponseTo(m); {
		case s.IsResponse(m) || response == m:
		case !containsMTI(s.mtis, response):
			warn("mtis: %s is taken, and its response %s is not", m, response)
		default:
			if other, taken := answered[response]; taken && other != m.WithoutRepeat() {
				warn("response_mtis: %s answers both %s and %s, so one answer can be taken for the other's", response, other, m.WithoutRepeat())
			}
			answered[response] = m.WithoutRepeat()
		}
		if m.IsRepeat() && !containsMTI(s.mtis, m.WithoutRepeat()) {
			warn("mtis: %s is taken, and what it repeats, %s, is not", m, m.WithoutRepeat())
		}
		if s.IsResponse(m) && !slices.ContainsFunc(s.mtis, func(request MTI) bool { return !s.IsResponse(request) && s.ResponseTo(request) == m }) {
			warn("mtis: %s is taken, and no type that it would answer", m)
		}
	}
	return errors.Join(warnings...)
}
