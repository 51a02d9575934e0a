package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

// idle makes a gateway that is not run, and the call of one purchase.
func idle(t *testing.T) (*Gateway, AuthorizeCall) {
	t.Helper()
	var l LinkConfig
	l.SetDefaults()
	l.Address, l.AcquirerID, l.Silence = "127.0.0.1:1", "123", new(reversal.Policy)
	l.Silence.SetDefaults()
	c := DefaultConfig()
	c.Links = map[string]LinkConfig{"visa-a": l}
	key := func(name string) configs.Secret {
		t.Setenv(name, NewVaultKey())
		return configs.Secret{Env: name}
	}
	c.Vault = VaultConfig{SealingKeys: []SealingKey{{ID: "k1", Secret: key("CLOCK_TEST_SEALING_KEY")}}, HashKey: key("CLOCK_TEST_HASH_KEY")}
	g, err := New(c, pgtest.NewDB(t).Pool, prometheus.NewRegistry(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	req, err := ParseAuthorizationRequest([]byte(`{"client_reference":"ref-1","type":"purchase","amount":"10.50","currency":"EUR","card":{"pan":"4111111111111111"},
		"merchant":{"terminal_id":"TERM0001","acceptor_id":"ACCEPTOR1"},"pos":{"entry_mode":"051","condition_code":"00"}}`))
	if err != nil {
		t.Fatal(err)
	}
	return g, AuthorizeCall{Tenant: "bank-a", IdempotencyKey: "key-1", Request: req}
}

// monotonic tells whether a time still has its monotonic reading, without which a wait follows the wall clock.
func monotonic(at time.Time) bool { return strings.Contains(at.String(), "m=") }

// A step of the wall clock neither shortens nor lengthens a wait: the times that bound an exchange are monotonic, and the
// sweep, which reads times from the database, leaves alone what this process is running.
func TestS69_ClockStepsMoveNoTimer(t *testing.T) {
	g, call := idle(t) // not parallel: its keys are in the environment
	before := time.Now()
	f, err := g.prepare(t.Context(), g.links["visa-a"], call, []byte{1})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]time.Time{"send before": f.sendBefore, "deadline": f.deadline} {
		if !monotonic(at) {
			t.Errorf("%s has lost its monotonic reading", name)
		}
	}
	config := g.links["visa-a"].config
	if wait := f.deadline.Sub(before); wait < config.AnswerWithin.Std() || wait > config.AnswerWithin.Std()+time.Minute {
		t.Errorf("deadline %s after the entry", wait)
	}
	if wait := f.sendBefore.Sub(before); wait < config.SendWithin.Std() || !f.sendBefore.Before(f.deadline) {
		t.Errorf("send before %s after the entry", wait)
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.committer.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := g.committer.Do(t.Context(), commit.Step(f.step)); err != nil || !f.step.won {
		t.Fatalf("record: %v", err)
	}
	g.flights.add(f)
	for _, step := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		if n, err := g.sweepOnce(t.Context(), time.Now().Add(step)); err != nil || n != 0 {
			t.Fatalf("a clock stepped by %s: %d given up, %v", step, n, err)
		}
	}
	if a := mustSelect(t, g, f.authorization.ID); a.State != Pending {
		t.Fatalf("a step of the clock made it %s", a.State)
	}
	g.flights.remove(f) // once nobody runs it any more, the sweep is the one to decide
	if n, err := g.sweepOnce(t.Context(), time.Now().Add(time.Hour)); err != nil || n != 1 {
		t.Fatalf("%d given up, %v", n, err)
	}
	if a := mustSelect(t, g, f.authorization.ID); a.State != TimedOut || a.Reversal == nil {
		t.Fatalf("then %s", a.State)
	}
}

func mustSelect(t *testing.T, g *Gateway, id uuid.UUID) *Authorization {
	t.Helper()
	a, err := selectAuthorization(t.Context(), g.db, "bank-a", id)
	if err != nil || a == nil {
		t.Fatalf("read: %v", err)
	}
	return a
}
