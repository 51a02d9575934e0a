package link

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/schemegate/schemegate/configs"
)

func TestValidateNamesEveryFaultOfLinesTLSAndBudgets(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must(os.WriteFile(empty, nil, 0o600))
	tests := map[string]func(*Config){
		"lines":                  func(c *Config) { c.Lines = maxLines + 1 },
		"addresses":              func(c *Config) { c.Lines, c.Addresses = 2, []string{"a:1", "b:1"} },
		"addresses.1":            func(c *Config) { c.Lines, c.Addresses = 3, []string{"a:1", "b"} },
		"tls.enabled":            func(c *Config) { c.TLS.CAFile = "ca.pem" },
		"tls.min_version":        func(c *Config) { c.TLS = TLSConfig{Enabled: true, MinVersion: "1.1"} },
		"tls.ca_file":            func(c *Config) { c.TLS = TLSConfig{Enabled: true, CAFile: empty} },
		"tls.cert_file":          func(c *Config) { c.TLS = TLSConfig{Enabled: true, CertFile: empty, KeyFile: empty} },
		"budgets.max_rate":       func(c *Config) { c.Budgets.MaxRate = -1 },
		"budgets.inbound_bytes":  func(c *Config) { c.Budgets.InboundBytes = maxBytesRate + 1 },
		"budgets.inbound_frames": func(c *Config) { c.Budgets.InboundFrames = maxBudget + 1 },
		"budgets.useless_frames": func(c *Config) { c.Budgets.UselessFrames = -1 },
	}
	for path, spoil := range tests {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("127.0.0.1:1")
			spoil(&cfg)
			var faults configs.Faults
			cfg.Validate("links.visa", &faults)
			if !slices.ContainsFunc(faults, func(f configs.Fault) bool { return f.Path == "links.visa."+path }) {
				t.Errorf("no fault at links.visa.%s, but:\n%v", path, faults)
			}
			if _, err := New("visa", cfg, Options{}); err == nil {
				t.Error("New takes it")
			}
		})
	}
	half := testConfig("127.0.0.1:1")
	half.TLS = TLSConfig{Enabled: true, CertFile: "own.pem"}
	var faults configs.Faults
	if half.Validate("", &faults); len(faults) != 1 || faults[0].Path != "tls.cert_file" {
		t.Errorf("a certificate without its key: %v", faults)
	}
}

func TestLinesAreReadFromYAMLAndSpreadOverTheAddresses(t *testing.T) {
	t.Parallel()
	cfg := struct {
		Link Config `yaml:"link"`
	}{DefaultConfig()}
	faults := configs.Load("profile.yaml", []byte(`
link:
  address: a.example:1
  lines: 5
  addresses: [b.example:2]
  tls: {enabled: true, server_name: scheme.example, min_version: "1.3"}
  budgets: {max_rate: 200, useless_frames: 10}
`), &cfg)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if cfg.Link.Validate("link", &faults); len(faults) > 0 {
		t.Fatal(faults)
	}
	if b := cfg.Link.Budgets; b.MaxRate != 200 || b.UselessFrames != 10 || b.InboundBytes != DefaultConfig().Budgets.InboundBytes {
		t.Errorf("budgets read as %+v", b)
	}
	l, err := New("visa", cfg.Link, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for i, line := range l.Status().Lines {
		addresses = append(addresses, line.Address)
		if line.Line != i {
			t.Errorf("line %d is numbered %d", i, line.Line)
		}
	}
	if want := []string{"a.example:1", "b.example:2", "a.example:1", "b.example:2", "a.example:1"}; !slices.Equal(addresses, want) {
		t.Errorf("lines go to %v", addresses)
	}
}

func TestFilesAreThePlacesOfTheNamesThatAreSet(t *testing.T) {
	t.Parallel()
	var cfg Config
	if n := len(cfg.Files()); n != 0 {
		t.Errorf("%d files without TLS", n)
	}
	cfg.TLS.CAFile, cfg.TLS.KeyFile = "ca.pem", "own.key"
	for _, file := range cfg.Files() {
		*file = filepath.Join("etc", *file)
	}
	if cfg.TLS.CAFile != filepath.Join("etc", "ca.pem") || cfg.TLS.KeyFile != filepath.Join("etc", "own.key") || cfg.TLS.CertFile != "" {
		t.Errorf("files: %+v", cfg.TLS)
	}
}
