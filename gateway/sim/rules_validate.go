package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

func (r Rule) validate(path string, f *configs.Faults) {
	r.When.validate(path+".when", f)
	r.Then.validate(path+".then", f)
	if len(r.Mix) > maxShares {
		f.Add(path+".mix", fmt.Sprintf("has at most %d actions", maxShares), len(r.Mix))
	}
	if len(r.Mix) > 0 && !reflect.ValueOf(r.Then).IsZero() {
		f.Add(path+".mix", "stands in the place of then", nil)
	}
	for i, share := range r.Mix {
		at := path + ".mix." + strconv.Itoa(i)
		if share.Weight < 1 || share.Weight > maxWeight {
			f.Add(at+".weight", fmt.Sprintf("is 1 to %d", maxWeight), share.Weight)
		}
		share.Then.validate(at+".then", f)
	}
}

// validateElements holds the elements to set against the dialect.
func (r Rule) validateElements(path string, spec *iso8583.Spec, f *configs.Faults) {
	r.Then.validateElements(path+".then", spec, f)
	for i, share := range r.Mix {
		share.Then.validateElements(path+".mix."+strconv.Itoa(i)+".then", spec, f)
	}
}

func (m Match) validate(path string, f *configs.Faults) {
	for i, mti := range m.MTI {
		if _, err := iso8583.ParseMTI(mti); err != nil {
			f.Add(path+".mti."+strconv.Itoa(i), "is a message type of 4 digits, like 0100", mti)
		}
	}
	for key, text := range map[string]string{"amount": m.Amount, "amount_from": m.AmountFrom, "amount_to": m.AmountTo} {
		if _, err := parseAmount(text); err != nil && text != "" {
			f.Add(path+"."+key, err.Error(), text)
		}
	}
	for key, digits := range map[string]string{"pan_prefix": m.PANPrefix, "pan_from": m.PANFrom, "pan_to": m.PANTo} {
		if strings.Trim(digits, "0123456789") != "" {
			f.Add(path+"."+key, "is the first digits of a card number", nil)
		}
	}
	if len(m.PANFrom) != len(m.PANTo) {
		f.Add(path+".pan_from", "has as many digits as pan_to", nil)
	}
	for key, n := range map[string]int{"first": m.First, "after": m.After, "every": m.Every} {
		if n < 0 {
			f.Add(path+"."+key, "is not negative", n)
		}
	}
	if m.Per != "" && m.Per != PerRule && m.Per != PerOriginal {
		f.Add(path+".per", "is rule or original", m.Per)
	}
}

func (a Action) validate(path string, f *configs.Faults) {
	switch a.Answer {
	case AnswerLost:
	case "", AnswerApprove:
		if a.ResponseCode != "" && (!isApproval(a.ResponseCode) || isPartial(a.ResponseCode)) {
			f.Add(path+".response_code", "of an approval is 00, 08, 11 or 16; for others the answer is decline", a.ResponseCode)
		}
	case AnswerDecline:
		if a.ResponseCode == "" {
			f.Add(path+".response_code", "is needed for a decline", nil)
		}
		if isApproval(a.ResponseCode) {
			f.Add(path+".response_code", "of a decline is none that approves", a.ResponseCode)
		}
	case AnswerPartial:
		if a.ResponseCode != "" && !isPartial(a.ResponseCode) {
			f.Add(path+".response_code", "of a partial approval is 10", a.ResponseCode)
		}
		if _, err := parseAmount(a.Amount); a.Amount != "" && err != nil {
			f.Add(path+".amount", err.Error(), a.Amount)
		}
		if a.Amount == "" && (a.Percent < 1 || a.Percent > 99) {
			f.Add(path+".percent", "is 1 to 99, or an amount is given", a.Percent)
		}
	default:
		f.Add(path+".answer", "is approve, decline, partial or lost", a.Answer)
	}
	if a.ResponseCode != "" {
		checkResponseCode(path+".response_code", a.ResponseCode, f)
	}
	a.validateDelivery(path, f)
}

// validateDelivery checks how the answer travels, and what comes with it.
func (a Action) validateDelivery(path string, f *configs.Faults) {
	oneOf := func(key, text string, known ...string) {
		if text != "" && !slices.Contains(known, text) {
			f.Add(path+"."+key, "is "+strings.Join(known[:len(known)-1], ", ")+" or "+known[len(known)-1], text)
		}
	}
	oneOf("deliver", a.Deliver, DeliverOnce, DeliverSilent, DeliverTwice, DeliverSplit, DeliverGlued, DeliverHangUpBefore, DeliverHangUpAfter,
		DeliverTrickle, DeliverReversed, DeliverOtherConnection)
	oneOf("damage", a.Damage, DamageCut, DamageBitmap, DamageMTI, DamageFlip)
	oneOf("also", a.Also, AlsoCutover, AlsoSignOff, AlsoSignOn, AlsoBounce, AlsoStall, AlsoKeepAlive, AlsoEchoStorm)
	for key, n := range map[string]struct{ value, most int }{"copies": {a.Copies, maxCopies}, "batch": {a.Batch, maxBatch},
		"interim": {a.Interim, maxInterim}, "times": {a.Times, maxStorm}} {
		if n.value < 0 || n.value > n.most {
			f.Add(path+"."+key, fmt.Sprintf("is 0 to %d", n.most), n.value)
		}
	}
}

// validateElements holds the elements to set against the dialect.
func (a Action) validateElements(path string, spec *iso8583.Spec, f *configs.Faults) {
	m := spec.NewMessage(iso8583.MTINetworkManagementRequest)
	for e, value := range a.Set {
		if err := m.Set(e, value); err != nil {
			f.Add(fmt.Sprintf("%s.set.%d", path, e), err.Error(), nil)
		}
	}
}
