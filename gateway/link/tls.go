package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schemegate/schemegate/configs"
)

// closeNotifyWait is how long the end of an orderly shutdown waits for the peer to take TLS's close_notify.
const closeNotifyWait = time.Second

// tlsVersions are the versions that may be the least one; older ones are broken (RFC 8996).
var tlsVersions = map[string]uint16{"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// TLSConfig is a link's TLS. A link that has it never falls back to plain TCP.
type TLSConfig struct {
	Enabled bool `yaml:"enabled"`
	// CAFile are the authorities that may sign the peer's certificate, as PEM; empty means the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are our own certificate (with its chain) and key, for a peer that asks for one; both or neither. They are read
	// again for every connection, so that a renewed certificate needs no restart.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is who the peer's certificate must be for; empty means the host of the line's address.
	ServerName string `yaml:"server_name"`
	// MinVersion is 1.2 (default) or 1.3.
	MinVersion string `yaml:"min_version"`
}

func (c TLSConfig) validate(at func(string) string, f *configs.Faults) {
	if !c.Enabled {
		if c != (TLSConfig{}) {
			f.Add(at("tls.enabled"), "tls has settings but is not enabled", false)
		}
		return
	}
	if _, known := tlsVersions[c.MinVersion]; !known {
		f.Add(at("tls.min_version"), "1.2 or 1.3", c.MinVersion)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		f.Add(at("tls.cert_file"), "cert_file and key_file belong together", nil)
		return
	}
	if _, err := c.authorities(); err != nil {
		f.Add(at("tls.ca_file"), err.Error(), nil)
	}
	if _, err := c.certificates(); err != nil {
		f.Add(at("tls.cert_file"), err.Error(), nil)
	}
}

// authorities gives nil for the system's.
func (c TLSConfig) authorities() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("read ca_file: no certificate in it")
	}
	return pool, nil
}

func (c TLSConfig) certificates() ([]tls.Certificate, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read cert_file and key_file: %w", err)
	}
	return []tls.Certificate{certificate}, nil
}

// secure does the handshake on a fresh connection; ctx ends with the connect timeout.
func (l *Line) secure(ctx context.Context, nc net.Conn) (*tls.Conn, error) {
	c := l.cfg.TLS
	authorities, err := c.authorities()
	if err != nil {
		return nil, err
	}
	certificates, err := c.certificates()
	if err != nil {
		return nil, err
	}
	name := c.ServerName
	if name == "" {
		if name, _, err = net.SplitHostPort(l.address); err != nil {
			return nil, fmt.Errorf("read address: %w", err)
		}
	}
	if len(certificates) > 0 { // before the handshake: one that the peer refuses is the one to look at
		l.noteCertificate("own", certificates[0].Leaf.NotAfter)
	}
	asked := false
	conn := tls.Client(nc, &tls.Config{
		RootCAs: authorities, ServerName: name, MinVersion: tlsVersions[c.MinVersion],
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return fitting(info, certificates), nil
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, tlsCause(err, asked)
	}
	peer := conn.ConnectionState().PeerCertificates[0].NotAfter
	l.noteCertificate("peer", peer)
	earliest := peer
	if len(certificates) > 0 {
		if own := certificates[0].Leaf.NotAfter; own.Before(earliest) {
			earliest = own
		}
	}
	l.link.mu.Lock()
	l.status.CertificateUntil = earliest
	l.link.mu.Unlock()
	return conn, nil
}

// fitting chooses the certificate that the peer's request allows, or none, which the peer may refuse.
func fitting(info *tls.CertificateRequestInfo, certificates []tls.Certificate) *tls.Certificate {
	for i := range certificates {
		if info.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i]
		}
	}
	return new(tls.Certificate)
}

func (l *Line) noteCertificate(whose string, until time.Time) {
	l.metrics.certificateExpiry.WithLabelValues(l.name, strconv.Itoa(l.number), whose).Set(float64(until.Unix()))
}

// tlsCause says what a person has to change, in front of what the library says; asked is whether the peer asked for our certificate.
func tlsCause(err error, asked bool) error {
	what := "the handshake failed"
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		what = "the peer's certificate has expired or is not valid yet"
	} else if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		what = "the peer's certificate is signed by an unknown authority; look at tls.ca_file"
	} else if _, ok := errors.AsType[x509.HostnameError](err); ok {
		what = "the peer's certificate is for another name; look at tls.server_name"
	} else if refusesCertificate(err) || asked && alert(err) != "" {
		what = "the peer refused our certificate, or its absence; look at tls.cert_file"
	} else if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		what = "the peer does not speak TLS"
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		what = "the handshake was not finished within connect_timeout"
	}
	return fmt.Errorf("TLS: %s: %w", what, err)
}

// alert gives the text of a TLS alert that the peer sent, "" when err is none. The library has no type for it.
func alert(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}

// refusesCertificate reports whether an alert is about our certificate. In TLS 1.3 it comes after our side of the handshake is
// done, in TLS 1.2 within it and sometimes as a mere failure of the handshake.
func refusesCertificate(err error) bool {
	text := alert(err)
	return strings.Contains(text, "certificate") || strings.Contains(text, "access denied")
}

// closeNow closes the connection without waiting for anybody: TLS's own Close waits for the peer to take its last message.
func closeNow(nc net.Conn) {
	if secured, ok := nc.(*tls.Conn); ok {
		nc = secured.NetConn()
	}
	nc.Close()
}

// closePolitely ends an orderly shutdown: a TLS peer is told, unless it does not take the message.
func closePolitely(nc net.Conn) {
	stop := time.AfterFunc(closeNotifyWait, func() { closeNow(nc) })
	defer stop.Stop()
	nc.Close()
}
