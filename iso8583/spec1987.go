package iso8583

// exposure is how an element appears where people read it. What the table does not open is closed.
type exposure uint8

const (
	hidden   exposure = iota // only that it is present
	masked                   // as a card number: first six and last four digits
	shown                    // as it is, with anything in it that looks like a card number masked
	verbatim                 // as it is: long rows of digits of which each has its meaning
)

// definition is one line of the standard's table of data elements.
type definition struct {
	element  Element
	format   format
	prefix   uint8
	length   uint16
	exposure exposure
	name     string
}

const (
	fixed  = 0 // no length in front
	lvar   = 1 // one digit
	llvar  = 2
	lllvar = 3
)

// table1987 is ISO 8583:1987, in its order. Formats and lengths that hosts are known to bend are profile data: SpecConfig.Elements.
var table1987 = [...]definition{
	{2, numeric, llvar, 19, masked, "Primary account number"},
	{3, numeric, fixed, 6, shown, "Processing code"},
	{4, numeric, fixed, 12, shown, "Amount, transaction"},
	{5, numeric, fixed, 12, shown, "Amount, settlement"},
	{6, numeric, fixed, 12, shown, "Amount, cardholder billing"},
	{7, numeric, fixed, 10, shown, "Transmission date and time"},
	{8, numeric, fixed, 8, shown, "Amount, cardholder billing fee"},
	{9, numeric, fixed, 8, shown, "Conversion rate, settlement"},
	{10, numeric, fixed, 8, shown, "Conversion rate, cardholder billing"},
	{11, numeric, fixed, 6, shown, "Systems trace audit number"},
	{12, numeric, fixed, 6, shown, "Time, local transaction"},
	{13, numeric, fixed, 4, shown, "Date, local transaction"},
	{14, numeric, fixed, 4, hidden, "Date, expiration"},
	{15, numeric, fixed, 4, shown, "Date, settlement"},
	{16, numeric, fixed, 4, shown, "Date, conversion"},
	{17, numeric, fixed, 4, shown, "Date, capture"},
	{18, numeric, fixed, 4, shown, "Merchant type"},
	{19, numeric, fixed, 3, shown, "Acquiring institution country code"},
	{20, numeric, fixed, 3, shown, "PAN extended country code"},
	{21, numeric, fixed, 3, shown, "Forwarding institution country code"},
	{22, numeric, fixed, 3, shown, "Point of service entry mode"},
	{23, numeric, fixed, 3, shown, "Card sequence number"},
	{24, numeric, fixed, 3, shown, "Network international identifier"},
	{25, numeric, fixed, 2, shown, "Point of service condition code"},
	{26, numeric, fixed, 2, shown, "Point of service PIN capture code"},
	{27, numeric, fixed, 1, shown, "Authorization identification response length"},
	{28, signed, fixed, 9, shown, "Amount, transaction fee"},
	{29, signed, fixed, 9, shown, "Amount, settlement fee"},
	{30, signed, fixed, 9, shown, "Amount, transaction processing fee"},
	{31, signed, fixed, 9, shown, "Amount, settlement processing fee"},
	{32, numeric, llvar, 11, shown, "Acquiring institution identification code"},
	{33, numeric, llvar, 11, shown, "Forwarding institution identification code"},
	{34, anyText, llvar, 28, hidden, "Primary account number, extended"},
	{35, track, llvar, 37, hidden, "Track 2 data"},
	{36, track, lllvar, 104, hidden, "Track 3 data"},
	{37, alphanumeric, fixed, 12, shown, "Retrieval reference number"},
	{38, alphanumeric, fixed, 6, shown, "Authorization identification response"},
	{39, alphanumeric, fixed, 2, shown, "Response code"},
	{40, alphanumeric, fixed, 3, hidden, "Service restriction code"},
	{41, anyText, fixed, 8, shown, "Card acceptor terminal identification"},
	{42, anyText, fixed, 15, shown, "Card acceptor identification code"},
	{43, anyText, fixed, 40, shown, "Card acceptor name and location"},
	{44, anyText, llvar, 25, hidden, "Additional response data"},
	{45, track, llvar, 76, hidden, "Track 1 data"},
	{46, anyText, lllvar, 999, hidden, "Additional data, ISO"},
	{47, anyText, lllvar, 999, hidden, "Additional data, national"},
	{48, anyText, lllvar, 999, hidden, "Additional data, private"},
	{49, alphanumeric, fixed, 3, shown, "Currency code, transaction"},
	{50, alphanumeric, fixed, 3, shown, "Currency code, settlement"},
	{51, alphanumeric, fixed, 3, shown, "Currency code, cardholder billing"},
	{52, opaque, fixed, 8, hidden, "Personal identification number data"},
	{53, numeric, fixed, 16, hidden, "Security related control information"},
	{54, alphanumeric, lllvar, 120, hidden, "Additional amounts"},
	{55, berTLV, lllvar, 255, hidden, "Integrated circuit card data"},
	{56, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{57, anyText, lllvar, 999, hidden, "Reserved, national"},
	{58, anyText, lllvar, 999, hidden, "Reserved, national"},
	{59, anyText, lllvar, 999, hidden, "Reserved, national"},
	{60, anyText, lllvar, 999, hidden, "Reserved, private"},
	{61, anyText, lllvar, 999, hidden, "Reserved, private"},
	{62, anyText, lllvar, 999, hidden, "Reserved, private"},
	{63, anyText, lllvar, 999, hidden, "Reserved, private"},
	{64, opaque, fixed, 8, hidden, "Message authentication code"},
	{66, numeric, fixed, 1, shown, "Settlement code"},
	{67, numeric, fixed, 2, shown, "Extended payment code"},
	{68, numeric, fixed, 3, shown, "Receiving institution country code"},
	{69, numeric, fixed, 3, shown, "Settlement institution country code"},
	{70, numeric, fixed, 3, shown, "Network management information code"},
	{71, numeric, fixed, 4, shown, "Message number"},
	{72, numeric, fixed, 4, shown, "Message number, last"},
	{73, numeric, fixed, 6, shown, "Date, action"},
	{74, numeric, fixed, 10, shown, "Credits, number"},
	{75, numeric, fixed, 10, shown, "Credits, reversal number"},
	{76, numeric, fixed, 10, shown, "Debits, number"},
	{77, numeric, fixed, 10, shown, "Debits, reversal number"},
	{78, numeric, fixed, 10, shown, "Transfer, number"},
	{79, numeric, fixed, 10, shown, "Transfer, reversal number"},
	{80, numeric, fixed, 10, shown, "Inquiries, number"},
	{81, numeric, fixed, 10, shown, "Authorizations, number"},
	{82, numeric, fixed, 12, shown, "Credits, processing fee amount"},
	{83, numeric, fixed, 12, shown, "Credits, transaction fee amount"},
	{84, numeric, fixed, 12, shown, "Debits, processing fee amount"},
	{85, numeric, fixed, 12, shown, "Debits, transaction fee amount"},
	{86, numeric, fixed, 16, shown, "Credits, amount"},
	{87, numeric, fixed, 16, shown, "Credits, reversal amount"},
	{88, numeric, fixed, 16, shown, "Debits, amount"},
	{89, numeric, fixed, 16, shown, "Debits, reversal amount"},
	{90, numeric, fixed, 42, verbatim, "Original data elements"},
	{91, alphanumeric, fixed, 1, hidden, "File update code"},
	{92, alphanumeric, fixed, 2, hidden, "File security code"},
	{93, alphanumeric, fixed, 5, hidden, "Response indicator"},
	{94, alphanumeric, fixed, 7, hidden, "Service indicator"},
	{95, alphanumeric, fixed, 42, verbatim, "Replacement amounts"},
	{96, opaque, fixed, 8, hidden, "Message security code"},
	{97, signed, fixed, 17, shown, "Amount, net settlement"},
	{98, anyText, fixed, 25, hidden, "Payee"},
	{99, numeric, llvar, 11, shown, "Settlement institution identification code"},
	{100, numeric, llvar, 11, shown, "Receiving institution identification code"},
	{101, anyText, llvar, 17, hidden, "File name"},
	{102, anyText, llvar, 28, hidden, "Account identification 1"},
	{103, anyText, llvar, 28, hidden, "Account identification 2"},
	{104, anyText, lllvar, 100, hidden, "Transaction description"},
	{105, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{106, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{107, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{108, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{109, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{110, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{111, anyText, lllvar, 999, hidden, "Reserved, ISO"},
	{112, anyText, lllvar, 999, hidden, "Reserved, national"},
	{113, anyText, lllvar, 999, hidden, "Reserved, national"},
	{114, anyText, lllvar, 999, hidden, "Reserved, national"},
	{115, anyText, lllvar, 999, hidden, "Reserved, national"},
	{116, anyText, lllvar, 999, hidden, "Reserved, national"},
	{117, anyText, lllvar, 999, hidden, "Reserved, national"},
	{118, anyText, lllvar, 999, hidden, "Reserved, national"},
	{119, anyText, lllvar, 999, hidden, "Reserved, national"},
	{120, anyText, lllvar, 999, hidden, "Reserved, private"},
	{121, anyText, lllvar, 999, hidden, "Reserved, private"},
	{122, anyText, lllvar, 999, hidden, "Reserved, private"},
	{123, anyText, lllvar, 999, hidden, "Reserved, private"},
	{124, anyText, lllvar, 999, hidden, "Reserved, private"},
	{125, anyText, lllvar, 999, hidden, "Reserved, private"},
	{126, anyText, lllvar, 999, hidden, "Reserved, private"},
	{127, anyText, lllvar, 999, hidden, "Reserved, private"},
	{128, opaque, fixed, 8, hidden, "Message authentication code"},
}
