package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

const daemonLimit = 60 * time.Second

// stand is a daemon as `serve` runs it, with a scheme on the other side.
type stand struct {
	t      *testing.T
	dir    string
	file   string
	key    string
	api    string
	admin  string
	client *http.Client
	stop   context.CancelFunc
	cut    context.CancelFunc
	done   chan error
}

// newStand writes keys and configuration, and starts a scheme. database is the configuration's section.
func newStand(t *testing.T, database, silence string) *stand {
	t.Helper()
	card, err := sim.NewCard(sim.DefaultCardConfig(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- card.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	s := &stand{t: t}
	if s.dir, err = os.MkdirTemp("", "schemegate-test-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	if err := os.Chmod(s.dir, 0o711); err != nil { // the private server's user must pass through when the tests run as root
		t.Fatal(err)
	}
	for _, key := range []string{"seal.key", "hash.key"} {
		if code, _, stderr := command(t, "keys", "new", filepath.Join(s.dir, key)); code != exitOK {
			t.Fatal(stderr)
		}
	}
	_, printed, _ := command(t, "api-key", "new", "--tenant", gatewaytest.Tenant, "--name", "core")
	s.key = regexp.MustCompile(`sgk_\S+`).FindString(printed)
	s.file = writeFile(t, s.dir, "schemegate.yaml", fmt.Sprintf(`instance: test
data_dir: data
log: {level: debug}
%s
api:
  listen: 127.0.0.1:0
  keys:
%s
admin: {listen: 127.0.0.1:0}
vault:
  sealing_keys: [{id: seal-1, key: {file: seal.key}}]
  hash_key: {file: hash.key}
drain_timeout: 30s
links:
  visa-a:
    address: %s
    acquirer_id: "12345678901"
    answer_within: %s
    send_within: 400ms
    reconnect_min: 5ms
    silence: {policy: reverse, first_gap: 20ms}
`, database, regexp.MustCompile(`(?m)^ +- \{.*\}$`).FindString(printed), card.Addr(), silence))
	return s
}

// start runs the daemon until it is ready and its link is signed on.
func (s *stand) start() {
	s.t.Helper()
	c, err := loadConfig(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	var stop, cut context.Context
	stop, s.stop = context.WithCancel(context.Background())
	cut, s.cut = context.WithCancel(context.Background())
	ready := make(chan addresses, 1)
	s.done = make(chan error, 1)
	go func() { s.done <- serve(stop, cut, c, zap.NewNop(), ready) }()
	transport := &http.Transport{}
	s.client = &http.Client{Transport: transport, Timeout: daemonLimit}
	s.t.Cleanup(func() {
		s.stop()
		s.cut()
		transport.CloseIdleConnections()
	})
	select {
	case at := <-ready:
		s.api, s.admin = "http://"+at.api, "http://"+at.admin
	case err := <-s.done:
		s.t.Fatalf("the daemon ended: %v", err)
	case <-time.After(daemonLimit):
		s.t.Fatal("the daemon does not become ready")
	}
	s.eventually("the link is signed on", func() bool {
		_, body := s.get(s.api + "/v1/links")
		return strings.Contains(body, `"signed_on":true`)
	})
}

// end waits for the daemon's end.
func (s *stand) end() {
	s.t.Helper()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Fatalf("the daemon ended with %v", err)
		}
	case <-time.After(daemonLimit):
		s.t.Fatal("the daemon does not end")
	}
}

func (s *stand) eventually(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(daemonLimit); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

func (s *stand) do(r *http.Request) (int, string) {
	r.Header.Set("Authorization", "Bearer "+s.key)
	response, err := s.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

func (s *stand) get(url string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do(r)
}

func (s *stand) purchase(key, amount string) (int, string) {
	r, err := http.NewRequest(http.MethodPost, s.api+"/v1/authorizations", bytes.NewReader(gatewaytest.Purchase(amount, nil)))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	return s.do(r)
}

func TestDaemonOnItsPrivatePostgreSQL(t *testing.T) {
	t.Parallel()
	s := newStand(t, "database: {private: {shared_buffers_mib: 32, max_wal_mib: 128}}", "400ms")
	s.start()
	if status, body := s.purchase("key-1", "12.34"); status != 201 || !strings.Contains(body, `"state":"approved"`) {
		t.Fatalf("got %d %s", status, body)
	}
	status, body := s.get(s.admin + "/readyz")
	var readiness struct {
		Ready  bool `json:"ready"`
		Checks []struct {
			Name string `json:"name"`
			OK   bool   `json:"ok"`
		} `json:"checks"`
	}
	if err := json.Unmarshal([]byte(body), &readiness); err != nil || status != 200 || !readiness.Ready || len(readiness.Checks) != 4 {
		t.Fatalf("readyz: %d %s %v", status, body, err)
	}
	if status, body := s.get(s.admin + "/metrics"); status != 200 || !strings.Contains(body, `schemegate_authorizations_recorded_total{link="visa-a"} 1`) ||
		!strings.Contains(body, `schemegate_http_requests_total{route="POST /v1/authorizations",status="201"} 1`) {
		t.Fatalf("metrics: %d %s", status, body)
	}
	// Tools work beside the running daemon, and leave its server running.
	if code, stdout, stderr := command(t, "ledger", "balances", "--config", s.file); code != exitOK || !strings.Contains(stdout, "12.34") {
		t.Fatalf("balances: exit %d, %q, %q", code, stdout, stderr)
	}
	if status, _ := s.get(s.admin + "/readyz"); status != 200 {
		t.Fatalf("readyz after a tool: %d", status)
	}
	s.stop()
	s.end()
	if status, _ := s.get(s.api + "/v1/links"); status != 0 {
		t.Fatalf("the daemon still answers: %d", status)
	}
	// And without it: they start the server, and stop it again.
	code, stdout, stderr := command(t, "ledger", "verify", "--config", s.file)
	if code != exitOK || !strings.HasSuffix(stdout, "\nok\n") || !strings.Contains(stdout, "trial balance EUR pending: debit 12.34, credit 12.34") {
		t.Fatalf("verify: exit %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, stderr := command(t, "ledger", "balances", "--verify", "--tenant", gatewaytest.Tenant, "--config", s.file); code != exitOK ||
		!strings.Contains(stdout, "2 accounts agree with their postings") {
		t.Fatalf("balances: exit %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, _ := command(t, "migrate", "--config", s.file); code != exitOK || !strings.HasPrefix(stdout, "schema version ") {
		t.Fatalf("migrate: exit %d, %q", code, stdout)
	}
}

func TestFirstSignalDrainsSecondCuts(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDB(t).URL
	t.Run("drain", func(t *testing.T) {
		s := newStand(t, "database: {url: '"+url+"'}", "1s")
		s.start()
		answered := s.silentPurchase()
		s.stop()
		s.eventually("readiness ends", func() bool {
			status, body := s.get(s.admin + "/readyz")
			return status == 503 && strings.Contains(body, "the daemon is stopping")
		})
		if got := <-answered; !strings.HasPrefix(got, "201 ") || !strings.Contains(got, `"state":"timed_out"`) {
			t.Fatalf("got %s", got)
		}
		s.end()
	})
	t.Run("cut", func(t *testing.T) {
		s := newStand(t, "database: {url: '"+url+"'}", "2m")
		s.start()
		answered := s.silentPurchase()
		began := time.Now()
		s.stop()
		s.cut()
		if got := <-answered; !strings.HasPrefix(got, "201 ") || !strings.Contains(got, `"state":"timed_out"`) {
			t.Fatalf("got %s", got)
		}
		s.end()
		if took := time.Since(began); took > 20*time.Second { // the drain would take 30 s, the answer two minutes
			t.Fatalf("the cut took %s", took)
		}
	})
}

// silentPurchase sends a purchase that the scheme does not answer, and returns once it is in flight.
func (s *stand) silentPurchase() <-chan string {
	s.t.Helper()
	answered := make(chan string, 1)
	go func() {
		status, body := s.purchase("key-"+s.dir, "10.91")
		answered <- fmt.Sprint(status, " ", body)
	}()
	s.eventually("the purchase is on the wire", func() bool {
		_, body := s.get(s.api + "/v1/links")
		return strings.Contains(body, `"pending":1`)
	})
	return answered
}

func TestDaemonSaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newStand(t, "database: {url: 'postgres://nobody@127.0.0.1:1/none?connect_timeout=1'}", "1s")
	code, _, stderr := command(t, "serve", "--config", s.file)
	if code != exitFault || !strings.Contains(stderr, "migrate database") || !strings.Contains(stderr, "daemon ended") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
}

func TestToolsRefuseAnOlderSchema(t *testing.T) {
	t.Parallel()
	s := newStand(t, "database: {url: '"+pgtest.NewEmptyDB(t).URL+"'}", "1s")
	code, _, stderr := command(t, "ledger", "verify", "--config", s.file)
	if code != exitFault || !strings.Contains(stderr, "run schemegate migrate") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	if code, stdout, stderr := command(t, "migrate", "--config", s.file); code != exitOK {
		t.Fatalf("migrate: exit %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, _ := command(t, "ledger", "verify", "--config", s.file); code != exitOK || !strings.HasSuffix(stdout, "ok\n") {
		t.Fatalf("verify: exit %d, %q", code, stdout)
	}
}

func TestReadinessNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	if _, err := checkDatabase(t.Context(), db.Pool); err != nil {
		t.Fatalf("a good database: %v", err)
	}
	if err := checkClock(t.Context(), db.Pool); err != nil {
		t.Fatalf("the same machine's clock: %v", err)
	}
	d := &database{url: db.URL + "&default_transaction_read_only=on", log: zap.NewNop()}
	if !strings.Contains(db.URL, "?") {
		d.url = db.URL + "?default_transaction_read_only=on"
	}
	if err := d.connect(t.Context(), minPoolConnections); err != nil {
		t.Fatal(err)
	}
	defer d.pool.Close()
	if _, err := checkDatabase(t.Context(), d.pool); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Fatalf("a read-only database: %v", err)
	}
	empty := pgtest.NewEmptyDB(t)
	if _, err := checkDatabase(t.Context(), empty.Pool); err == nil || !strings.Contains(err.Error(), "may not insert") {
		t.Fatalf("an empty database: %v", err)
	}
	if err := checkSchema(t.Context(), empty.Pool); err == nil || !strings.Contains(err.Error(), "run schemegate migrate") {
		t.Fatalf("an empty database's schema: %v", err)
	}
}
