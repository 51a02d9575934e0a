package iso8583

import (
	"errors"
	"slices"
)

// MTI is a message type indicator: four decimal digits, one in each half byte, so that 0x0100 is MTI 0100.
type MTI uint16

// The message types of the 1987 edition that a card link of ours can carry.
const (
	MTIAuthorizationRequest        MTI = 0x0100
	MTIAuthorizationResponse       MTI = 0x0110
	MTIAuthorizationAdvice         MTI = 0x0120
	MTIAuthorizationAdviceRepeat   MTI = 0x0121
	MTIAuthorizationAdviceResponse MTI = 0x0130
	MTIFinancialRequest            MTI = 0x0200
	MTIFinancialResponse           MTI = 0x0210
	MTIFinancialAdvice             MTI = 0x0220
	MTIFinancialAdviceRepeat       MTI = 0x0221
	MTIFinancialAdviceResponse     MTI = 0x0230
	MTIReversalRequest             MTI = 0x0400
	MTIReversalRequestRepeat       MTI = 0x0401
	MTIReversalResponse            MTI = 0x0410
	MTIReversalAdvice              MTI = 0x0420
	MTIReversalAdviceRepeat        MTI = 0x0421
	MTIReversalAdviceResponse      MTI = 0x0430
	MTINetworkManagementRequest    MTI = 0x0800
	MTINetworkManagementRepeat     MTI = 0x0801
	MTINetworkManagementResponse   MTI = 0x0810
)

// defaultMTIs is what a profile without a list of its own accepts and sends.
var defaultMTIs = []MTI{
	MTIAuthorizationRequest, MTIAuthorizationResponse,
	MTIAuthorizationAdvice, MTIAuthorizationAdviceRepeat, MTIAuthorizationAdviceResponse,
	MTIFinancialRequest, MTIFinancialResponse,
	MTIFinancialAdvice, MTIFinancialAdviceRepeat, MTIFinancialAdviceResponse,
	MTIReversalRequest, MTIReversalRequestRepeat, MTIReversalResponse,
	MTIReversalAdvice, MTIReversalAdviceRepeat, MTIReversalAdviceResponse,
	MTINetworkManagementRequest, MTINetworkManagementRepeat, MTINetworkManagementResponse,
}

// defaultMTIs1993 is the same for the 1993 edition, whose network management comes from neither acquirer nor issuer, and is an advice
// with some hosts.
var defaultMTIs1993 = []MTI{
	0x1100, 0x1110, 0x1120, 0x1121, 0x1130, 0x1200, 0x1210, 0x1220, 0x1221, 0x1230,
	0x1400, 0x1401, 0x1410, 0x1420, 0x1421, 0x1430, 0x1804, 0x1805, 0x1814, 0x1820, 0x1821, 0x1830,
}

const (
	mtiDigits = 4
	// From function 8 and origin 6 on the digits are private or reserved: they form no pairs and have no repeat bit.
	pairedFunctions   = 8
	repeatableOrigins = 6

	functionBit MTI = 0x0010 // set in the answering half of a function pair
	repeatBit   MTI = 0x0001 // set in the repeat of an origin
)

var errMTIDigits = errors.New("a message type indicator is 4 digits")

// ParseMTI reads four digits.
func ParseMTI(s string) (MTI, error) {
	if len(s) != mtiDigits {
		return 0, errMTIDigits
	}
	var m MTI
	for i := range mtiDigits {
		digit := s[i] - '0'
		if digit > 9 {
			return 0, errMTIDigits
		}
		m = m<<4 | MTI(digit)
	}
	return m, nil
}

// String gives the four digits.
func (m MTI) String() string {
	return string([]byte{'0' + m.Version(), '0' + m.Class(), '0' + m.Function(), '0' + m.Origin()})
}

// MarshalText gives the four digits.
func (m MTI) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads four digits.
func (m *MTI) UnmarshalText(text []byte) error {
	parsed, err := ParseMTI(string(text))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}

// Version is the first digit: 0 for the 1987 edition, 1 for that of 1993.
func (m MTI) Version() uint8 { return uint8(m >> 12 & 0xF) }

// Class is the second digit: 1 authorisation, 2 financial, 4 reversal, 8 network management.
func (m MTI) Class() uint8 { return uint8(m >> 8 & 0xF) }

// Function is the third digit: 0 request, 1 its response, 2 advice, 3 its response.
func (m MTI) Function() uint8 { return uint8(m >> 4 & 0xF) }

// Origin is the fourth digit: 0 acquirer, 1 its repeat, 2 issuer, 3 its repeat, 4 other, 5 its repeat.
func (m MTI) Origin() uint8 { return uint8(m & 0xF) }

// IsRequest tells that the message asks for an answer: a request, advice, notification or instruction.
func (m MTI) IsRequest() bool { return m.Function() < pairedFunctions && m&functionBit == 0 }

// IsResponse tells that the message is the answer to such a one.
func (m MTI) IsResponse() bool { return m.Function() < pairedFunctions && m&functionBit != 0 }

// IsRepeat tells that the message says of itself that it was sent before.
func (m MTI) IsRepeat() bool { return m.Origin() < repeatableOrigins && m&repeatBit != 0 }

// WithoutRepeat is the type of the message that this one repeats, 0420 for 0421; itself when it is no repeat.
func (m MTI) WithoutRepeat() MTI {
	if m.IsRepeat() {
		return m &^ repeatBit
	}
	return m
}

// Repeat is the type under which a request goes out again, 0421 for 0420. Responses are not repeated under a type of their own: they
// and private types stay what they are.
func (m MTI) Repeat() MTI {
	if m.IsRequest() && m.Origin() < repeatableOrigins {
		return m | repeatBit
	}
	return m
}

// Response is the type of the answer to a request; the answer to a repeat is the same as to its first sending, 0430 for 0421.
// What is no request stays what it is.
func (m MTI) Response() MTI {
	if m.IsRequest() {
		return m.WithoutRepeat() | functionBit
	}
	return m
}

// Exchange is one type for a request, its repeats and its response, that of the request: 0110 gives 0100, 0421 and 0430 give 0420. The
// class stays, since a reversal may carry the STAN of its original.
func (m MTI) Exchange() MTI {
	if m.IsResponse() {
		m &^= functionBit
	}
	return m.WithoutRepeat()
}

func containsMTI(list []MTI, m MTI) bool { return slices.Contains(list, m) }
