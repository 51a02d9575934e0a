package link

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

func TestDefaultConfigNeedsOnlyAnAddress(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	var faults configs.Faults
	cfg.Validate("links.visa", &faults)
	if len(faults) != 1 || faults[0].Path != "links.visa.address" {
		t.Errorf("faults:\n%v", faults)
	}
	cfg.Address = "scheme.example:5000"
	faults = nil
	if cfg.Validate("links.visa", &faults); len(faults) != 0 {
		t.Errorf("faults:\n%v", faults)
	}
}

func TestValidateNamesEveryFaultByItsPath(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*Config){
		"address":                func(c *Config) { c.Address = "scheme" },
		"correlation":            func(c *Config) { c.Correlation = nil },
		"correlation.0":          func(c *Config) { c.Spec.Elements = map[iso8583.Element]iso8583.ElementConfig{7: {Absent: true}} },
		"correlation.1":          func(c *Config) { c.Correlation = []iso8583.Element{11, 65} },
		"correlation_network.1":  func(c *Config) { c.CorrelationNetwork = []iso8583.Element{11, 11} },
		"confirm":                func(c *Config) { c.Confirm = make([]iso8583.Element, maxKeyElements+1) },
		"network_codes.echo":     func(c *Config) { c.Codes.Echo = "3" },
		"network_codes.sign_on":  func(c *Config) { c.Codes.SignOn = "002" },
		"network_codes.accept.0": func(c *Config) { c.Codes.Accept = []string{"20x"} },
		"answer_elements.0":      func(c *Config) { c.AnswerElements = []iso8583.Element{39} },
		"spec.mtis":              func(c *Config) { c.Spec.MTIs = []string{"0100", "0110", "0800"} },
		"spec.mtis.0":            func(c *Config) { c.Spec.MTIs = []string{"01"} },
		"framing.header":         func(c *Config) { c.Framing.Header = "zz" },
		"sign_on.elements.11":    func(c *Config) { c.SignOn.Elements = map[iso8583.Element]string{11: "000001"} },
		"echo_elements.32":       func(c *Config) { c.EchoElements = map[iso8583.Element]string{32: "not digits"} },
		"echo_elements":          func(c *Config) { c.CorrelationNetwork = []iso8583.Element{11, 41} },
		"sign_on.elements":       func(c *Config) { c.CorrelationNetwork = []iso8583.Element{11, 41} },
		"echo_interval":          func(c *Config) { c.EchoInterval = 0 },
		"echo_timeout":           func(c *Config) { c.EchoTimeout = -1 },
		"echo_misses":            func(c *Config) { c.EchoMisses = 0 },
		"connect_timeout":        func(c *Config) { c.ConnectTimeout = configs.Duration(maxConfiguredDelay + 1) },
		"write_timeout":          func(c *Config) { c.WriteTimeout = 0 },
		"sign_on_timeout":        func(c *Config) { c.SignOnTimeout = 0 },
		"sign_on_again_after":    func(c *Config) { c.SignOnAgainAfter = 0 },
		"reconnect_min":          func(c *Config) { c.ReconnectMin = c.ReconnectMax + 1 },
		"reconnect_max":          func(c *Config) { c.ReconnectMin, c.ReconnectMax = 1, 0 },
		"max_pending":            func(c *Config) { c.MaxPending = maxPendingLimit + 1 },
	}
	for path, spoil := range tests {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("127.0.0.1:1")
			spoil(&cfg)
			var faults configs.Faults
			cfg.Validate("links.visa", &faults)
			found := false
			for _, fault := range faults {
				found = found || fault.Path == "links.visa."+path
			}
			if !found {
				t.Errorf("no fault at links.visa.%s, but:\n%v", path, faults)
			}
			if _, err := New("visa", cfg, Options{}); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("New: %v", err)
			}
		})
	}
}

func TestConfigIsReadFromYAML(t *testing.T) {
	t.Parallel()
	cfg := struct {
		Link Config `yaml:"link"`
	}{DefaultConfig()}
	faults := configs.Load("profile.yaml", []byte(`
link:
  address: scheme.example:5000
  correlation: [11, 37]
  sign_on:
    required: true
    elements: {33: "12345678"}
  network_codes: {sign_on: "061", sign_off: "062", echo: "270", accept: []}
  echo_interval: 45s
  max_pending: 10
`), &cfg)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	cfg.Link.Validate("link", &faults)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if got := cfg.Link; got.Codes.Echo != "270" || got.SignOn.Elements[33] != "12345678" || got.EchoInterval.Std().Seconds() != 45 ||
		got.Correlation[1] != iso8583.RRN || got.EchoMisses != DefaultConfig().EchoMisses {
		t.Errorf("read as %+v", got)
	}
}

func TestMetricsOfTwoLinksShareOneRegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	metrics := NewMetrics(registry)
	p := startPeer(t, func(c *conn) { c.serve(approve) })
	l := startSignedOn(t, testConfig(p.address()), Options{Metrics: metrics})
	if _, err := New("other", testConfig(p.address()), Options{Metrics: metrics}); err != nil {
		t.Fatal(err)
	}
	if _, err := exchange(l, request(iso8583.MTIAuthorizationRequest, 1, "T1"), patience); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		`schemegate_link_up link=test`:                                              1,
		`schemegate_link_up link=other`:                                             0,
		`schemegate_link_signed_on link=test`:                                       1,
		`schemegate_link_pending link=test`:                                         0,
		`schemegate_link_frames_sent_total class=authorization link=test`:           1,
		`schemegate_link_frames_received_total class=network_management link=test`:  1,
		`schemegate_link_frames_received_total class=network_management link=other`: 0,
		`schemegate_link_unmatched_total kind=late link=test`:                       0,
		`schemegate_link_down_total link=test reason=peer_silent`:                   0,
	}
	got := series(t, registry)
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s is %v (present: %t), want %v", name, v, ok, value)
		}
	}
}

// series gives the registry's gauges and counters by name and labels.
func series(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetName() + "=" + label.GetValue()
			}
			byName[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return byName
}
