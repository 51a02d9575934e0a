package gateway

import "github.com/schemegate/schemegate/iso8583"

// Elements of the 1993 edition.
const (
	elementFunctionCode  iso8583.Element = 24
	elementMessageReason iso8583.Element = 25
	elementBusinessCode  iso8583.Element = 26
	elementAmountsBefore iso8583.Element = 30
)
