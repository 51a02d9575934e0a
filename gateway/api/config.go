package api

import (
	"encoding/hex"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
)

// Bounds of the configuration.
const (
	maxKeys           = 1000 // each request is compared with all of them
	maxConnections    = 65_536
	minHeaderBytes    = 4 << 10
	maxHeaderBytes    = 1 << 20
	maxTimeout        = 10 * time.Minute
	keyHashHexDigits  = 64 // SHA-256
	defaultAPIAddress = "127.0.0.1:8480"
)

// Config is the API's piece of the configuration.
type Config struct {
	Listen         string           `yaml:"listen"`           // host:port; port 0 takes a free one
	Keys           []Key            `yaml:"keys"`             // who may call
	MaxConnections int              `yaml:"max_connections"`  // further ones are closed at once
	MaxBodyBytes   int              `yaml:"max_body_bytes"`   // of one request
	MaxHeaderBytes int              `yaml:"max_header_bytes"` // of one request, request line included
	HeaderTimeout  configs.Duration `yaml:"header_timeout"`   // for the headers of a request to arrive
	BodyTimeout    configs.Duration `yaml:"body_timeout"`     // for its body
	WriteTimeout   configs.Duration `yaml:"write_timeout"`    // for the client to take an answer; waiting for the scheme is not part of it
	IdleTimeout    configs.Duration `yaml:"idle_timeout"`     // for the next request on a connection
}

// Key is one bearer key, of which only the hash is known here. The key decides the tenant.
type Key struct {
	Tenant string `yaml:"tenant"`
	Name   string `yaml:"name"`   // shown in logs, so that a key can be found and withdrawn
	SHA256 string `yaml:"sha256"` // 64 hexadecimal digits, of the key's text
	// Operator lets the key decide about links: hold, resume, sign on and off.
	Operator bool `yaml:"operator"`
}

// DefaultConfig has everything but keys.
func DefaultConfig() Config {
	return Config{
		Listen:         defaultAPIAddress,
		MaxConnections: 4096,
		MaxBodyBytes:   gateway.MaxBodyBytes,
		MaxHeaderBytes: 16 << 10,
		HeaderTimeout:  configs.Duration(5 * time.Second),
		BodyTimeout:    configs.Duration(10 * time.Second),
		WriteTimeout:   configs.Duration(10 * time.Second),
		IdleTimeout:    configs.Duration(2 * time.Minute),
	}
}

// keyWord is the form of tenants and key names: they stand in rows, logs and metrics.
var keyWord = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// Validate adds every fault of the configuration.
func (c Config) Validate(path string, f *configs.Faults) {
	validateAddress(path+".listen", c.Listen, f)
	if len(c.Keys) == 0 || len(c.Keys) > maxKeys {
		f.Add(path+".keys", fmt.Sprintf("needs 1 to %d keys; `schemegate api-key new` makes one", maxKeys), len(c.Keys))
	}
	hashes, names := map[string]bool{}, map[[2]string]bool{}
	for i, key := range c.Keys {
		at := fmt.Sprintf("%s.keys.%d", path, i)
		key.validate(at, f)
		if hashes[key.SHA256] && key.SHA256 != "" {
			f.Add(at+".sha256", "stands in this list twice", key.SHA256)
		}
		name := [2]string{key.Tenant, key.Name}
		if names[name] {
			f.Add(at+".name", "a tenant's keys need names of their own", key.Name)
		}
		hashes[key.SHA256], names[name] = true, true
	}
	numbers := []struct {
		key            string
		n, least, most int
	}{
		{"max_connections", c.MaxConnections, 1, maxConnections},
		{"max_body_bytes", c.MaxBodyBytes, 1, gateway.MaxBodyBytes},
		{"max_header_bytes", c.MaxHeaderBytes, minHeaderBytes, maxHeaderBytes},
	}
	for _, n := range numbers {
		if n.n < n.least || n.n > n.most {
			f.Add(path+"."+n.key, fmt.Sprintf("%d to %d", n.least, n.most), n.n)
		}
	}
	timeouts := []struct {
		key string
		d   configs.Duration
	}{{"header_timeout", c.HeaderTimeout}, {"body_timeout", c.BodyTimeout}, {"write_timeout", c.WriteTimeout}, {"idle_timeout", c.IdleTimeout}}
	for _, t := range timeouts {
		if t.d <= 0 || t.d.Std() > maxTimeout {
			f.Add(path+"."+t.key, fmt.Sprintf("more than 0s and at most %s", maxTimeout), t.d)
		}
	}
}

func (k Key) validate(path string, f *configs.Faults) {
	if !keyWord.MatchString(k.Tenant) {
		f.Add(path+".tenant", "1 to 64 lower-case letters, digits, - or _", k.Tenant)
	}
	if !keyWord.MatchString(k.Name) {
		f.Add(path+".name", "1 to 64 lower-case letters, digits, - or _", k.Name)
	}
	if _, err := hex.DecodeString(k.SHA256); err != nil || len(k.SHA256) != keyHashHexDigits {
		// Not quoted: who puts the key itself here must not find it in a log.
		f.Add(path+".sha256", "the SHA-256 of a key as 64 hexadecimal digits; `schemegate api-key new` prints it", nil)
	}
}

func validateAddress(path, address string, f *configs.Faults) {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		f.Add(path, "an address is host:port, like 127.0.0.1:8480", address)
	}
}
