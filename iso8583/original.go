package iso8583

import (
	"strings"
	"time"
)

// The parts of DE 90, in their order: 42 digits.
const (
	originalSTANDigits        = 6
	originalDateTimeDigits    = 10
	originalInstitutionDigits = 11
	originalDigits            = mtiDigits + originalSTANDigits + originalDateTimeDigits + 2*originalInstitutionDigits

	zeroSTAN = "000000"
	// A leap year, so that 29 February, which DE 7 gives without its year, is a date.
	dateTimeLayout = "20060102150405"
	leapYear       = "2024"
)

// OriginalDataElements is the content of DE 90 (1987): which message a reversal or completion is about, as that message was sent.
type OriginalDataElements struct {
	MTI                  MTI
	STAN                 string // DE 11, 6 digits
	TransmissionDateTime string // DE 7, MMDDhhmmss
	AcquirerID           string // DE 32, up to 11 digits; "" where the original had none
	ForwarderID          string // DE 33, up to 11 digits; "" where the original had none
}

// Encode gives the 42 digits, institutions right-justified and filled with zeros. The error is an *ElementError of DE 90.
func (o OriginalDataElements) Encode() (string, error) {
	if err := o.check(); err != nil {
		return "", err
	}
	return o.MTI.String() + o.STAN + o.TransmissionDateTime + zeroFilled(o.AcquirerID) + zeroFilled(o.ForwarderID), nil
}

// ParseOriginalDataElements reads the 42 digits of DE 90. Institutions come without the zeros they were filled with, so an institution's
// own leading zeros are lost: compare them without. The error is an *ElementError of DE 90.
func ParseOriginalDataElements(s string) (OriginalDataElements, error) {
	if len(s) != originalDigits || numeric.check(OriginalData, s) != nil {
		return OriginalDataElements{}, &ElementError{OriginalData, "42 digits"}
	}
	next := func(n int) (part string) { part, s = s[:n], s[n:]; return part }
	mti, err := ParseMTI(next(mtiDigits))
	if err != nil {
		return OriginalDataElements{}, &ElementError{OriginalData, err.Error()}
	}
	o := OriginalDataElements{MTI: mti, STAN: next(originalSTANDigits), TransmissionDateTime: next(originalDateTimeDigits)}
	o.AcquirerID = strings.TrimLeft(next(originalInstitutionDigits), "0")
	o.ForwarderID = strings.TrimLeft(next(originalInstitutionDigits), "0")
	if err := o.check(); err != nil {
		return OriginalDataElements{}, err
	}
	return o, nil
}

// check holds each part against its own element's rule, which is what tells parts that were put together in the wrong order.
func (o OriginalDataElements) check() error {
	fault := func(rule string) error { return &ElementError{OriginalData, rule} }
	digits := func(s string) bool { return numeric.check(OriginalData, s) == nil }
	switch {
	case o.MTI == 0 || !o.MTI.IsRequest() || o.MTI.Class() == 0:
		return fault("the original's message type indicator is that of a request")
	case len(o.STAN) != originalSTANDigits || !digits(o.STAN) || o.STAN == zeroSTAN:
		return fault("the original's STAN is 6 digits, and not 000000")
	case len(o.TransmissionDateTime) != originalDateTimeDigits || !digits(o.TransmissionDateTime):
		return fault("the original's transmission date and time is 10 digits")
	case len(o.AcquirerID) > originalInstitutionDigits || !digits(o.AcquirerID):
		return fault("the original's acquirer is at most 11 digits")
	case len(o.ForwarderID) > originalInstitutionDigits || !digits(o.ForwarderID):
		return fault("the original's forwarder is at most 11 digits")
	}
	if _, err := time.Parse(dateTimeLayout, leapYear+o.TransmissionDateTime); err != nil {
		return fault("the original's transmission date and time is MMDDhhmmss")
	}
	return nil
}

func zeroFilled(id string) string {
	return strings.Repeat("0", originalInstitutionDigits-len(id)) + id
}
