package link

import (
	"slices"
	"strings"
	"testing"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

func TestValidateNamesFaultsOfNetworkAndCorrelation(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*Config){
		"network.dialect":              func(c *Config) { c.Network.Dialect = "iso2003" },
		"network.request_mti":          func(c *Config) { c.Network.RequestMTI = "0801" },
		"network.request_mti response": func(c *Config) { c.Network.RequestMTI = "0810" },
		"network.request_mti class":    func(c *Config) { c.Network.RequestMTI = "0100" },
		"network.code_element":         func(c *Config) { c.Network.CodeElement = 7 },
		"network.business_date_element absent": func(c *Config) {
			c.Network.BusinessDateElement = 15
			c.Spec.Elements = map[iso8583.Element]iso8583.ElementConfig{15: {Absent: true}}
		},
		"network.business_date_element": func(c *Config) { c.Network.BusinessDateElement = 65 },
		"network.clock_elements.7":      func(c *Config) { c.Network.ClockElements = map[iso8583.Element]string{7: "DDMM"} },
		"network.clock_elements.11":     func(c *Config) { c.Network.ClockElements = map[iso8583.Element]string{11: "hhmmss"} },
		"network.clock_elements.12":     func(c *Config) { c.Network.ClockElements = map[iso8583.Element]string{12: "YYMMDDhhmmss"} },
		"network.sign_off_elements.70":  func(c *Config) { c.Network.SignOffElements = map[iso8583.Element]string{70: "002"} },
		"network.approved.0":            func(c *Config) { c.Network.Approved = []string{"800"} },
		"network.not_supported":         func(c *Config) { c.Network.NotSupported = "4" },
		"network_codes.cutover":         func(c *Config) { c.Codes.Cutover = "301" },
		"network_codes.accept.0":        func(c *Config) { c.Codes.Accept = []string{"002"} },
		"network_stans":                 func(c *Config) { c.NetworkSTANs = STANRange{From: 5, To: 5} },
		"spec.mtis":                     func(c *Config) { c.Network.RequestMTI = "0860" },
		"correlations.0420":             func(c *Config) { c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0420: {}} },
		"correlations.0421":             func(c *Config) { c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0421: {11}} },
		"correlations.0500":             func(c *Config) { c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0500: {11}} },
		"correlations.0110":             func(c *Config) { c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0110: {11}} },
		"correlations.0100.1":           func(c *Config) { c.Correlations = map[iso8583.MTI][]iso8583.Element{0x0100: {11, 11}} },
		"confirms.0100.0":               func(c *Config) { c.Confirms = map[iso8583.MTI][]iso8583.Element{0x0100: {65}} },
		"correlation_fallback":          func(c *Config) { c.CorrelationFallback = make([][]iso8583.Element, maxFallbacks+1) },
		"correlation_fallback.1":        func(c *Config) { c.CorrelationFallback = [][]iso8583.Element{{37}, {}} },
		"correlation_fallback.0.0":      func(c *Config) { c.CorrelationFallback = [][]iso8583.Element{{1}} },
		"interim_extension":             func(c *Config) { c.InterimExtension = 0 },
	}
	for path, spoil := range tests {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("127.0.0.1:1")
			var faults configs.Faults
			if cfg.Validate("links.visa", &faults); len(faults) > 0 {
				t.Fatal(faults)
			}
			spoil(&cfg)
			cfg.Validate("links.visa", &faults)
			path, _, _ := strings.Cut(path, " ")
			if !slices.ContainsFunc(faults, func(f configs.Fault) bool { return f.Path == "links.visa."+path }) {
				t.Errorf("no fault at links.visa.%s, but:\n%v", path, faults)
			}
		})
	}
}

func TestPresetsAreValid(t *testing.T) {
	t.Parallel()
	for _, h := range []hostDialect{iso1987Host(), mdsHost(), iso1993Host()} {
		cfg, _ := h.config()
		var faults configs.Faults
		if cfg.Validate("", &faults); len(faults) > 0 {
			t.Errorf("%s: %v", h.network, faults)
		}
	}
}

// TestProfileWithCutoverAmongItsAcceptedCodes: profiles were written that way before cutover had a key of its own.
func TestProfileWithCutoverAmongItsAcceptedCodes(t *testing.T) {
	t.Parallel()
	cfg := testConfig("127.0.0.1:1")
	cfg.Codes = NetworkCodes{SignOn: "001", SignOff: "002", Echo: "301", Accept: []string{"201", "202"}}
	var faults configs.Faults
	if cfg.Validate("", &faults); len(faults) > 0 {
		t.Fatal(faults)
	}
	table := cfg.networkTable(nil)
	for code, want := range map[string]bool{"201": true, "202": true, "161": false, "": true} {
		if table.serves(code) != want {
			t.Errorf("code %q is served: %t", code, !want)
		}
	}
}

func TestNetworkAndCorrelationAreReadFromYAML(t *testing.T) {
	t.Parallel()
	cfg := struct {
		Link Config `yaml:"link"`
	}{DefaultConfig()}
	faults := configs.Load("profile.yaml", []byte(`
link:
  address: scheme.example:5000
  network:
    dialect: mds
    request_mti: "0820"
    code_element: ""
    business_date_element: 17
    clock_elements: {12: hhmmss}
    sign_off_elements: {33: "12345678"}
    approved: ["00", "08"]
  network_stans: {from: 900000, to: 999999}
  correlations: {"0420": [7, 11], 0200: [37]}
  correlation_fallback: [[11, 37], [37]]
  confirms: {"0100": [4, 37]}
  interim_extension: 45s
  spec: {mtis: ["0100", "0110", "0200", "0210", "0420", "0430", "0820", "0830"]}
`), &cfg)
	cfg.Link.Validate("link", &faults)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	got := cfg.Link
	table := got.networkTable(nil)
	if table.requestMTI != 0x0820 || table.codes.SignOn != "061" || table.codes.Cutover != "" || table.code != 70 || table.businessDate != 17 || table.signOff()[33] != "12345678" ||
		!table.approves("08") || table.clock[12] != "hhmmss" || len(table.clock) != 1 {
		t.Errorf("network management read as %+v", table)
	}
	if got.NetworkSTANs != (STANRange{From: 900_000, To: 999_999}) || !slices.Equal(got.keyElements(0x0420), []iso8583.Element{7, 11}) ||
		!slices.Equal(got.keyElements(0x0200), []iso8583.Element{37}) || len(got.keyElements(0x0100)) != 3 ||
		!slices.Equal(got.CorrelationFallback[0], []iso8583.Element{11, 37}) || !slices.Equal(got.confirmElements(0x0100), []iso8583.Element{4, 37}) ||
		!slices.Equal(got.confirmElements(0x0420), []iso8583.Element{37}) || got.InterimExtension.Std().Seconds() != 45 {
		t.Errorf("correlation read as %+v", got.CorrelationConfig)
	}
}
