package iso8583

import (
	"errors"
	"strconv"
)

// Element is the number of a data element, 2 to 128. Number 1 is the bitmap and 65 would announce a third one, so neither holds data.
type Element uint8

// The data elements that have a name in this program, by their meaning in the 1987 edition; every other one is used by its number.
const (
	PAN                      Element = 2
	ProcessingCode           Element = 3
	AmountTransaction        Element = 4 // minor units, 12 digits
	TransmissionDateTime     Element = 7 // UTC, MMDDhhmmss
	STAN                     Element = 11
	TimeLocal                Element = 12 // hhmmss
	DateLocal                Element = 13 // MMDD
	ExpirationDate           Element = 14 // YYMM
	SettlementDate           Element = 15 // MMDD
	MerchantType             Element = 18
	POSEntryMode             Element = 22
	CardSequenceNumber       Element = 23
	POSConditionCode         Element = 25
	AcquirerID               Element = 32
	ForwarderID              Element = 33
	Track2                   Element = 35
	RRN                      Element = 37
	ApprovalCode             Element = 38
	ResponseCode             Element = 39
	TerminalID               Element = 41
	CardAcceptorID           Element = 42
	CardAcceptorNameLocation Element = 43
	AdditionalData           Element = 48
	CurrencyTransaction      Element = 49 // ISO 4217 numeric
	PINData                  Element = 52
	AdditionalAmounts        Element = 54
	ICCData                  Element = 55
	MAC                      Element = 64
	NetworkManagementCode    Element = 70
	OriginalData             Element = 90 // its content is an OriginalDataElements
	ReplacementAmounts       Element = 95
	ReceiverID               Element = 100
	MACSecondary             Element = 128
)

// The data elements that mean something else in the 1993 edition.
const (
	FunctionCode      Element = 24
	MessageReasonCode Element = 25
	AmountsOriginal   Element = 30 // transaction and reconciliation amount, 12 digits each
	OriginalData1993  Element = 56 // its content is an OriginalDataElements
)

const (
	firstElement  Element = 2
	lastElement   Element = 128
	secondBitmap  Element = 65 // first bit of the second bitmap: announces a third one
	elementNumber         = int(lastElement) + 1
)

var errElementNumber = errors.New("a data element is a number from 2 to 128, and not 65")

// Valid tells whether the number can hold data.
func (e Element) Valid() bool { return e >= firstElement && e <= lastElement && e != secondBitmap }

// String gives "DE 41".
func (e Element) String() string { return "DE " + strconv.Itoa(int(e)) }

// MarshalText gives the bare number, as it stands in profiles.
func (e Element) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, int64(e), 10), nil }

// UnmarshalText reads the bare number, as it stands in profiles.
func (e *Element) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 8)
	if err != nil || !Element(n).Valid() {
		return errElementNumber
	}
	*e = Element(n)
	return nil
}

// ElementError says which data element breaks which rule. It never holds the value.
type ElementError struct {
	Element Element
	Rule    string // what a right value is, or what is wrong
}

func (e *ElementError) Error() string { return e.Element.String() + ": " + e.Rule }
