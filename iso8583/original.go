package iso8583

import (
	"strconv"
	"strings"
	"time"
)

// The parts of DE 90 (1987), in their order: 42 digits. DE 56 (1993) begins with the same two, has DE 12 in place of DE 7, and ends with DE 32
// behind its two digits of length.
const (
	originalSTANDigits        = 6
	originalDateTimeDigits    = 10
	originalLocalTimeDigits   = 12
	originalInstitutionDigits = 11
	originalLengthDigits      = 2
	originalDigits            = mtiDigits + originalSTANDigits + originalDateTimeDigits + 2*originalInstitutionDigits
	originalHeadDigits1993    = mtiDigits + originalSTANDigits + originalLocalTimeDigits + originalLengthDigits

	zeroSTAN = "000000"
	// A leap year, so that 29 February, which DE 7 gives without its year, is a date.
	dateTimeLayout = "20060102150405"
	leapYear       = "2024"
	// DE 12 gives the year without its century.
	century = "20"
)

// OriginalDataElements is the content of DE 90 (1987) or DE 56 (1993): which message a reversal or completion is about, as that message
// was sent.
type OriginalDataElements struct {
	MTI                  MTI
	STAN                 string // DE 11, 6 digits
	TransmissionDateTime string // DE 7, MMDDhhmmss; 1987 only
	LocalDateTime        string // DE 12, YYMMDDhhmmss; 1993 only
	AcquirerID           string // DE 32, up to 11 digits; "" where the original had none
	ForwarderID          string // DE 33, up to 11 digits; 1987 only; "" where the original had none
}

// Encode gives DE 90: 42 digits, institutions right-justified and filled with zeros. The error is an *ElementError of DE 90.
func (o OriginalDataElements) Encode() (string, error) { return o.EncodeFor(Edition1987) }

// EncodeFor gives the content of the edition's element, DE 90 as Encode does or DE 56 of 1993, which has the acquirer behind its length.
// Parts that the edition does not have are left out. The error is an *ElementError of that element.
func (o OriginalDataElements) EncodeFor(edition Edition) (string, error) {
	if err := o.check(edition); err != nil {
		return "", err
	}
	if edition == Edition1993 {
		length := strconv.Itoa(len(o.AcquirerID))
		return o.MTI.String() + o.STAN + o.LocalDateTime + strings.Repeat("0", originalLengthDigits-len(length)) + length + o.AcquirerID, nil
	}
	return o.MTI.String() + o.STAN + o.TransmissionDateTime + zeroFilled(o.AcquirerID) + zeroFilled(o.ForwarderID), nil
}

// ParseOriginalDataElements reads the 42 digits of DE 90. Institutions come without the zeros they were filled with, so an institution's
// own leading zeros are lost: compare them without. The error is an *ElementError of DE 90.
func ParseOriginalDataElements(s string) (OriginalDataElements, error) {
	return ParseOriginalDataElementsFor(Edition1987, s)
}

// ParseOriginalDataElementsFor reads the content of the edition's element, DE 90 or in 1993 DE 56, where the acquirer keeps its zeros.
// The error is an *ElementError of that element.
func ParseOriginalDataElementsFor(edition Edition, s string) (OriginalDataElements, error) {
	element, rule, right := OriginalData, "42 digits", len(s) == originalDigits
	if edition == Edition1993 {
		element, rule = OriginalData1993, "24 digits, of which the last two say how many follow, up to 11"
		right = len(s) >= originalHeadDigits1993 && len(s) <= originalHeadDigits1993+originalInstitutionDigits
	}
	if !right || !digitsOnly(s) {
		return OriginalDataElements{}, &ElementError{element, rule}
	}
	next := func(n int) (part string) { part, s = s[:n], s[n:]; return part }
	mti, err := ParseMTI(next(mtiDigits))
	if err != nil {
		return OriginalDataElements{}, &ElementError{element, err.Error()}
	}
	o := OriginalDataElements{MTI: mti, STAN: next(originalSTANDigits)}
	if edition == Edition1993 {
		o.LocalDateTime = next(originalLocalTimeDigits)
		if n, err := strconv.Atoi(next(originalLengthDigits)); err != nil || n != len(s) {
			return OriginalDataElements{}, &ElementError{element, rule}
		}
		o.AcquirerID = s
	} else {
		o.TransmissionDateTime = next(originalDateTimeDigits)
		o.AcquirerID = strings.TrimLeft(next(originalInstitutionDigits), "0")
		o.ForwarderID = strings.TrimLeft(next(originalInstitutionDigits), "0")
	}
	if err := o.check(edition); err != nil {
		return OriginalDataElements{}, err
	}
	return o, nil
}

// check holds each part against its own element's rule, which is what tells parts that were put together in the wrong order.
func (o OriginalDataElements) check(edition Edition) error {
	element := OriginalData
	if edition == Edition1993 {
		element = OriginalData1993
	}
	fault := func(rule string) error { return &ElementError{element, rule} }
	switch {
	case o.MTI == 0 || !o.MTI.IsRequest() || o.MTI.Class() == 0:
		return fault("the original's message type indicator is that of a request")
	case len(o.STAN) != originalSTANDigits || !digitsOnly(o.STAN) || o.STAN == zeroSTAN:
		return fault("the original's STAN is 6 digits, and not 000000")
	case len(o.AcquirerID) > originalInstitutionDigits || !digitsOnly(o.AcquirerID):
		return fault("the original's acquirer is at most 11 digits")
	}
	if edition == Edition1993 {
		if len(o.LocalDateTime) != originalLocalTimeDigits || !digitsOnly(o.LocalDateTime) || !isTime(century+o.LocalDateTime) {
			return fault("the original's local date and time is YYMMDDhhmmss")
		}
		return nil
	}
	switch {
	case len(o.TransmissionDateTime) != originalDateTimeDigits || !digitsOnly(o.TransmissionDateTime):
		return fault("the original's transmission date and time is 10 digits")
	case len(o.ForwarderID) > originalInstitutionDigits || !digitsOnly(o.ForwarderID):
		return fault("the original's forwarder is at most 11 digits")
	case !isTime(leapYear + o.TransmissionDateTime):
		return fault("the original's transmission date and time is MMDDhhmmss")
	}
	return nil
}

func isTime(digits string) bool {
	_, err := time.Parse(dateTimeLayout, digits)
	return err == nil
}

func zeroFilled(id string) string {
	return strings.Repeat("0", originalInstitutionDigits-len(id)) + id
}
