package gateway

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// buildDuty makes the message of one attempt of a duty from stored rows alone: attempt 1 under the profile's MTI, each later one
// under its repeat. Only the MTI differs between attempts.
func (l *cardLink) buildDuty(v *Vault, a *Authorization, d reversal.Duty) (*iso8583.Message, []byte, error) {
	text, amount := l.config.Reversal.MTI, a.AmountMinor
	if a.ApprovedMinor != nil {
		amount = *a.ApprovedMinor
	}
	if d.Kind == reversal.Capture || d.Undoes != nil {
		amount = d.AmountMinor
	}
	if d.Kind == reversal.Capture {
		text = l.config.Captures.MTI
	}
	mti, err := iso8583.ParseMTI(text)
	if err != nil {
		return nil, nil, fmt.Errorf("build duty: %w", err)
	}
	if d.Attempt > 1 { // of a reopened one too: what closed it answered the first
		mti = mti.Repeat()
	}
	values, err := l.dutyValues(v, a, d)
	if err != nil {
		return nil, nil, fmt.Errorf("build duty: %w", err)
	}
	values[iso8583.AmountTransaction] = pad(amount, amountDigits)
	if err := l.setKind(values, a, d); err != nil {
		return nil, nil, fmt.Errorf("build duty: %w", err)
	}
	m := l.spec.NewMessage(mti)
	for _, e := range slices.Sorted(maps.Keys(values)) {
		if err := l.setStored(m, e, values[e]); err != nil {
			return nil, nil, fmt.Errorf("build duty: %w", err)
		}
	}
	body, err := l.spec.Encode(m)
	if err != nil {
		return nil, nil, fmt.Errorf("build duty: %w", err)
	}
	return m, body, nil
}

const (
	amountDigits = 12
	feeDigits    = 18 // the two fee amounts of DE 95, and what stands for them
)

// dutyValues are the elements that every duty takes from its authorisation, and its own STAN and time.
func (l *cardLink) dutyValues(v *Vault, a *Authorization, d reversal.Duty) (map[iso8583.Element]string, error) {
	var stored map[string]string
	if err := json.Unmarshal([]byte(a.Elements), &stored); err != nil {
		return nil, errors.New("stored elements cannot be read")
	}
	pan, err := v.Open(a.ID, a.PANSealed, a.PANKeyID)
	if err != nil {
		return nil, err
	}
	values := map[iso8583.Element]string{
		iso8583.PAN:                  pan.Reveal(),
		iso8583.TransmissionDateTime: d.CreatedAt.UTC().Format(transmissionDateTimeLayout),
	}
	if a.ApprovalCode != "" {
		values[iso8583.ApprovalCode] = a.ApprovalCode
	}
	for number, value := range stored {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, errors.New("stored elements cannot be read")
		}
		values[iso8583.Element(n)] = value
	}
	original, err := l.originalData(a, d, values)
	if err != nil {
		return nil, err
	}
	values[l.spec.OriginalElement()] = original
	if d.STAN != "" {
		values[iso8583.STAN] = d.STAN
	}
	return values, nil
}

// setKind sets what tells one kind of duty from another: the amount that stays in a partial reversal, and in 1993 function code and
// reason.
func (l *cardLink) setKind(values map[iso8583.Element]string, a *Authorization, d reversal.Duty) error {
	partial := d.Kind == reversal.Reversal && d.Number > 0 && d.Undoes == nil
	if l.edition1993 {
		switch {
		case d.Kind == reversal.Capture:
			values[iso8583.FunctionCode] = l.config.Captures.FunctionCode
		case partial:
			values[iso8583.FunctionCode] = functionPartialReversal
			values[iso8583.MessageReasonCode] = reasonCode(d.Reason)
		default:
			values[iso8583.FunctionCode] = functionFullReversal
			values[iso8583.MessageReasonCode] = reasonCode(d.Reason)
		}
	}
	if !partial {
		return nil
	}
	if a.ApprovedMinor == nil || d.AmountMinor > *a.ApprovedMinor {
		return errors.New("a partial reversal needs an approved amount")
	}
	switch l.config.Reversal.Partial {
	case partialReplacement:
		values[iso8583.ReplacementAmounts] = pad(d.StandingMinor, amountDigits) + pad(0, amountDigits) + pad(0, feeDigits)
	case partialOriginal:
		values[iso8583.AmountsOriginal] = pad(*a.ApprovedMinor, amountDigits) + pad(0, amountDigits)
		values[iso8583.AmountTransaction] = pad(d.StandingMinor, amountDigits)
	case partialAmount:
		values[iso8583.AmountTransaction] = pad(d.AmountMinor, amountDigits)
	}
	return nil
}

// originalData names what was sent, never what came back: the authorisation, or the capture that a reversal undoes.
func (l *cardLink) originalData(a *Authorization, d reversal.Duty, values map[iso8583.Element]string) (string, error) {
	original := iso8583.OriginalDataElements{STAN: a.STAN, TransmissionDateTime: a.TransmissionDateTime, LocalDateTime: values[iso8583.TimeLocal],
		AcquirerID: values[iso8583.AcquirerID], ForwarderID: values[iso8583.ForwarderID]}
	text := a.MTI
	if d.Undoes != nil {
		text = l.config.Captures.MTI
		original.STAN, original.TransmissionDateTime = d.Undoes.STAN, d.Undoes.CreatedAt.UTC().Format(transmissionDateTimeLayout)
	}
	var err error
	if original.MTI, err = iso8583.ParseMTI(text); err != nil {
		return "", err
	}
	return original.EncodeFor(l.spec.Edition())
}

// Values of DE 24 and DE 25 in 1993.
const (
	functionFullReversal    = "400"
	functionPartialReversal = "401"
)

// reasonCode is DE 25 of a reversal in 1993.
func reasonCode(r reversal.Reason) string {
	switch r {
	case reversal.Customer:
		return "4000"
	case reversal.Undecodable, reversal.Contradiction, reversal.UnlistedCode, reversal.UnrequestedPartialApproval:
		return "4020"
	case reversal.Undelivered:
		return "4013"
	}
	return "4021"
}

// setStored sets an element from its stored text, which of a binary one is hexadecimal.
func (l *cardLink) setStored(m *iso8583.Message, e iso8583.Element, text string) error {
	if !l.spec.IsBinary(e) {
		return m.Set(e, text)
	}
	value, err := hex.DecodeString(text)
	if err != nil {
		return fmt.Errorf("%s: stored value is not hexadecimal", e)
	}
	return m.SetBytes(e, value)
}
