package gateway

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
)

// Limits of a request. Lengths are in bytes of UTF-8.
const (
	MaxBodyBytes           = 64 << 10
	MaxIdempotencyKeyBytes = 255
	MaxClientReference     = 64
	MaxElements            = 64
	maxFaults              = 64
)

// AuthorizationType is the business meaning of a card authorisation; the link's profile maps it to an MTI and DE 3.
type AuthorizationType string

// The types a profile may map.
const (
	Purchase         AuthorizationType = "purchase"
	Preauthorization AuthorizationType = "preauthorization"
	Cash             AuthorizationType = "cash"
	Refund           AuthorizationType = "refund"
	BalanceInquiry   AuthorizationType = "balance_inquiry"
)

// authorizationTypes are all of them.
var authorizationTypes = []AuthorizationType{Purchase, Preauthorization, Cash, Refund, BalanceInquiry}

const ruleTypes = "purchase, preauthorization, cash, refund or balance_inquiry"

// AuthorizationRequest is the body of POST /v1/authorizations. Amounts are decimal text in the major unit.
type AuthorizationRequest struct {
	ClientReference string            `json:"client_reference"`
	OrderReference  string            `json:"order_reference,omitempty"`
	Type            AuthorizationType `json:"type"`
	Amount          string            `json:"amount"`
	Currency        string            `json:"currency"`
	Card            Card              `json:"card"`
	Merchant        Merchant          `json:"merchant"`
	POS             POS               `json:"pos"`
	AcquirerID      string            `json:"acquirer_id,omitempty"`
	PartialApproval bool              `json:"partial_approval,omitempty"`
	Link            string            `json:"link,omitempty"`
	Elements        furtherElements   `json:"elements,omitempty"`

	money ledger.Money
}

// Card is what identifies the card. Track 2, PIN block and ICC data go to the wire and nowhere else.
type Card struct {
	PAN            iso8583.CardNumber `json:"pan"`
	Expiry         string             `json:"expiry,omitempty"`          // YYMM, DE 14
	SequenceNumber string             `json:"sequence_number,omitempty"` // DE 23
	Track2         secret             `json:"track2,omitempty"`          // DE 35
	PINBlock       secret             `json:"pin_block,omitempty"`       // DE 52, 16 hexadecimal digits
	ICC            secret             `json:"icc,omitempty"`             // DE 55, hexadecimal or base64 BER-TLV
}

// Merchant is the card acceptor, DE 18 and 41 to 43.
type Merchant struct {
	TerminalID   string `json:"terminal_id"`
	AcceptorID   string `json:"acceptor_id"`
	NameLocation string `json:"name_location,omitempty"`
	MCC          string `json:"mcc,omitempty"`
}

// POS is how the card was read, DE 22 and 25.
type POS struct {
	EntryMode     string `json:"entry_mode"`
	ConditionCode string `json:"condition_code"`
}

// secret is sensitive authentication data on its way to the wire: it never prints and never marshals.
type secret string

func (secret) Format(f fmt.State, _ rune)   { io.WriteString(f, "[sensitive]") }
func (secret) MarshalText() ([]byte, error) { return []byte("[sensitive]"), nil }

// furtherElements are data elements by number. Schemes carry verification values in some, so they print by number only.
type furtherElements map[string]string

func (e furtherElements) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, slices.Sorted(maps.Keys(e)))
}

// ParseAuthorizationRequest decodes and validates the body; every fault is reported at once.
func ParseAuthorizationRequest(body []byte) (AuthorizationRequest, error) {
	var req AuthorizationRequest
	if len(body) > MaxBodyBytes {
		return req, Errorf(CodeBodyTooLarge, nil, "at most %d bytes", MaxBodyBytes)
	}
	faults, err := decodeStrict(body, &req)
	if err != nil {
		return req, err
	}
	faults = append(faults, req.validate(faults)...)
	if len(faults) > maxFaults {
		faults = faults[:maxFaults]
	}
	if len(faults) > 0 {
		return req, &Error{Code: CodeValidationFailed, Detail: fmt.Sprintf("%d faults", len(faults)), Faults: faults}
	}
	return req, nil
}

// decodeStrict decodes JSON into dst, collecting unknown members and wrong types as faults instead of stopping at the first.
func decodeStrict(body []byte, dst any) ([]FieldFault, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, Errorf(CodeMalformedBody, nil, "the body is empty")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	var raw map[string]json.RawMessage
	if err := decoder.Decode(&raw); err != nil {
		return nil, malformed(err)
	}
	if raw == nil {
		return nil, Errorf(CodeMalformedBody, nil, "the body is not one JSON object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, Errorf(CodeMalformedBody, nil, "the body goes on after the JSON object")
	}
	if field := duplicateMember(body); field != "" {
		return nil, Errorf(CodeMalformedBody, nil, "a member stands twice in %s", field)
	}
	return decodeObject("", raw, reflect.ValueOf(dst).Elem()), nil
}

// malformed says where JSON breaks, without quoting what stands there.
func malformed(err error) *Error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return Errorf(CodeMalformedBody, nil, "not JSON at byte %d", syntax.Offset)
	}
	return Errorf(CodeMalformedBody, nil, "the body is not one JSON object")
}

func decodeObject(prefix string, raw map[string]json.RawMessage, dst reflect.Value) []FieldFault {
	var faults []FieldFault
	fields := jsonFields(dst.Type())
	names := make([]string, 0, len(raw))
	for name := range raw {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		index, known := fields[name]
		switch {
		case !known:
			faults = append(faults, FieldFault{prefix + printable(name), "this field is not known"})
		case string(raw[name]) == "null":
			faults = append(faults, FieldFault{prefix + name, "null is no value; leave the field out"})
		case dst.Field(index).Kind() == reflect.Struct:
			var inner map[string]json.RawMessage
			if json.Unmarshal(raw[name], &inner) != nil {
				faults = append(faults, FieldFault{prefix + name, "must be an object"})
				continue
			}
			faults = append(faults, decodeObject(prefix+name+".", inner, dst.Field(index))...)
		case dst.Field(index).Kind() == reflect.Map:
			if !decodeStrings(raw[name], dst.Field(index).Addr().Interface()) {
				faults = append(faults, FieldFault{prefix + name, "must be an object of strings"})
			}
		default:
			if json.Unmarshal(raw[name], dst.Field(index).Addr().Interface()) != nil {
				faults = append(faults, FieldFault{prefix + name, "must be a " + jsonKind(dst.Field(index).Type())})
			}
		}
	}
	return faults
}

// decodeStrings decodes an object of strings. A null among them is none: the decoder would make it an empty string.
func decodeStrings(raw json.RawMessage, dst any) bool {
	var members map[string]*string
	if json.Unmarshal(raw, &members) != nil {
		return false
	}
	for _, value := range members {
		if value == nil {
			return false
		}
	}
	return json.Unmarshal(raw, dst) == nil
}

func jsonFields(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" {
			fields[name] = i
		}
	}
	return fields
}

func jsonKind(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Bool {
		return "boolean"
	}
	return "string"
}

// printable keeps a caller's member name from carrying card data or control bytes into an answer.
func printable(name string) string {
	if !fieldName.MatchString(name) {
		return "(unprintable)"
	}
	return name
}

// duplicateMember names the object in which a member stands twice; JSON decoders silently keep one of them.
func duplicateMember(body []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	type level struct {
		seen  map[string]bool
		isKey bool
	}
	var stack []level
	for {
		token, err := decoder.Token()
		if err != nil {
			return ""
		}
		top := len(stack) - 1
		if delim, ok := token.(json.Delim); ok {
			switch delim {
			case '{':
				if top >= 0 {
					stack[top].isKey = stack[top].seen != nil
				}
				stack = append(stack, level{seen: map[string]bool{}, isKey: true})
			case '[':
				if top >= 0 {
					stack[top].isKey = stack[top].seen != nil
				}
				stack = append(stack, level{})
			default:
				stack = stack[:top]
			}
			continue
		}
		if top < 0 || stack[top].seen == nil {
			continue
		}
		if !stack[top].isKey {
			stack[top].isKey = true
			continue
		}
		name := token.(string)
		if stack[top].seen[name] {
			return fmt.Sprintf("the object at depth %d", len(stack))
		}
		stack[top].seen[name] = true
		stack[top].isKey = false
	}
}

var (
	fieldName    = regexp.MustCompile(`^[A-Za-z][A-Za-z_]{0,40}$`)
	reference    = regexp.MustCompile(`^[\x21-\x7e]{1,64}$`)
	digits       = func(n string) *regexp.Regexp { return regexp.MustCompile(`^[0-9]{` + n + `}$`) }
	panDigits    = digits("12,19")
	expiryDigits = regexp.MustCompile(`^[0-9]{2}(0[1-9]|1[0-2])$`)
	threeDigits  = digits("3")
	entryMode    = regexp.MustCompile(`^([0-9]{3}|[0-9A-Za-z]{12})$`)
	fourDigits   = digits("4")
	twoDigits    = digits("2")
	upToEleven   = digits("1,11")
	terminalText = regexp.MustCompile(`^[\x20-\x7e]{1,8}$`)
	acceptorText = regexp.MustCompile(`^[\x20-\x7e]{1,15}$`)
	locationText = regexp.MustCompile(`^[\x20-\x7e]{1,40}$`)
	amountText   = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,4})?$`)
	track2Text   = regexp.MustCompile(`^[0-9]{12,19}[=D][0-9]{1,24}$`)
	pinBlockHex  = regexp.MustCompile(`^[0-9A-Fa-f]{16}$`)
)

// ownedElements are set by the gateway from its own records; a client cannot bring them through `elements`.
var ownedElements = map[iso8583.Element]bool{
	iso8583.PAN: true, iso8583.ProcessingCode: true, iso8583.AmountTransaction: true, iso8583.TransmissionDateTime: true,
	iso8583.STAN: true, iso8583.TimeLocal: true, iso8583.DateLocal: true, iso8583.ExpirationDate: true, iso8583.MerchantType: true,
	iso8583.POSEntryMode: true, iso8583.CardSequenceNumber: true, iso8583.POSConditionCode: true, iso8583.AcquirerID: true,
	iso8583.ForwarderID: true, iso8583.Track2: true, iso8583.RRN: true, iso8583.ApprovalCode: true, iso8583.ResponseCode: true,
	iso8583.TerminalID: true, iso8583.CardAcceptorID: true, iso8583.CardAcceptorNameLocation: true, iso8583.CurrencyTransaction: true,
	iso8583.PINData: true, iso8583.ICCData: true, iso8583.MAC: true, iso8583.NetworkManagementCode: true, iso8583.OriginalData: true,
	iso8583.ReplacementAmounts: true,
}

// validate checks what the decoder could not. Fields already faulted are not reported twice.
func (r *AuthorizationRequest) validate(decoded []FieldFault) []FieldFault {
	var faults []FieldFault
	known := make(map[string]bool, len(decoded))
	for _, f := range decoded {
		known[f.Field] = true
	}
	check := func(field string, ok bool, rule string) {
		if !ok && !known[field] && !known[strings.SplitN(field, ".", 2)[0]] {
			faults = append(faults, FieldFault{field, rule})
		}
	}
	optional := func(field, value string, form *regexp.Regexp, rule string) {
		check(field, value == "" || form.MatchString(value), rule)
	}
	check("client_reference", reference.MatchString(r.ClientReference), "required: 1 to 64 printable characters without spaces")
	check("client_reference", !r.holdsOwnPAN(r.ClientReference), ruleNoPAN)
	optional("order_reference", r.OrderReference, reference, "1 to 64 printable characters without spaces")
	check("order_reference", !r.holdsOwnPAN(r.OrderReference), ruleNoPAN)
	check("type", slices.Contains(authorizationTypes, r.Type), "required: "+ruleTypes)
	check("partial_approval", !r.PartialApproval || r.Type != Refund && r.Type != BalanceInquiry, "a refund or a balance inquiry is not approved in part")
	r.validateAmount(check)
	r.validateCard(check, optional)
	check("merchant.terminal_id", terminalText.MatchString(r.Merchant.TerminalID), "required: 1 to 8 printable characters (DE 41)")
	check("merchant.acceptor_id", acceptorText.MatchString(r.Merchant.AcceptorID), "required: 1 to 15 printable characters (DE 42)")
	optional("merchant.name_location", r.Merchant.NameLocation, locationText, "1 to 40 printable characters (DE 43)")
	check("merchant.acceptor_id", !r.holdsOwnPAN(r.Merchant.AcceptorID), ruleNoPAN)
	check("merchant.name_location", !r.holdsOwnPAN(r.Merchant.NameLocation), ruleNoPAN)
	optional("merchant.mcc", r.Merchant.MCC, fourDigits, "4 digits (DE 18)")
	check("pos.entry_mode", entryMode.MatchString(r.POS.EntryMode), "required: 3 digits, or 12 letters and digits for a link of the 1993 edition (DE 22)")
	optional("pos.condition_code", r.POS.ConditionCode, twoDigits, "2 digits (DE 25)")
	optional("acquirer_id", r.AcquirerID, upToEleven, "1 to 11 digits (DE 32)")
	return append(faults, r.validateElements()...)
}

// ruleNoPAN guards what is stored in clear.
const ruleNoPAN = "must not hold a card number"

// holdsOwnPAN guards what is stored in clear against the request's own card number. Numbers that merely could be one pass: one in ten
// numeric references has a right check digit, and must not be refused for it.
func (r *AuthorizationRequest) holdsOwnPAN(text string) bool {
	plain := strings.NewReplacer(" ", "", "-", "").Replace(text) // people write card numbers in groups
	return panDigits.MatchString(r.Card.PAN.Reveal()) && strings.Contains(plain, r.Card.PAN.Reveal())
}

func (r *AuthorizationRequest) validateAmount(check func(string, bool, string)) {
	currency, ok := ledger.CurrencyByAlpha(r.Currency)
	check("currency", ok, "required: a current ISO 4217 code, such as EUR")
	if !ok {
		check("amount", amountText.MatchString(r.Amount), "required: decimal text, such as \"10.50\" (DE 4)")
		return
	}
	if r.Type == BalanceInquiry { // it moves nothing
		check("amount", r.Amount == "", "a balance inquiry has no amount")
		r.money = ledger.Money{Currency: currency}
		return
	}
	money, err := ledger.ParseMoney(r.Amount, currency)
	check("amount", err == nil, fmt.Sprintf("required: decimal text with at most %d decimals and 12 digits, such as \"10.50\" (DE 4)", currency.Exponent))
	check("amount", err != nil || money.Minor > 0, "must be above zero")
	r.money = money
}

func (r *AuthorizationRequest) validateCard(check func(string, bool, string), optional func(string, string, *regexp.Regexp, string)) {
	check("card.pan", panDigits.MatchString(r.Card.PAN.Reveal()), "required: 12 to 19 digits (DE 2)")
	optional("card.expiry", r.Card.Expiry, expiryDigits, "YYMM (DE 14)")
	optional("card.sequence_number", r.Card.SequenceNumber, threeDigits, "3 digits (DE 23)")
	optional("card.track2", string(r.Card.Track2), track2Text, "PAN, separator = or D, at most 37 characters (DE 35)")
	check("card.track2", len(r.Card.Track2) <= 37, "at most 37 characters (DE 35)")
	check("card.track2", r.Card.Track2 == "" || r.track2Matches(), "must begin with card.pan and a separator: a reversal names the card by its PAN")
	optional("card.pin_block", string(r.Card.PINBlock), pinBlockHex, "16 hexadecimal digits (DE 52)")
	if r.Card.ICC != "" {
		_, err := decodeICC(string(r.Card.ICC))
		check("card.icc", err == nil, "hexadecimal or base64 BER-TLV, at most 255 bytes (DE 55)")
	}
}

// track2Matches tells whether the track is the card's own.
func (r *AuthorizationRequest) track2Matches() bool {
	rest, ok := strings.CutPrefix(string(r.Card.Track2), r.Card.PAN.Reveal())
	return ok && rest != "" && (rest[0] == '=' || rest[0] == 'D')
}

func (r *AuthorizationRequest) validateElements() []FieldFault {
	var faults []FieldFault
	if len(r.Elements) > MaxElements {
		return []FieldFault{{"elements", fmt.Sprintf("at most %d", MaxElements)}}
	}
	for number, value := range r.Elements {
		n, err := strconv.Atoi(number)
		switch {
		case err != nil || n < 2 || n > 128 || strconv.Itoa(n) != number:
			faults = append(faults, FieldFault{"elements", "keys are data element numbers from 2 to 128"})
		case n == 65:
			faults = append(faults, FieldFault{"elements.65", "DE 65 is a bitmap"})
		case n == 36 || n == 45:
			faults = append(faults, FieldFault{"elements." + number, "track data belongs into card.track2"})
		case ownedElements[iso8583.Element(n)]:
			faults = append(faults, FieldFault{"elements." + number, "this element is set by the gateway"})
		case value == "":
			faults = append(faults, FieldFault{"elements." + number, "must not be empty; leave the element out"})
		}
	}
	sort.Slice(faults, func(i, j int) bool { return faults[i].Field < faults[j].Field })
	return faults
}

// decodeICC reads DE 55 from hexadecimal or base64.
func decodeICC(s string) ([]byte, error) {
	raw, err := hex.DecodeString(s)
	if err != nil {
		raw, err = base64.StdEncoding.DecodeString(s)
	}
	if err != nil || len(raw) == 0 || len(raw) > 255 {
		return nil, errors.New("not hexadecimal or base64, or too long")
	}
	if err := iso8583.CheckBERTLV(raw); err != nil {
		return nil, err
	}
	return raw, nil
}

// digestVersion changes when the canonical form does, so that an old digest is never compared with a new one.
const digestVersion = 1

// digest is keyed over the decoded request: two bodies that mean the same give the same digest, whatever their spacing
// and member order. Sensitive authentication data is left out, and even whether it was there: a client must not keep it,
// so its repeat after a crash comes without. For the same reason only those further elements go in that the profile stores:
// schemes carry verification values in the others.
func (r *AuthorizationRequest) digest(key []byte, tenant, endpoint string, stored map[string]bool) []byte {
	canonical := *r
	canonical.Amount = r.money.Text()
	canonical.Card.Track2, canonical.Card.PINBlock, canonical.Card.ICC = "", "", ""
	canonical.Elements = make(furtherElements, len(r.Elements))
	for number, value := range r.Elements {
		if stored[number] {
			canonical.Elements[number] = value
		}
	}
	card := struct {
		PAN, Expiry, SequenceNumber string
	}{r.Card.PAN.Reveal(), r.Card.Expiry, r.Card.SequenceNumber}
	body, err := json.Marshal([]any{digestVersion, tenant, endpoint, &canonical, card})
	if err != nil { // strings, booleans and a string map only
		panic(fmt.Sprintf("marshal request for its digest: %v", err))
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return append([]byte{digestVersion}, mac.Sum(nil)...)
}
