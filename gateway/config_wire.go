package gateway

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// The third digits of what the gateway sends.
const (
	functionRequest uint8 = 0
	functionAdvice  uint8 = 2
)

// validateWire checks how this scheme's messages look: types, reversals and captures, all of one edition.
func (c LinkConfig) validateWire(path string, f *configs.Faults) {
	version := iso8583.MTI(0).Version()
	if c.edition1993() {
		version = 1
	}
	business := []uint8{iso8583.MTIAuthorizationRequest.Class(), financialClass}
	// The function keeps the answers to authorisations and to captures apart.
	check := func(at, text, rule string, classes, functions []uint8) {
		mti, err := iso8583.ParseMTI(text)
		if err != nil || mti.Version() != version || !slices.Contains(classes, mti.Class()) || !slices.Contains(functions, mti.Function()) || mti.IsRepeat() {
			f.Add(at, rule, text)
		}
	}
	if len(c.Types) == 0 {
		f.Add(path+".types", "needs at least one authorisation type", nil)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Types)) {
		at, kind := path+".types."+string(name), c.Types[name]
		if !slices.Contains(authorizationTypes, name) {
			f.Add(at, "known types: "+ruleTypes, name)
		}
		check(at+".mti", kind.MTI, fmt.Sprintf("a request of class 1 or 2 in the dialect's edition, such as %d100 or %d200", version, version), business, []uint8{functionRequest})
		if !sixDigits.MatchString(kind.ProcessingCode) {
			f.Add(at+".processing_code", "6 digits (DE 3)", kind.ProcessingCode)
		}
		checkFunctionCode(at+".function_code", kind.FunctionCode, version, f)
		if kind.ReverseOnSilence && name != BalanceInquiry {
			f.Add(at+".reverse_on_silence", "is for balance_inquiry; every other type is always reversed", kind.ReverseOnSilence)
		}
	}
	check(path+".reversal.mti", c.Reversal.MTI, fmt.Sprintf("%d420 or %d400", version, version), []uint8{iso8583.MTIReversalAdvice.Class()}, []uint8{functionRequest, functionAdvice})
	if c.Reversal.STAN != stanOriginal && c.Reversal.STAN != stanNew {
		f.Add(path+".reversal.stan", "original or new", c.Reversal.STAN)
	}
	if !slices.Contains([]string{partialReplacement, partialOriginal, partialAmount, partialRefuse}, c.Reversal.Partial) {
		f.Add(path+".reversal.partial", "de95, de30, de4 or refuse", c.Reversal.Partial)
	}
	if c.Reversal.Partial == partialOriginal && !c.carriesAmountsOriginal() {
		f.Add(path+".reversal.partial", "de30 needs a spec whose DE 30 has 24 digits: spec.elements.30: {format: n, length: 24}", c.Reversal.Partial)
	}
	check(path+".captures.mti", c.Captures.MTI, fmt.Sprintf("an advice, such as %d220", version), business, []uint8{functionAdvice})
	checkFunctionCode(path+".captures.function_code", c.Captures.FunctionCode, version, f)
	for i, code := range c.Captures.DoneCodes {
		if !responseCodeForm.MatchString(code) {
			f.Add(fmt.Sprintf("%s.captures.done_codes.%d", path, i), "a response code of 2 or 3 characters (DE 39)", code)
		}
	}
}

// carriesAmountsOriginal tells whether DE 30 has room for the two amounts of 1993; in 1987 it is a fee. A spec that is faulty itself is
// reported elsewhere.
func (c LinkConfig) carriesAmountsOriginal() bool {
	spec, err := c.Spec.Build()
	return err != nil || spec.NewMessage(iso8583.MTIReversalAdvice).Set(iso8583.AmountsOriginal, pad(0, 2*amountDigits)) == nil
}

// edition1993 tells whether the link's dialect is of the 1993 edition.
func (c LinkConfig) edition1993() bool {
	spec, err := c.Spec.Build()
	return err == nil && spec.Edition() == iso8583.Edition1993
}

var responseCodeForm = regexp.MustCompile(`^[0-9A-Z]{2,3}$`)

// checkFunctionCode holds DE 24 against the edition: 1993 requires it, 1987 has another use for the element.
func checkFunctionCode(at, code string, version uint8, f *configs.Faults) {
	if version == 0 && code != "" {
		f.Add(at, "is of the 1993 edition only", code)
	}
	if version == 1 && !threeDigits.MatchString(code) {
		f.Add(at, "3 digits (DE 24), such as 100", code)
	}
}
