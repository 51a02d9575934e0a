// Package gatewaytest puts a whole gateway up for a test: a fresh PostgreSQL database, a simulated card scheme on a real
// socket, and a Gateway between them with times short enough to wait for. It is imported from tests only.
package gatewaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

const (
	// LinkName is the one link of a stand.
	LinkName = "visa-a"
	// Tenant owns a stand's requests.
	Tenant = "bank-a"
	// PAN is the synthetic card number of Purchase.
	PAN = "4111111111111111"

	answerWithin = 800 * time.Millisecond // room for a busy machine
	waitLimit    = 15 * time.Second
)

// Options change a stand before it is put up.
type Options struct {
	Scheme  func(*sim.CardConfig)
	Link    func(*gateway.LinkConfig)
	Gateway func(*gateway.Config)
	DB      *pgtest.DB // nil for a fresh one
	Down    bool       // the gateway is made but not run
	Unready bool       // Start does not wait for the sign-on
	Beside  *Stand     // another daemon on this stand's database, scheme and keys; Scheme and DB are ignored
}

// Stand is a gateway with all it needs, up until the test ends.
type Stand struct {
	DB       *pgtest.DB
	Scheme   *sim.Card
	Gateway  *gateway.Gateway
	Config   gateway.Config
	Registry *prometheus.Registry
	Logs     *observer.ObservedLogs

	unready bool
	stop    func() error
}

// New puts a stand up and waits until its link is signed on.
func New(t testing.TB, options Options) *Stand {
	t.Helper()
	if options.Beside != nil {
		return beside(t, options)
	}
	s := &Stand{DB: options.DB, unready: options.Unready}
	if s.DB == nil {
		s.DB = pgtest.NewDB(t)
	}
	scheme := sim.DefaultCardConfig()
	scheme.LateAfter = configs.Duration(2 * answerWithin)
	scheme.GlueWait = configs.Duration(50 * time.Millisecond)
	if options.Scheme != nil {
		options.Scheme(&scheme)
	}
	card, err := sim.NewCard(scheme, zap.NewNop())
	if err != nil {
		t.Fatalf("start scheme: %v", err)
	}
	s.Scheme = card
	stopScheme := run(t, "scheme", card.Run)
	t.Cleanup(func() { _ = stopScheme() })
	s.Config = config(t, card.Addr().String(), scheme, options)
	if !options.Down {
		s.Start(t)
	}
	return s
}

// beside puts another daemon up next to an existing one. Its link is that one's before its own changes.
func beside(t testing.TB, options Options) *Stand {
	t.Helper()
	other := options.Beside
	s := &Stand{DB: other.DB, Scheme: other.Scheme, Config: other.Config, unready: options.Unready}
	l := other.Config.Links[LinkName]
	policy := *l.Silence
	l.Silence = &policy
	if options.Link != nil {
		options.Link(&l)
	}
	s.Config.Links = map[string]gateway.LinkConfig{LinkName: l}
	if options.Gateway != nil {
		options.Gateway(&s.Config)
	}
	if !options.Down {
		s.Start(t)
	}
	return s
}

// Start makes a gateway on the stand's database and link, and waits until it is signed on.
func (s *Stand) Start(t testing.TB) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	s.Logs, s.Registry = logs, prometheus.NewRegistry()
	g, err := gateway.New(s.Config, s.DB.Pool, s.Registry, zap.New(core))
	if err != nil {
		t.Fatalf("make gateway: %v", err)
	}
	s.Gateway = g
	s.stop = run(t, "gateway", g.Run)
	t.Cleanup(func() { _ = s.Stop() })
	select {
	case <-g.Ready():
	case <-time.After(waitLimit):
		t.Fatal("gateway does not get ready")
	}
	if !s.unready {
		s.AwaitSignedOn(t)
	}
}

// AwaitSignedOn waits until every link takes financial traffic.
func (s *Stand) AwaitSignedOn(t testing.TB) {
	t.Helper()
	s.Eventually(t, "link signed on", func() bool {
		for _, status := range s.Gateway.Links() {
			if status.State != link.SignedOn {
				return false
			}
		}
		return true
	})
}

// Stop ends the gateway in order; a second call does nothing.
func (s *Stand) Stop() error {
	if s.stop == nil {
		return nil
	}
	stop := s.stop
	s.stop = nil
	return stop()
}

// run starts a blocking function and returns what ends it and waits.
func run(t testing.TB, name string, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var stopped atomic.Bool
	return func() error {
		if stopped.Swap(true) {
			return nil
		}
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(waitLimit):
			t.Errorf("%s does not end", name)
			return fmt.Errorf("%s does not end", name)
		}
	}
}

func config(t testing.TB, address string, scheme sim.CardConfig, options Options) gateway.Config {
	t.Helper()
	var l gateway.LinkConfig
	l.SetDefaults()
	l.Address, l.Spec, l.Framing = address, scheme.Spec, scheme.Framing
	l.AcquirerID = "12345678901"
	l.AnswerWithin, l.SendWithin = configs.Duration(answerWithin), configs.Duration(answerWithin)
	l.ReconnectMin, l.ReconnectMax = configs.Duration(5*time.Millisecond), configs.Duration(50*time.Millisecond)
	l.EchoInterval, l.EchoTimeout = configs.Duration(10*time.Second), configs.Duration(5*time.Second) // a busy machine is no dead peer
	l.Silence = new(reversal.Policy)
	l.Silence.SetDefaults()
	l.Silence.Policy = reversal.ReversePolicy
	l.Silence.AnswerWithin = configs.Duration(answerWithin)
	l.Silence.FirstGap, l.Silence.MaxGap = configs.Duration(20*time.Millisecond), configs.Duration(200*time.Millisecond)
	l.Silence.AttentionAttempts = 4
	if options.Link != nil {
		options.Link(&l)
	}
	c := gateway.DefaultConfig()
	c.Links = map[string]gateway.LinkConfig{LinkName: l}
	c.Vault = NewVault(t)
	c.Drain = configs.Duration(2 * time.Second)
	if options.Gateway != nil {
		options.Gateway(&c)
	}
	var faults configs.Faults
	c.Validate("", &faults)
	if err := faults.Err(); err != nil {
		t.Fatalf("configuration of the stand: %v", err)
	}
	return c
}

// NewVault writes fresh keys into a directory of the test.
func NewVault(t testing.TB) gateway.VaultConfig {
	t.Helper()
	dir := t.TempDir()
	key := func(name string) configs.Secret {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(gateway.NewVaultKey()), 0o600); err != nil {
			t.Fatal(err)
		}
		return configs.Secret{File: file}
	}
	return gateway.VaultConfig{SealingKeys: []gateway.SealingKey{{ID: "k1", Secret: key("seal.key")}}, HashKey: key("hash.key")}
}

// Purchase is the JSON of a purchase with a reference of its own; changes replace or, with nil, remove top-level members.
func Purchase(amount string, changes map[string]any) []byte {
	body := map[string]any{
		"client_reference": "ref-" + uuid.NewString(), "type": "purchase", "amount": amount, "currency": "EUR",
		"card":     map[string]any{"pan": PAN, "expiry": "2912"},
		"merchant": map[string]any{"terminal_id": "TERM0001", "acceptor_id": "ACCEPTOR1", "mcc": "5411"},
		"pos":      map[string]any{"entry_mode": "051", "condition_code": "00"},
	}
	maps.Copy(body, changes)
	maps.DeleteFunc(body, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}

// Authorize sends a body under a key and waits for its answer.
func (s *Stand) Authorize(t testing.TB, key string, body []byte) (gateway.Answer, error) {
	t.Helper()
	req, err := gateway.ParseAuthorizationRequest(body)
	if err != nil {
		return gateway.Answer{}, err
	}
	return s.Gateway.Authorize(context.Background(), gateway.AuthorizeCall{Tenant: Tenant, IdempotencyKey: key, Request: req})
}

// View is an authorisation as a client reads it.
type View struct {
	ID              uuid.UUID `json:"id"`
	State           string    `json:"state"`
	Outcome         string    `json:"outcome"`
	StateVersion    int       `json:"state_version"`
	Reason          string    `json:"reason"`
	Retry           string    `json:"retry"`
	Sent            string    `json:"sent"`
	ResponseCode    string    `json:"response_code"`
	ApprovalCode    string    `json:"approval_code"`
	STAN            string    `json:"stan"`
	DateTime        string    `json:"transmission_date_time"`
	RRN             string    `json:"rrn"`
	Amount          string    `json:"amount"`
	ApprovedAmount  string    `json:"approved_amount"`
	PAN             string    `json:"pan"`
	ClientReference string    `json:"client_reference"`
	Reversal        *struct {
		ID             uuid.UUID  `json:"id"`
		State          string     `json:"state"`
		ClosedAs       string     `json:"closed_as"`
		Attempts       int        `json:"attempts"`
		NextAt         *time.Time `json:"next_at"`
		Reason         string     `json:"reason"`
		ResponseCode   string     `json:"response_code"`
		NeedsAttention bool       `json:"needs_attention"`
	} `json:"reversal"`
}

// MustAuthorize is Authorize for a request that must get an answer with a body of an authorisation.
func (s *Stand) MustAuthorize(t testing.TB, key string, body []byte) View {
	t.Helper()
	answer, err := s.Authorize(t, key, body)
	if err != nil {
		t.Fatalf("authorize: %v", err)
	}
	return Decode(t, answer.Body)
}

// Decode reads a body of an authorisation.
func Decode(t testing.TB, body []byte) View {
	t.Helper()
	var v View
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("decode answer: %v", err)
	}
	return v
}

// Read is the authorisation as it is now.
func (s *Stand) Read(t testing.TB, id uuid.UUID) View {
	t.Helper()
	a, err := s.Gateway.Authorization(context.Background(), Tenant, id)
	if err != nil {
		t.Fatalf("read authorization: %v", err)
	}
	return Decode(t, a.JSON())
}

// AwaitState waits until the authorisation is in a state.
func (s *Stand) AwaitState(t testing.TB, id uuid.UUID, state string) View {
	t.Helper()
	var v View
	s.Eventually(t, "authorization "+state, func() bool {
		v = s.Read(t, id)
		return v.State == state
	})
	return v
}

// Eventually polls a condition until it holds or the test fails.
func (s *Stand) Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(waitLimit)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Count runs a counting query as the writer.
func (s *Stand) Count(t testing.TB, query string, args ...any) int {
	t.Helper()
	var n int
	if err := s.DB.Pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("count: %v", err)
	}
	return n
}

// Received lists the messages of some types that reached the scheme, in their order.
func (s *Stand) Received(mtis ...iso8583.MTI) []sim.Record {
	var records []sim.Record
	for _, r := range s.Scheme.Journal() {
		for _, mti := range mtis {
			if r.Direction == sim.In && r.MTI == mti.String() {
				records = append(records, r)
			}
		}
	}
	return records
}

// Metric sums a metric over its labels.
func (s *Stand) Metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := s.Registry.Gather()
	if err != nil {
		t.Fatalf("gather metrics: %v", err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// CheckBooks holds the ledger against the scheme's own books, once nothing is on its way any more: both hold and have moved the same
// in every currency, the ledger's own checks find nothing, no second guard fired, and the scheme saw nothing that must not be.
func (s *Stand) CheckBooks(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	accounts, _, err := ledger.ListAccounts(ctx, s.DB.Pool, Tenant, "", ledger.MaxPage)
	if err != nil {
		t.Fatalf("list accounts: %v", err)
	}
	type totals struct{ held, moved int64 }
	ours, theirs := map[string]totals{}, map[string]totals{}
	for _, account := range accounts {
		if account.Kind != ledger.Customer {
			continue
		}
		balance, err := ledger.BalanceAt(ctx, s.DB.Pool, account, time.Time{})
		if err != nil {
			t.Fatalf("read balance: %v", err)
		}
		if balance.Held.Minor != 0 || balance.Posted.Minor != 0 {
			sum := ours[account.Currency.Numeric]
			ours[account.Currency.Numeric] = totals{sum.held + balance.Held.Minor, sum.moved - balance.Posted.Minor}
		}
	}
	for currency, total := range s.Scheme.Books().Totals() {
		if sum := (totals{total.HeldMinor, total.PostedMinor - total.CreditedMinor}); sum != (totals{}) {
			theirs[currency] = sum
		}
	}
	if !maps.Equal(ours, theirs) {
		t.Errorf("held and moved by currency: ledger %v, scheme %v", ours, theirs)
	}
	report, err := ledger.Verify(ctx, s.DB.Pool, 0)
	if err != nil {
		t.Fatalf("verify ledger: %v", err)
	}
	if !report.OK() {
		t.Errorf("ledger: %v", report.Faults())
	}
	if hits := s.Metric(t, "schemegate_ledger_unique_index_hits_total"); hits != 0 {
		t.Errorf("the ledger's own guard fired %v times", hits)
	}
	for _, r := range s.Scheme.Journal() {
		if r.Violation != "" {
			t.Errorf("the scheme complains about %s %s: %s", r.MTI, r.STAN, r.Violation)
		}
	}
}

// Sent counts the messages of a type that reached the scheme.
func (s *Stand) Sent(mti iso8583.MTI) int {
	n := 0
	for _, r := range s.Scheme.Journal() {
		if r.Direction == "in" && r.MTI == mti.String() {
			n++
		}
	}
	return n
}
