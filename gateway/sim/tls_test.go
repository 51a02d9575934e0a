package sim

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
)

// certificate makes a certificate that signs itself and writes both files.
func certificate(t *testing.T, dir, name string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writeFile(t, certFile, string(certPEM))
	writeFile(t, keyFile, string(keyPEM))
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, pair
}

// dialTLS is a peer over TLS that trusts a certificate.
func dialTLS(t *testing.T, card *Card, server tls.Certificate, own ...tls.Certificate) (*peer, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(server.Leaf)
	conn, err := tls.Dial("tcp", card.Addr().String(), &tls.Config{RootCAs: roots, Certificates: own})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	return &peer{t: t, conn: conn, r: bufio.NewReader(conn)}, nil
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certFile, keyFile, server := certificate(t, t.TempDir(), "scheme")
	card, _ := start(t, func(c *CardConfig) { c.TLS = TLSConfig{CertFile: certFile, KeyFile: keyFile} })
	p, err := dialTLS(t, card, server)
	if err != nil {
		t.Fatal(err)
	}
	p.ask("0800", fields{70: "001", 11: "000900"})
	if got := p.ask("0100", purchase(1, hangAfterMinor)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	if got, err := p.next(answerWait); !errors.Is(err, io.EOF) {
		t.Errorf("instead of the end: %v, %v", got, err)
	}
	plain := dial(t, card)
	plain.send("0800", fields{70: "001", 11: "000901"})
	plain.ended()
}

func TestTLSAsksForTheClientsCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, server := certificate(t, dir, "scheme")
	caFile, _, client := certificate(t, dir, "client")
	_, _, stranger := certificate(t, dir, "stranger")
	card, _ := start(t, func(c *CardConfig) { c.TLS = TLSConfig{CertFile: certFile, KeyFile: keyFile, ClientCAFile: caFile} })
	p, err := dialTLS(t, card, server, client)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.ask("0800", fields{70: "001", 11: "000900"}); got[39] != "00" {
		t.Errorf("sign-on: %v", got)
	}
	// In TLS 1.3 the refusal comes behind the handshake.
	if p, err := dialTLS(t, card, server, stranger); err == nil {
		p.ended()
	}
	if p, err := dialTLS(t, card, server); err == nil {
		p.ended()
	}
	if got := card.Counts(); got.In[0x0800] != 1 {
		t.Errorf("counts: %+v", got)
	}
}

func TestTLSFilesAreChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, _ := certificate(t, dir, "scheme")
	empty := filepath.Join(dir, "empty.pem")
	writeFile(t, empty, "")
	for name, c := range map[string]TLSConfig{
		"no key":        {CertFile: certFile},
		"only clients":  {ClientCAFile: certFile},
		"missing file":  {CertFile: certFile + ".none", KeyFile: keyFile},
		"empty clients": {CertFile: certFile, KeyFile: keyFile, ClientCAFile: empty},
		"no clients":    {CertFile: certFile, KeyFile: keyFile, ClientCAFile: empty + ".none"},
	} {
		cfg := DefaultCardConfig()
		cfg.TLS = c
		if _, err := NewCard(cfg, zap.NewNop()); err == nil {
			t.Errorf("%s: no fault", name)
		}
		var faults configs.Faults
		if cfg.Validate("", &faults); (len(faults) == 1) != (name == "no key" || name == "only clients") {
			t.Errorf("%s: %v", name, faults)
		}
	}
}
