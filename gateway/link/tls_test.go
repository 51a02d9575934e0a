package link

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// authority signs certificates for one test.
type authority struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	dir         string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.certificate, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	return a
}

// sign makes a certificate of the given template, valid for an hour unless it says otherwise; without an issuer it signs itself.
func (a *authority) sign(template *x509.Certificate, issuer *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	template.NotBefore = time.Now().Add(-24 * time.Hour)
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	must(err)
	certificate, err := x509.ParseCertificate(der)
	must(err)
	return certificate, key
}

// issue gives a certificate for a name or address, as PEM files.
func (a *authority) issue(name string, until time.Time) (certFile, keyFile string) {
	a.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	certificate, key := a.sign(template, a)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	base := strings.ReplaceAll(name, ".", "-") + certificate.SerialNumber.String()
	return a.write(base+".crt", "CERTIFICATE", certificate.Raw), a.write(base+".key", "PRIVATE KEY", pkcs8)
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

func (a *authority) file() string { return a.write("ca.pem", "CERTIFICATE", a.certificate.Raw) }

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// startTLSPeer is a peer behind TLS that answers everything.
func startTLSPeer(t *testing.T, cfg *tls.Config) *peer {
	t.Helper()
	return startPeer(t, func(c *conn) {
		secured := tls.Server(c.Conn, cfg)
		defer secured.Close()
		newConn(secured).serve(approve)
	})
}

func serverConfig(certFile, keyFile string) *tls.Config {
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	must(err)
	return &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
}

func TestTLSAndMutualTLSCarryTraffic(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	until := time.Now().Add(30 * time.Minute).Truncate(time.Second)
	certFile, keyFile := ca.issue("127.0.0.1", until)
	authorities := ca.file()
	ownCert, ownKey := ca.issue("bank.example", until.Add(-10*time.Minute))
	for name, mutual := range map[string]bool{"TLS": false, "mutual TLS": true} {
		for _, version := range []string{"1.2", "1.3"} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				server := serverConfig(certFile, keyFile)
				server.MaxVersion = tlsVersions[version]
				cfg := testConfig("")
				cfg.TLS = TLSConfig{Enabled: true, CAFile: authorities, MinVersion: version}
				if mutual {
					server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
					cfg.TLS.CertFile, cfg.TLS.KeyFile = ownCert, ownKey
				}
				cfg.Address = startTLSPeer(t, server).address()
				registry := prometheus.NewPedanticRegistry()
				l := startSignedOn(t, cfg, Options{Metrics: NewMetrics(registry)})
				for _, o := range exchangeAll(l, patience, requests(100)...) {
					if o.err != nil {
						t.Fatal(o.err)
					}
				}
				want := map[string]time.Time{"peer": until}
				earliest := until
				if mutual {
					earliest = until.Add(-10 * time.Minute)
					want["own"] = earliest
				}
				if got := l.Status().CertificateUntil; !got.Equal(earliest) {
					t.Errorf("certificates end %s, want %s", got, earliest)
				}
				got := series(t, registry)
				for whose, end := range want {
					key := "schemegate_link_certificate_expiry_timestamp_seconds certificate=" + whose + " line=0 link=test"
					if got[key] != float64(end.Unix()) {
						t.Errorf("%s is %v, want %d", key, got[key], end.Unix())
					}
				}
			})
		}
	}
}

// TestTLSFailuresAreToldApart: every way in which certificates do not fit has a cause of its own, and nothing goes out in clear.
func TestTLSFailuresAreToldApart(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	authorities := ca.file()
	good := serverConfig(ca.issue("127.0.0.1", hour))
	wantsClient := func(version uint16) *tls.Config {
		cfg := good.Clone()
		cfg.ClientAuth, cfg.ClientCAs, cfg.MaxVersion = tls.RequireAndVerifyClientCert, ca.pool(), version
		return cfg
	}
	strangersCert, strangersKey := stranger.issue("bank.example", hour)
	oldCert, oldKey := ca.issue("bank.example", time.Now().Add(-time.Minute))
	tests := map[string]struct {
		server *tls.Config
		client TLSConfig
		cause  string
	}{
		"expired":                    {serverConfig(ca.issue("127.0.0.1", time.Now().Add(-time.Minute))), TLSConfig{}, "has expired"},
		"unknown authority":          {serverConfig(stranger.issue("127.0.0.1", hour)), TLSConfig{}, "unknown authority"},
		"name mismatch":              {good, TLSConfig{ServerName: "scheme.example"}, "another name"},
		"address mismatch":           {serverConfig(ca.issue("127.0.0.9", hour)), TLSConfig{}, "another name"},
		"no client certificate, 1.2": {wantsClient(tls.VersionTLS12), TLSConfig{}, "refused our certificate"},
		"no client certificate, 1.3": {wantsClient(tls.VersionTLS13), TLSConfig{}, "refused our certificate"},
		"client certificate of a stranger, 1.2": {wantsClient(tls.VersionTLS12),
			TLSConfig{CertFile: strangersCert, KeyFile: strangersKey}, "refused our certificate"},
		"client certificate of a stranger, 1.3": {wantsClient(tls.VersionTLS13),
			TLSConfig{CertFile: strangersCert, KeyFile: strangersKey}, "refused our certificate"},
		"client certificate expired": {wantsClient(tls.VersionTLS13), TLSConfig{CertFile: oldCert, KeyFile: oldKey}, "refused our certificate"},
		"old version":                {&tls.Config{Certificates: good.Certificates, MaxVersion: tls.VersionTLS12}, TLSConfig{MinVersion: "1.3"}, "version"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(startTLSPeer(t, test.server).address())
			cfg.TLS = test.client
			cfg.TLS.Enabled, cfg.TLS.CAFile = true, authorities
			requireTLSFailure(t, startLink(t, cfg, Options{}), test.cause)
		})
	}
}

// requireTLSFailure wants the link to fail by TLS a few times, always for the same cause.
func requireTLSFailure(t *testing.T, l *Link, cause string) {
	t.Helper()
	for n := range uint64(3) {
		eventually(t, "the link failed again", func() bool { return l.Status().Reconnects > n })
		status := l.Status()
		if status.LastDown != DownTLSFailed || !strings.Contains(status.LastDownCause, cause) {
			t.Fatalf("down by %q: %s; want %q in it", status.LastDown, status.LastDownCause, cause)
		}
		if status.SignedOn || status.FramesReceived != 0 {
			t.Fatal("traffic flowed")
		}
	}
}

func TestTLSNeverFallsBackToPlainTCP(t *testing.T) {
	t.Parallel()
	const handshakeRecord = 22
	first := make(chan byte, 64)
	p := startPeer(t, func(c *conn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err == nil {
			first <- b[0]
		}
		_, _ = c.Write(framed(networkRequest(0x0800, 1, "301"))) // a plain peer
	})
	cfg := testConfig(p.address())
	cfg.TLS = TLSConfig{Enabled: true, CAFile: newAuthority(t).file()}
	l := startLink(t, cfg, Options{})
	requireTLSFailure(t, l, "does not speak TLS")
	for range 3 {
		if <-first != handshakeRecord {
			t.Fatal("something else than TLS was sent")
		}
	}
}

func TestTLSHandshakeEndsWithTheConnectTimeout(t *testing.T) {
	t.Parallel()
	p := startPeer(t, func(c *conn) { drain(c) })
	cfg := testConfig(p.address())
	cfg.ConnectTimeout = configs.Duration(50 * time.Millisecond)
	cfg.TLS = TLSConfig{Enabled: true, CAFile: newAuthority(t).file()}
	requireTLSFailure(t, startLink(t, cfg, Options{}), "connect_timeout")
}

// TestTLSShutdownIsBounded: the peer takes nothing any more, so nobody can tell it goodbye.
func TestTLSShutdownIsBounded(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	server := serverConfig(ca.issue("127.0.0.1", time.Now().Add(time.Hour)))
	release := make(chan struct{})
	p := startPeer(t, func(c *conn) {
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4096)
		if newConn(tls.Server(c.Conn, server)).signOn() == nil {
			<-release
		}
	})
	t.Cleanup(func() { close(release) })
	cfg := testConfig(p.address())
	cfg.SignOnTimeout = configs.Duration(200 * time.Millisecond)
	cfg.TLS = TLSConfig{Enabled: true, CAFile: ca.file()}
	l, stop := runLink(t, cfg, Options{Dial: smallBuffers})
	defer stop()
	waitState(t, l, SignedOn)
	all := requests(200)
	for _, m := range all {
		must(m.Set(iso8583.AdditionalData, strings.Repeat("0", 900)))
	}
	results := make(chan []outcome, 1)
	go func() { results <- exchangeAll(l, patience, all...) }()
	eventually(t, "calls are pending", func() bool { return l.Status().Pending > 100 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Run took %s to end", took)
	}
	for _, o := range <-results {
		if o.err == nil {
			t.Error("a call was answered by a peer that reads nothing")
		}
	}
}

// TestRenewedCertificateNeedsNoRestart: the files are read again for every connection.
func TestRenewedCertificateNeedsNoRestart(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	server := serverConfig(ca.issue("127.0.0.1", time.Now().Add(time.Hour)))
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
	oldCert, oldKey := ca.issue("bank.example", time.Now().Add(-time.Minute))
	cfg := testConfig(startTLSPeer(t, server).address())
	cfg.TLS = TLSConfig{Enabled: true, CAFile: ca.file(), CertFile: oldCert, KeyFile: oldKey}
	l := startLink(t, cfg, Options{})
	requireTLSFailure(t, l, "refused our certificate")
	newCert, newKey := ca.issue("bank.example", time.Now().Add(time.Hour))
	must(os.Rename(newKey, oldKey)) // between the two a connection fails, and is tried again
	must(os.Rename(newCert, oldCert))
	waitState(t, l, SignedOn)
}

// TestClosingWaitsForNobody: the peer reads nothing more, so TLS's own goodbye would wait.
func TestClosingWaitsForNobody(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	server := serverConfig(ca.issue("scheme.example", time.Now().Add(time.Hour)))
	server.MaxVersion = tls.VersionTLS12 // of which a handshake leaves nothing unread
	now := time.Now()
	client := &tls.Config{RootCAs: ca.pool(), ServerName: "scheme.example", Time: func() time.Time { return now }} // a bubble has its own
	for name, test := range map[string]struct {
		end  func(net.Conn)
		want time.Duration
	}{"given up": {closeNow, 0}, "shut down": {closePolitely, closeNotifyWait}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				go func() { _ = tls.Server(theirs, server).Handshake() }()
				secured := tls.Client(ours, client)
				must(secured.Handshake())
				synctest.Wait()
				began := time.Now()
				test.end(secured)
				if took := time.Since(began); took != test.want {
					t.Errorf("closing took %s, want %s", took, test.want)
				}
			})
		})
	}
}
