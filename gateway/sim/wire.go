package sim

import (
	"fmt"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// NetworkConfig says how network management (class 8) is written. What is left out is as the edition has it: 0800 with DE 70, or in
// 1993 1804 with DE 24.
type NetworkConfig struct {
	RequestMTI          string          `yaml:"request_mti"`           // of our own requests, like "0800"
	CodeElement         iso8583.Element `yaml:"code_element"`          // where the code stands: 70 or 24
	BusinessDateElement iso8583.Element `yaml:"business_date_element"` // where a cutover notice has its date: 15 or 28
	SignOn              string          `yaml:"sign_on"`
	SignOff             string          `yaml:"sign_off"`
	Echo                string          `yaml:"echo"`
	Cutover             string          `yaml:"cutover"`
}

const networkClass = 8 // second digit of a message type

var network1987 = NetworkConfig{RequestMTI: "0800", CodeElement: iso8583.NetworkManagementCode, BusinessDateElement: iso8583.SettlementDate,
	SignOn: "001", SignOff: "002", Echo: "301", Cutover: "201"}

var network1993 = NetworkConfig{RequestMTI: "1804", CodeElement: iso8583.FunctionCode, BusinessDateElement: 28,
	SignOn: "801", SignOff: "802", Echo: "831", Cutover: "821"}

// over lays what is given over the edition's.
func (n NetworkConfig) over(edition NetworkConfig) NetworkConfig {
	for _, text := range []struct{ from, to *string }{{&n.RequestMTI, &edition.RequestMTI}, {&n.SignOn, &edition.SignOn},
		{&n.SignOff, &edition.SignOff}, {&n.Echo, &edition.Echo}, {&n.Cutover, &edition.Cutover}} {
		if *text.from != "" {
			*text.to = *text.from
		}
	}
	if n.CodeElement != 0 {
		edition.CodeElement = n.CodeElement
	}
	if n.BusinessDateElement != 0 {
		edition.BusinessDateElement = n.BusinessDateElement
	}
	return edition
}

func (n NetworkConfig) validate(path string, spec *iso8583.Spec, f *configs.Faults) {
	w, err := newWire(spec, n)
	if err != nil || w.networkMTI.Class() != networkClass || !w.networkMTI.IsRequest() || w.networkMTI.IsRepeat() {
		f.Add(path+".request_mti", "is a request of class 8, like 0800", n.RequestMTI)
		return
	}
	m := spec.NewMessage(w.networkMTI)
	for key, code := range map[string]string{"sign_on": w.network.SignOn, "sign_off": w.network.SignOff, "echo": w.network.Echo, "cutover": w.network.Cutover} {
		if err := m.Set(w.network.CodeElement, code); err != nil {
			f.Add(path+"."+key, err.Error(), code)
		}
	}
}

// echoed1987 and echoed1993 are the elements that an answer has from its request. The numbers are not the same thing in both: DE 13 of
// 1993 is no part of the time, and its DE 70 and DE 90 are others' elements.
var (
	echoed1987 = []iso8583.Element{iso8583.PAN, iso8583.ProcessingCode, iso8583.AmountTransaction, iso8583.TransmissionDateTime,
		iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal, iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID,
		iso8583.CardAcceptorID, iso8583.CurrencyTransaction, iso8583.NetworkManagementCode, iso8583.OriginalData}
	echoed1993 = []iso8583.Element{iso8583.PAN, iso8583.ProcessingCode, iso8583.AmountTransaction, iso8583.TransmissionDateTime,
		iso8583.STAN, iso8583.TimeLocal, iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID,
		iso8583.CardAcceptorID, iso8583.CurrencyTransaction, iso8583.OriginalData1993}
)

// codes1993 are the action codes of 1993 for the response codes of 1987 that rules and magic amounts use. What is not here stays as it
// is written.
var codes1993 = map[string]string{
	"00": "000", "08": "001", "10": "002", "11": "003", "16": "004", "09": "923", "05": "100", "12": "902", "13": "110", "14": "111",
	"21": "914", "25": "914", "30": "904", "51": "116", "54": "101", "58": "910", "61": "121", "62": "104", "91": "907", "92": "908",
	"94": "913", "96": "909", "Z9": "699",
}

// wire is how the edition of the scheme writes what books and rules speak of. It is read-only.
type wire struct {
	spec       *iso8583.Spec
	is1993     bool
	network    NetworkConfig
	networkMTI iso8583.MTI
	echoed     []iso8583.Element
	clock      iso8583.Element // the time that names a message: DE 7, in 1993 DE 12
}

func newWire(spec *iso8583.Spec, network NetworkConfig) (*wire, error) {
	w := &wire{spec: spec, network: network.over(network1987), echoed: echoed1987, clock: iso8583.TransmissionDateTime}
	if spec.Edition() == iso8583.Edition1993 {
		w.is1993, w.network, w.echoed, w.clock = true, network.over(network1993), echoed1993, iso8583.TimeLocal
	}
	var err error
	if w.networkMTI, err = iso8583.ParseMTI(w.network.RequestMTI); err != nil {
		return nil, fmt.Errorf("network.request_mti: %w", err)
	}
	return w, nil
}

// code is a response code in the scheme's edition, where a reversal and network management that succeed have codes of their own.
func (w *wire) code(class uint8, code string) string {
	if !w.is1993 {
		return code
	}
	switch {
	case code == approved && class == 4:
		return "400"
	case code == approved && class == networkClass:
		return "800"
	}
	if own, known := codes1993[code]; known {
		return own
	}
	return code
}

// networkCode is what a network management message asks for, "" in every other message.
func (w *wire) networkCode(m *iso8583.Message) string {
	if m.MTI().Class() != networkClass {
		return ""
	}
	return m.Get(w.network.CodeElement)
}

// HoldKey names an original as DE 90 does: its message type without the repeat bit, DE 11, DE 7, and DE 32 and DE 33 filled with
// zeros to 11 digits. In 1993 DE 56 names it by DE 12 in the place of DE 7, and without DE 33.
type HoldKey struct {
	MTI                  iso8583.MTI
	STAN                 string
	TransmissionDateTime string
	AcquirerID           string
	ForwarderID          string
}

// key is a message's own name.
func (w *wire) key(m *iso8583.Message) HoldKey {
	k := HoldKey{MTI: w.spec.Exchange(m.MTI()), STAN: m.Get(iso8583.STAN), TransmissionDateTime: m.Get(w.clock),
		AcquirerID: zeroFill(m.Get(iso8583.AcquirerID)), ForwarderID: zeroFill(m.Get(iso8583.ForwarderID))}
	if w.is1993 {
		k.ForwarderID = zeroFill("")
	}
	return k
}

// namesOriginal tells whether a message has the element that names another one.
func (w *wire) namesOriginal(m *iso8583.Message) bool { return m.Has(w.spec.OriginalElement()) }

// originalKey is what DE 90 (in 1993 DE 56) names; an error when it is missing or malformed.
func (w *wire) originalKey(m *iso8583.Message) (HoldKey, error) {
	o, err := iso8583.ParseOriginalDataElementsFor(w.spec.Edition(), m.Get(w.spec.OriginalElement()))
	if err != nil {
		return HoldKey{}, err
	}
	clock := o.TransmissionDateTime
	if w.is1993 {
		clock = o.LocalDateTime
	}
	return HoldKey{MTI: o.MTI.WithoutRepeat(), STAN: o.STAN, TransmissionDateTime: clock,
		AcquirerID: zeroFill(o.AcquirerID), ForwarderID: zeroFill(o.ForwarderID)}, nil
}

func zeroFill(id string) string { return strings.Repeat("0", max(0, 11-len(id))) + id }

// isAdvice tells whether a message is an advice of the authorisation or financial class.
func isAdvice(mti iso8583.MTI) bool {
	return (mti.Class() == 1 || mti.Class() == 2) && mti.Function() == 2
}

// isApproval tells whether a response code lets the money go: 00, 08, 11, 16, and 10 for a part of it; in 1993 000 to 007.
func isApproval(code string) bool {
	switch code {
	case approved, "08", partiallyApproved, "11", "16":
		return true
	}
	return len(code) == 3 && code[:2] == "00" && code[2] <= '7'
}

// isPartial tells whether an approval is one for a lower amount.
func isPartial(code string) bool { return code == partiallyApproved || code == "002" || code == "006" }
