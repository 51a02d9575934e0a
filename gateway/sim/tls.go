package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/schemegate/schemegate/configs"
)

// handshakeWait bounds a TLS handshake.
const handshakeWait = 10 * time.Second

// TLSConfig is TLS on the listener; without a certificate it is plain TCP. File names are as the process sees them.
type TLSConfig struct {
	CertFile     string `yaml:"cert_file"`      // our certificate and its chain, as PEM
	KeyFile      string `yaml:"key_file"`       // its key
	ClientCAFile string `yaml:"client_ca_file"` // the authorities of which every peer needs a certificate; empty asks for none
}

func (c TLSConfig) validate(path string, f *configs.Faults) {
	if (c.CertFile == "") != (c.KeyFile == "") {
		f.Add(path+".cert_file", "cert_file and key_file belong together", nil)
	}
	if c.ClientCAFile != "" && c.CertFile == "" {
		f.Add(path+".client_ca_file", "needs cert_file and key_file", nil)
	}
}

// build reads the files; nil for plain TCP.
func (c TLSConfig) build() (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	if c.ClientCAFile == "" {
		return config, nil
	}
	text, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("read client authorities: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("read client authorities: the file has no certificate")
	}
	return config, nil
}

// shakeHands does the TLS handshake where there is one.
func (conn *connection) shakeHands() error {
	secured, ok := conn.conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWait)
	defer cancel()
	return secured.HandshakeContext(ctx)
}
