package link

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// NetworkDialect names a preset of network management: the message type, the codes and the elements of one family of hosts.
type NetworkDialect string

// The presets. None binds a profile: each value of one can be overridden.
const (
	NetworkISO1987 NetworkDialect = "iso1987" // 0800 with the code in DE 70
	NetworkMDS     NetworkDialect = "mds"     // the same with the codes of the Mastercard Debit Switch
	NetworkISO1993 NetworkDialect = "iso1993" // 1804 with the function code in DE 24
)

const (
	networkCodeDigits = 3 // DE 70 and DE 24 are n3
	minSTAN           = 1
	maxSTAN           = 999_999

	ruleOwn = "is set by the link itself"
)

// NetworkConfig says how network management (class 8) is written. What is left out is as in the dialect.
type NetworkConfig struct {
	// Dialect is iso1987, mds or iso1993; empty is iso1993 for a spec of that edition and iso1987 for any other.
	Dialect NetworkDialect `yaml:"dialect"`
	// RequestMTI is the type of our own requests, such as 0800, 0820 or 1804. It is text, since YAML takes a number with a leading zero
	// for something else.
	RequestMTI string `yaml:"request_mti"`
	// CodeElement carries the code: 70 or 24.
	CodeElement ElementOrNone `yaml:"code_element"`
	// BusinessDateElement carries the new settlement date in the peer's cutover request: 15 or 28.
	BusinessDateElement ElementOrNone `yaml:"business_date_element"`
	// ClockElements are filled with the time of our request, in UTC, in the named form: MMDDhhmmss, YYMMDDhhmmss, YYMMDD, MMDD or hhmmss.
	ClockElements map[iso8583.Element]string `yaml:"clock_elements"`
	// SignOffElements go into our sign-off instead of those of SignOn.Elements.
	SignOffElements map[iso8583.Element]string `yaml:"sign_off_elements"`
	// Approved are the response codes (DE 39) that mean yes. The first one is what our answers carry.
	Approved []string `yaml:"approved"`
	// NotSupported is the response code of our answer to a code that this link does not serve.
	NotSupported string `yaml:"not_supported"`
}

// ElementOrNone is a data element in a profile, or none, written as empty text.
type ElementOrNone iso8583.Element

// UnmarshalText reads an element's number, or nothing.
func (e *ElementOrNone) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*e = 0
		return nil
	}
	return (*iso8583.Element)(e).UnmarshalText(text)
}

// NetworkCodes are the codes of network management (DE 70, or DE 24 in the 1993 edition), which differ between schemes. Empty ones
// are as in the dialect.
type NetworkCodes struct {
	SignOn  string `yaml:"sign_on"`
	SignOff string `yaml:"sign_off"`
	Echo    string `yaml:"echo"`
	// Cutover is the peer's notice of a new business date.
	Cutover string `yaml:"cutover"`
	// Accept are further codes of the peer's requests that are answered with yes. A code that is in no list is answered with "function
	// not supported": agreeing to a key change that nobody makes would be a lie.
	Accept []string `yaml:"accept"`
}

// STANRange is from which to which number the link counts DE 11 of its own class 8 requests, both included.
type STANRange struct {
	From uint32 `yaml:"from"`
	To   uint32 `yaml:"to"`
}

// networkTable is network management with every value filled in.
type networkTable struct {
	requestMTI   iso8583.MTI
	code         iso8583.Element
	businessDate iso8583.Element
	clock        map[iso8583.Element]string
	codes        NetworkCodes
	approved     []string
	notSupported string
	answer       []iso8583.Element
	signOn       map[iso8583.Element]string
	ownSignOff   map[iso8583.Element]string // empty: as in the sign-on
	echo         map[iso8583.Element]string
}

// dateReconciliation1993 is the 1993 edition's; in 1987 the number means something else.
const dateReconciliation1993 iso8583.Element = 28

// networkDialects are the presets. The codes are those that hosts of the family commonly use; schemes differ, and so may profiles.
var networkDialects = map[NetworkDialect]networkTable{
	NetworkISO1987: preset1987(NetworkCodes{SignOn: "001", SignOff: "002", Echo: "301", Cutover: "201"}),
	NetworkMDS:     preset1987(NetworkCodes{SignOn: "061", SignOff: "062", Echo: "270"}),
	NetworkISO1993: {
		requestMTI: 0x1804, code: iso8583.FunctionCode, businessDate: dateReconciliation1993,
		clock:    map[iso8583.Element]string{iso8583.TransmissionDateTime: "MMDDhhmmss", iso8583.TimeLocal: "YYMMDDhhmmss"},
		codes:    NetworkCodes{SignOn: "801", SignOff: "802", Echo: "831", Cutover: "821"},
		approved: []string{"800", "000"}, notSupported: "115", // accepted; requested function not supported
		answer: []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TimeLocal, iso8583.FunctionCode, dateReconciliation1993,
			iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID, iso8583.CardAcceptorID, 93, 94, iso8583.ReceiverID},
	},
}

func preset1987(codes NetworkCodes) networkTable {
	return networkTable{
		requestMTI: iso8583.MTINetworkManagementRequest, code: iso8583.NetworkManagementCode, businessDate: iso8583.SettlementDate,
		clock: map[iso8583.Element]string{iso8583.TransmissionDateTime: "MMDDhhmmss"},
		codes: codes, approved: []string{"00"}, notSupported: "40",
		answer: []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal,
			iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID, iso8583.CardAcceptorID,
			iso8583.NetworkManagementCode, iso8583.ReceiverID},
	}
}

// clockLayouts are the forms of ClockElements as package time knows them.
var clockLayouts = map[string]string{
	"MMDDhhmmss": "0102150405", "YYMMDDhhmmss": "060102150405", "YYMMDD": "060102", "MMDD": "0102", "hhmmss": "150405",
}

// networkTable lays the profile over its dialect. A dialect or type it cannot read is left at the preset's, and Validate names it.
func (c *Config) networkTable(spec *iso8583.Spec) networkTable {
	n := c.Network
	dialect := n.Dialect
	if dialect == "" {
		dialect = NetworkISO1987
		if spec != nil && spec.Edition() == iso8583.Edition1993 {
			dialect = NetworkISO1993
		}
	}
	t, ok := networkDialects[dialect]
	if !ok {
		t = networkDialects[NetworkISO1987]
	}
	if mti, err := iso8583.ParseMTI(n.RequestMTI); err == nil {
		t.requestMTI = mti
	}
	override(&t.code, iso8583.Element(n.CodeElement))
	override(&t.businessDate, iso8583.Element(n.BusinessDateElement))
	override(&t.codes.SignOn, c.Codes.SignOn)
	override(&t.codes.SignOff, c.Codes.SignOff)
	override(&t.codes.Echo, c.Codes.Echo)
	override(&t.codes.Cutover, c.Codes.Cutover)
	override(&t.notSupported, n.NotSupported)
	t.codes.Accept = c.Codes.Accept
	if len(n.ClockElements) > 0 {
		t.clock = n.ClockElements
	}
	if len(n.Approved) > 0 {
		t.approved = n.Approved
	}
	if len(c.AnswerElements) > 0 {
		t.answer = c.AnswerElements
	}
	t.signOn, t.ownSignOff, t.echo = c.SignOn.Elements, n.SignOffElements, c.EchoElements
	return t
}

// override replaces a preset's value where the profile has one.
func override[T comparable](preset *T, value T) {
	var none T
	if value != none {
		*preset = value
	}
}

// serves tells whether a code of the peer's is answered with yes. A request without a code is taken for an echo.
func (t *networkTable) serves(code string) bool {
	switch code {
	case "", t.codes.SignOn, t.codes.SignOff, t.codes.Echo, t.codes.Cutover:
		return true
	}
	return slices.Contains(t.codes.Accept, code)
}

// approves tells whether a response code means yes.
func (t *networkTable) approves(code string) bool { return slices.Contains(t.approved, code) }

// signOff gives the elements of our sign-off.
func (t *networkTable) signOff() map[iso8583.Element]string {
	if len(t.ownSignOff) > 0 {
		return t.ownSignOff
	}
	return t.signOn
}

// own tells whether the link fills in the element itself in its class 8 requests.
func (t *networkTable) own(e iso8583.Element) bool {
	_, clock := t.clock[e]
	return clock || e == iso8583.STAN || e == t.code
}

func (c Config) validateNetwork(at func(string) string, spec *iso8583.Spec, f *configs.Faults) {
	if _, ok := networkDialects[c.Network.Dialect]; !ok && c.Network.Dialect != "" {
		known := strings.Join(namesOf(networkDialects), ", ")
		f.Add(at("network.dialect"), "one of "+known, string(c.Network.Dialect))
	}
	table := c.networkTable(spec)
	c.validateCodes(at, &table, f)
	if text := c.Network.RequestMTI; text != "" {
		mti, err := iso8583.ParseMTI(text)
		if err != nil || mti.Class() != networkClass || mti.IsRepeat() || spec != nil && !isRequest(spec, mti) {
			f.Add(at("network.request_mti"), "a request of class 8, such as 0800 or 1804", text)
		}
	}
	if e := iso8583.Element(c.Network.BusinessDateElement); e != 0 && spec != nil && !spec.Has(e) {
		f.Add(at("network.business_date_element"), "an element that the spec's dialect has", uint8(e))
	}
	// With fewer numbers than lines two echoes could have the same one.
	if s := c.NetworkSTANs; s.From < minSTAN || s.To > maxSTAN || s.From > s.To || int(s.To-s.From) < c.lineCount() {
		f.Add(at("network_stans"), fmt.Sprintf("from and to between %d and %d, with more numbers than the link has lines", minSTAN, maxSTAN), nil)
	}
	for i, e := range table.answer {
		if !e.Valid() || e == iso8583.ResponseCode || spec != nil && spec.IsBinary(e) {
			f.Add(at("answer_elements."+strconv.Itoa(i)), "an element to copy is a number from 2 to 128, neither 39 nor 65, and not binary", uint8(e))
		}
	}
	if spec != nil {
		table.validateAgainst(spec, at, f)
		c.validateNetworkKey(&table, spec, at, f)
	}
}

// validateNetworkKey holds our own class 8 requests against their key: one that lacks an element of it could never be sent, and with the
// echo a dead peer would never be found.
func (c Config) validateNetworkKey(table *networkTable, spec *iso8583.Spec, at func(string) string, f *configs.Faults) {
	requests := map[string]map[iso8583.Element]string{"echo_elements": table.echo}
	if c.SignOn.Required {
		requests["sign_on.elements"] = table.signOn
		requests["network.sign_off_elements"] = table.signOff()
	}
	for key, elements := range requests {
		for _, e := range c.keyElements(spec.Exchange(table.requestMTI)) {
			if elements[e] == "" && !table.own(e) {
				f.Add(at(key), "lacks "+e.String()+", which is part of the key under which our own requests of class 8 are sent", nil)
			}
		}
	}
}

func (c Config) validateCodes(at func(string) string, table *networkTable, f *configs.Faults) {
	type named struct{ name, code string }
	codes := []named{{"echo", table.codes.Echo}, {"sign_off", table.codes.SignOff}, {"sign_on", table.codes.SignOn}}
	if table.codes.Cutover != "" {
		codes = append(codes, named{"cutover", table.codes.Cutover})
	}
	for i, code := range table.codes.Accept {
		if code != table.codes.Cutover { // which profiles used to accept by its number
			codes = append(codes, named{"accept." + strconv.Itoa(i), code})
		}
	}
	seen := map[string]string{}
	for _, c := range codes {
		if len(c.code) != networkCodeDigits || !isDigits(c.code) {
			f.Add(at("network_codes."+c.name), "a network management code is three digits", c.code)
		} else if other, ok := seen[c.code]; ok {
			f.Add(at("network_codes."+c.name), "is the same code as "+other, c.code)
		}
		seen[c.code] = c.name
	}
}

// validateAgainst holds the table against the spec in which its messages are written.
func (t *networkTable) validateAgainst(spec *iso8583.Spec, at func(string) string, f *configs.Faults) {
	for _, mti := range []iso8583.MTI{t.requestMTI, spec.ResponseTo(t.requestMTI)} {
		if _, err := spec.Encode(spec.NewMessage(mti)); err != nil {
			f.Add(at("spec.mtis"), "a link needs "+mti.String()+" for sign-on and echo", nil)
		}
	}
	request, response := spec.NewMessage(t.requestMTI), spec.NewMessage(spec.ResponseTo(t.requestMTI))
	set := func(m *iso8583.Message, path string, e iso8583.Element, value string) {
		if err := m.Set(e, value); err != nil {
			f.Add(at(path), err.Error(), nil)
		}
	}
	set(request, "network.code_element", t.code, t.codes.Echo)
	for e, form := range t.clock {
		path := "network.clock_elements." + strconv.Itoa(int(e))
		layout, ok := clockLayouts[form]
		switch {
		case e == iso8583.STAN || e == t.code:
			f.Add(at(path), ruleOwn, nil)
		case ok:
			set(request, path, e, layout) // a layout is a time in its own form
		default:
			f.Add(at(path), "one of "+strings.Join(namesOf(clockLayouts), ", "), form)
		}
	}
	for i, code := range t.approved {
		set(response, "network.approved."+strconv.Itoa(i), iso8583.ResponseCode, code)
	}
	set(response, "network.not_supported", iso8583.ResponseCode, t.notSupported)
	for key, elements := range map[string]map[iso8583.Element]string{
		"sign_on.elements": t.signOn, "network.sign_off_elements": t.ownSignOff, "echo_elements": t.echo,
	} {
		for e, value := range elements {
			path := key + "." + strconv.Itoa(int(e))
			if t.own(e) {
				f.Add(at(path), ruleOwn, nil)
				continue
			}
			set(request, path, e, value)
		}
	}
}

// namesOf gives a table's names in their order.
func namesOf[K ~string, V any](table map[K]V) []string {
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}
