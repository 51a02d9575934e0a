package gateway

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// Formats of date and time elements.
const (
	transmissionDateTimeLayout = "0102150405" // DE 7, UTC
	timeLocalLayout            = "150405"     // DE 12
	dateLocalLayout            = "0102"       // DE 13
)

// reversalElements are what a reversal repeats of its original, besides DE 2 from the vault, DE 4, 7 and 90. They hold neither
// the card number nor sensitive authentication data, so they are stored in clear.
var reversalElements = []iso8583.Element{
	iso8583.ProcessingCode, iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal, iso8583.MerchantType,
	iso8583.POSEntryMode, iso8583.POSConditionCode, iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN,
	iso8583.TerminalID, iso8583.CardAcceptorID, iso8583.CardAcceptorNameLocation, iso8583.CurrencyTransaction,
}

// outgoing gathers the faults of setting elements, so that a request hears of all of them at once.
type outgoing struct {
	message *iso8583.Message
	faults  []FieldFault
}

func (o *outgoing) set(e iso8583.Element, field, value string) {
	if value == "" {
		return
	}
	o.fault(field, o.message.Set(e, value))
}

func (o *outgoing) setBytes(e iso8583.Element, field string, value []byte) {
	if len(value) == 0 {
		return
	}
	o.fault(field, o.message.SetBytes(e, value))
}

func (o *outgoing) fault(field string, err error) {
	var element *iso8583.ElementError
	switch {
	case err == nil:
	case errors.As(err, &element):
		o.faults = append(o.faults, FieldFault{field, element.Error()})
	default:
		o.faults = append(o.faults, FieldFault{field, "cannot be carried by this link"})
	}
}

// buildRequest makes the 0100 of a new authorisation, and returns it encoded. The message is whole before anything is
// recorded: what cannot be packed fails alone, with nothing claimed and nothing sent.
func (l *cardLink) buildRequest(req *AuthorizationRequest, a *Authorization) (*iso8583.Message, []byte, error) {
	kind := l.config.Types[req.Type]
	mti, err := iso8583.ParseMTI(kind.MTI)
	if err != nil {
		return nil, nil, fmt.Errorf("link %s: type %s: %w", a.Link, req.Type, err)
	}
	o := &outgoing{message: l.spec.NewMessage(mti)}
	local := a.CreatedAt.In(l.zone)
	o.set(iso8583.PAN, "card.pan", req.Card.PAN.Reveal())
	o.set(iso8583.ProcessingCode, "type", kind.ProcessingCode)
	o.set(iso8583.AmountTransaction, "amount", pad(a.AmountMinor, 12))
	o.set(iso8583.TransmissionDateTime, "", a.TransmissionDateTime)
	o.set(iso8583.STAN, "", a.STAN)
	o.set(iso8583.TimeLocal, "", local.Format(timeLocalLayout))
	o.set(iso8583.DateLocal, "", local.Format(dateLocalLayout))
	o.set(iso8583.ExpirationDate, "card.expiry", req.Card.Expiry)
	o.set(iso8583.MerchantType, "merchant.mcc", req.Merchant.MCC)
	o.set(iso8583.POSEntryMode, "pos.entry_mode", req.POS.EntryMode)
	o.set(iso8583.CardSequenceNumber, "card.sequence_number", req.Card.SequenceNumber)
	o.set(iso8583.POSConditionCode, "pos.condition_code", req.POS.ConditionCode)
	acquirer := req.AcquirerID
	if acquirer == "" {
		acquirer = l.config.AcquirerID
	}
	o.set(iso8583.AcquirerID, "acquirer_id", acquirer)
	o.set(iso8583.ForwarderID, "", l.config.ForwarderID)
	o.set(iso8583.Track2, "card.track2", string(req.Card.Track2))
	o.set(iso8583.RRN, "", a.RRN)
	o.set(iso8583.TerminalID, "merchant.terminal_id", padRight(req.Merchant.TerminalID, 8))
	o.set(iso8583.CardAcceptorID, "merchant.acceptor_id", padRight(req.Merchant.AcceptorID, 15))
	if req.Merchant.NameLocation != "" {
		o.set(iso8583.CardAcceptorNameLocation, "merchant.name_location", padRight(req.Merchant.NameLocation, 40))
	}
	o.set(iso8583.CurrencyTransaction, "currency", req.money.Currency.Numeric)
	l.setSensitive(o, req)
	l.setFurther(o, req)
	if len(o.faults) > 0 {
		return nil, nil, &Error{Code: CodeValidationFailed, Detail: "the link's profile cannot carry the request", Faults: o.faults}
	}
	body, err := l.spec.Encode(o.message)
	if err != nil {
		return nil, nil, Errorf(CodeValidationFailed, err, "the request cannot be packed for link %s", a.Link)
	}
	return o.message, body, nil
}

func (l *cardLink) setSensitive(o *outgoing, req *AuthorizationRequest) {
	if req.Card.PINBlock != "" {
		block, err := hex.DecodeString(string(req.Card.PINBlock))
		o.fault("card.pin_block", err)
		o.setBytes(iso8583.PINData, "card.pin_block", block)
	}
	if req.Card.ICC != "" {
		icc, err := decodeICC(string(req.Card.ICC))
		o.fault("card.icc", err)
		o.setBytes(iso8583.ICCData, "card.icc", icc)
	}
}

func (l *cardLink) setFurther(o *outgoing, req *AuthorizationRequest) {
	for _, number := range slices.Sorted(maps.Keys(req.Elements)) {
		n, err := strconv.Atoi(number)
		if err != nil { // validateElements refused it before
			continue
		}
		field, e := "elements."+number, iso8583.Element(n)
		if l.stored[number] && req.holdsOwnPAN(req.Elements[number]) {
			o.faults = append(o.faults, FieldFault{field, ruleNoPAN + ", since this link stores it"})
			continue
		}
		if l.spec.IsBinary(e) {
			value, err := hex.DecodeString(req.Elements[number])
			if err != nil {
				o.faults = append(o.faults, FieldFault{field, "hexadecimal digits, since the element is binary"})
				continue
			}
			o.setBytes(e, field, value)
			continue
		}
		o.set(e, field, req.Elements[number])
	}
}

// storedElements is the JSON of what a reversal will repeat, by element number.
func (l *cardLink) storedElements(m *iso8583.Message) string {
	kept := make(map[string]string, len(reversalElements))
	for _, e := range slices.Concat(reversalElements, l.config.StoredElements) {
		if m.Has(e) {
			kept[strconv.Itoa(int(e))] = m.Get(e)
		}
	}
	text, err := json.Marshal(kept)
	if err != nil { // a map of strings
		panic(fmt.Sprintf("marshal stored elements: %v", err))
	}
	return string(text)
}

// buildReversal makes the 0420 of attempt 1 and the 0421 of each later one from the stored row alone; only the MTI differs
// between attempts. Original data elements name what was sent, never what came back (DE 90).
func (l *cardLink) buildReversal(v *Vault, a *Authorization, d reversal.Duty) (*iso8583.Message, []byte, error) {
	var stored map[string]string
	if err := json.Unmarshal([]byte(a.Elements), &stored); err != nil {
		return nil, nil, errors.New("build reversal: stored elements cannot be read")
	}
	pan, err := v.Open(a.ID, a.PANSealed, a.PANKeyID)
	if err != nil {
		return nil, nil, fmt.Errorf("build reversal: %w", err)
	}
	mti := iso8583.MTIReversalAdvice
	if d.Attempt > 1 {
		mti = mti.Repeat()
	}
	m := l.spec.NewMessage(mti)
	amount := a.AmountMinor
	if a.ApprovedMinor != nil {
		amount = *a.ApprovedMinor
	}
	values := map[iso8583.Element]string{
		iso8583.PAN:                  pan.Reveal(),
		iso8583.AmountTransaction:    pad(amount, 12),
		iso8583.TransmissionDateTime: d.CreatedAt.UTC().Format(transmissionDateTimeLayout),
	}
	if a.ApprovalCode != "" {
		values[iso8583.ApprovalCode] = a.ApprovalCode
	}
	for number, value := range stored {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, nil, errors.New("build reversal: stored elements cannot be read")
		}
		values[iso8583.Element(n)] = value
	}
	original := iso8583.OriginalDataElements{STAN: a.STAN, TransmissionDateTime: a.TransmissionDateTime,
		AcquirerID: values[iso8583.AcquirerID], ForwarderID: values[iso8583.ForwarderID]}
	if original.MTI, err = iso8583.ParseMTI(a.MTI); err != nil {
		return nil, nil, fmt.Errorf("build reversal: %w", err)
	}
	if values[iso8583.OriginalData], err = original.Encode(); err != nil {
		return nil, nil, fmt.Errorf("build reversal: %w", err)
	}
	for _, e := range slices.Sorted(maps.Keys(values)) {
		if err := l.setStored(m, e, values[e]); err != nil {
			return nil, nil, fmt.Errorf("build reversal: %w", err)
		}
	}
	body, err := l.spec.Encode(m)
	if err != nil {
		return nil, nil, fmt.Errorf("build reversal: %w", err)
	}
	return m, body, nil
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

// padRight fills an alphanumeric element of fixed length with spaces.
func padRight(s string, width int) string {
	if len(s) >= width {
		return s
	}
	return s + strings.Repeat(" ", width-len(s))
}

// journal makes the journal row of a message: a masked image and a keyed digest.
func (v *Vault) journal(m *iso8583.Message, kind string, at time.Time) journalRow {
	return journalRow{id: newID(), at: at, kind: kind, mti: m.MTI().String(), responseCode: m.Get(iso8583.ResponseCode),
		image: m.Image(), digest: v.messageDigest(m)}
}
