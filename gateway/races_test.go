package gateway_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// TestReversalsRaceWithEverything: clients undo authorisations, through two daemons, while they are answered, time out, are answered
// late, captured and swept, and one daemon restarts. Each ends with one reversal of the whole at most, and in one piece.
func TestReversalsRaceWithEverything(t *testing.T) {
	t.Parallel()
	const patience = 800 * time.Millisecond
	slow := func(amount string, a sim.Action, delay time.Duration) sim.Rule {
		a.Delay = configs.Duration(delay)
		return sim.Rule{When: sim.Match{MTI: authorizations, Amount: amount}, Then: a}
	}
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(slow("20.00", sim.Action{}, 0), slow("20.01", sim.Action{}, 200*time.Millisecond), slow("20.02", refused("51"), 200*time.Millisecond),
			slow("20.03", sim.Action{}, patience), slow("20.04", sim.Action{}, 2*patience), slow("20.05", refused("51"), 2*patience),
			sim.Rule{When: sim.Match{MTI: authorizations, Amount: "20.06"}, Then: silent}, sim.Rule{When: sim.Match{MTI: authorizations, Amount: "20.07"}, Then: lost}),
		Link: func(c *gateway.LinkConfig) {
			c.AnswerWithin, c.SendWithin = configs.Duration(patience), configs.Duration(patience)
			c.Silence.AnswerWithin, c.Silence.AttentionAttempts = configs.Duration(5*time.Second), 100
		},
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(10 * time.Millisecond) },
	})
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = "daemon-b" }})
	stopping := *s // the daemon that will have stopped, for those who go on asking it
	var racing sync.WaitGroup
	for i := range 64 {
		amount, reference := fmt.Sprintf("20.%02d", i%8), "ref-"+uuid.NewString()
		racing.Go(func() {
			_, _ = []*gatewaytest.Stand{&stopping, other}[i/8%2].Authorize(t, "key-"+reference, gatewaytest.Purchase(amount, map[string]any{"client_reference": reference}))
		})
		for n := range 3 {
			racing.Go(func() {
				time.Sleep(rand.N(2 * patience)) // spreads the races; nothing waits for it
				stand := []*gatewaytest.Stand{other, other, &stopping}[n]
				_, err := stand.Reverse(uuid.NewString(), uuid.Nil, map[string]any{"client_reference": reference})
				if err != nil && !expectedRefusal(err) {
					t.Errorf("reverse %s: %v", amount, err)
				}
			})
		}
		racing.Go(func() {
			time.Sleep(rand.N(patience))
			list, err := other.Gateway.Authorizations(t.Context(), gatewaytest.Tenant, gateway.Filter{ClientReference: reference, Limit: 1})
			if err != nil || len(list) == 0 || i%3 > 0 {
				return
			}
			_, err = other.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: reference, Authorization: list[0].ID,
				Request: gateway.CaptureRequest{ClientReference: "capture-" + reference}})
			if err != nil && code(t, err).Status() != 409 {
				t.Errorf("capture %s: %v", amount, err)
			}
		})
	}
	time.Sleep(patience / 2)
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	s.Start(t)
	racing.Wait()
	s.Eventually(t, "rest", func() bool {
		return s.Count(t, `SELECT (SELECT count(*) FROM card_authorization WHERE state IN ('pending', 'timed_out')) + (SELECT count(*) FROM duty WHERE state <> 'acknowledged')`) == 0
	})
	checkUndone(t, s)
}

// expectedRefusal tells whether a reversal was refused for a reason that a race may give: the state, or the daemon's restart.
func expectedRefusal(err error) bool {
	var e *gateway.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case gateway.CodeNothingToUndo, gateway.CodeCaptured, gateway.CodeShuttingDown:
		return true
	}
	return false
}

// checkUndone holds every authorisation against its duties, its ledger and what the scheme saw of it.
func checkUndone(t *testing.T, s *gatewaytest.Stand) {
	t.Helper()
	for what, query := range map[string]string{
		"more than one reversal of the whole": `SELECT count(*) FROM (SELECT FROM duty WHERE kind = 'reversal' AND number = 0 GROUP BY authorization_id HAVING count(*) > 1) d`,
		"reversed without a reversal":         `SELECT count(*) FROM card_authorization a WHERE state = 'reversed' AND NOT EXISTS (SELECT FROM duty d WHERE d.authorization_id = a.id AND d.number = 0)`,
		"captured and reversed": `SELECT count(*) FROM card_authorization a JOIN duty d ON d.authorization_id = a.id AND d.number = 0
			WHERE a.captured_minor > 0 AND d.closed_as <> 'withdrawn'`,
		"approved with a reversal":   `SELECT count(*) FROM card_authorization a JOIN duty d ON d.authorization_id = a.id AND d.number = 0 WHERE a.state = 'approved'`,
		"both a tombstone and a row": `SELECT count(*) FROM tombstone JOIN card_authorization USING (tenant, client_reference)`,
		"held though it is over": `SELECT count(*) FROM (SELECT a.id FROM card_authorization a JOIN ledger_posting p ON p.intent = a.id AND p.layer = 1 WHERE a.state <> 'approved'
			GROUP BY a.id HAVING sum(CASE p.step WHEN 1 THEN p.amount_minor ELSE -p.amount_minor END) <> 0) h`,
		"history with gaps": `SELECT count(*) FROM card_authorization a WHERE state_version <> (SELECT count(*) FROM state_history h WHERE h.subject_id = a.id)`,
	} {
		if n := s.Count(t, query); n != 0 {
			t.Errorf("%d: %s", n, what)
		}
	}
	seen := map[string]string{}
	for _, r := range s.Received(iso8583.MTIReversalAdvice) {
		if seen[r.RRN] != "" {
			t.Errorf("two 0420 of RRN %s: STAN %s and %s", r.RRN, seen[r.RRN], r.STAN)
		}
		seen[r.RRN] = r.STAN
	}
	found, err := s.Gateway.SelfCheck(t.Context())
	if err != nil || len(found) > 0 {
		t.Errorf("self-check %v, %v", found, err)
	}
	s.CheckBooks(t)
}
