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
)

// Formats of date and time elements.
const (
	transmissionDateTimeLayout = "0102150405" // DE 7, UTC
	timeLocalLayout            = "150405"     // DE 12
	timeLocalLayout1993        = "060102150405"
	settlementLayout1993       = "060102" // DE 15
	dateLocalLayout            = "0102"   // DE 13
)

// dutyElements are what a reversal or capture repeats of its original, besides DE 2 from the vault, DE 4, 7 and the original data.
// They hold neither the card number nor sensitive authentication data, so they are stored in clear. DE 24 and 26 are 1993's.
var dutyElements = []iso8583.Element{
	iso8583.ProcessingCode, iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal, iso8583.MerchantType,
	iso8583.POSEntryMode, iso8583.POSConditionCode, iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN,
	iso8583.TerminalID, iso8583.CardAcceptorID, iso8583.CardAcceptorNameLocation, iso8583.CurrencyTransaction,
	iso8583.SettlementDate, businessCode,
}

// businessCode is DE 26 of 1993: the card acceptor's business, which 1987 has in DE 18.
const businessCode iso8583.Element = 26

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
	kind, taken := l.config.Types[req.Type]
	if !taken {
		return nil, nil, &Error{Code: CodeValidationFailed, Detail: "1 fault", Faults: []FieldFault{{"type", "link " + a.Link + " does not take it"}}}
	}
	mti, err := iso8583.ParseMTI(kind.MTI)
	if err != nil {
		return nil, nil, fmt.Errorf("link %s: type %s: %w", a.Link, req.Type, err)
	}
	o := &outgoing{message: l.spec.NewMessage(mti)}
	local := a.CreatedAt.In(l.zone)
	o.set(iso8583.PAN, "card.pan", req.Card.PAN.Reveal())
	o.set(iso8583.ProcessingCode, "type", kind.ProcessingCode)
	if a.AmountMinor > 0 || !l.edition1993 {
		o.set(iso8583.AmountTransaction, "amount", pad(a.AmountMinor, 12))
	}
	o.set(iso8583.TransmissionDateTime, "", a.TransmissionDateTime)
	o.set(iso8583.STAN, "", a.STAN)
	l.setEdition(o, req, kind, local)
	o.set(iso8583.SettlementDate, "", l.settlementElement(a))
	o.set(iso8583.ExpirationDate, "card.expiry", req.Card.Expiry)
	o.set(iso8583.POSEntryMode, "pos.entry_mode", req.POS.EntryMode)
	o.set(iso8583.CardSequenceNumber, "card.sequence_number", req.Card.SequenceNumber)
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

// setEdition sets the elements in which the editions of the standard differ: time and place of the sale. In 1993 DE 12 holds date and
// time, DE 24 is the function code, DE 26 the merchant's business, and DE 22 has 12 characters.
func (l *cardLink) setEdition(o *outgoing, req *AuthorizationRequest, kind TypeConfig, local time.Time) {
	if l.edition1993 {
		o.set(iso8583.TimeLocal, "", local.Format(timeLocalLayout1993))
		o.set(iso8583.FunctionCode, "type", kind.FunctionCode)
		o.set(businessCode, "merchant.mcc", req.Merchant.MCC)
		return
	}
	o.set(iso8583.TimeLocal, "", local.Format(timeLocalLayout))
	o.set(iso8583.DateLocal, "", local.Format(dateLocalLayout))
	o.set(iso8583.MerchantType, "merchant.mcc", req.Merchant.MCC)
	if req.POS.ConditionCode == "" {
		o.faults = append(o.faults, FieldFault{"pos.condition_code", "required by this link (DE 25)"})
	}
	o.set(iso8583.POSConditionCode, "pos.condition_code", req.POS.ConditionCode)
}

// settlementElement is DE 15 of an authorisation, where the profile sends it and the scheme has named a business date.
func (l *cardLink) settlementElement(a *Authorization) string {
	if !l.config.SendSettlementDate || a.SettlementDate.IsZero() {
		return ""
	}
	if l.edition1993 {
		return a.SettlementDate.Format(settlementLayout1993)
	}
	return a.SettlementDate.Format(dateLocalLayout)
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
	kept := make(map[string]string, len(dutyElements))
	for _, e := range slices.Concat(dutyElements, l.config.StoredElements) {
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
