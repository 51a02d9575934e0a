package gateway_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// TestRestartGivesUpEveryTypeByItsOwnRule: what a former life left open is undone where it can have moved anything, and its
// money ends where the type says.
func TestRestartGivesUpEveryTypeByItsOwnRule(t *testing.T) {
	t.Parallel()
	former := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: []string{"0100", "0200"}}, Then: lost}),
		Link: func(l *gateway.LinkConfig) {
			unending(l)
			l.Types[gateway.Cash] = gateway.TypeConfig{MTI: "0200", ProcessingCode: "010000"}
		},
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(time.Millisecond) },
	})
	want := map[string]struct {
		state    string
		postings []string
	}{
		"purchase":         {"reversed", []string{heldTwenty, releasedTwenty}},
		"preauthorization": {"reversed", []string{heldTwenty, releasedTwenty}},
		"cash":             {"reversed", []string{heldTwenty, releasedTwenty}},
		"refund":           {"reversed", nil},
		"balance_inquiry":  {"timed_out", nil},
	}
	bodies := map[string][]byte{}
	for name := range want {
		changes := map[string]any{"type": name}
		if name == "balance_inquiry" {
			changes["amount"] = nil
		}
		bodies[name] = twenty(changes)
		begin(t, former, "key-"+name, bodies[name])
	}
	former.Eventually(t, "all of them at the scheme", func() bool {
		return former.Sent(iso8583.MTIAuthorizationRequest)+former.Sent(iso8583.MTIFinancialRequest) == len(want)
	})
	s := gatewaytest.New(t, gatewaytest.Options{Beside: former}) // the same instance, while the former life hangs
	for name, w := range want {
		var id uuid.UUID
		if err := s.DB.Pool.QueryRow(t.Context(), `SELECT id FROM card_authorization WHERE type = $1`, name).Scan(&id); err != nil {
			t.Fatal(err)
		}
		v := s.AwaitState(t, id, w.state)
		wantPostings(t, s, id, w.postings...)
		if v.Reason != "recovered_after_restart" || name == "balance_inquiry" && (v.Reversal != nil || v.Retry != "new_key" || v.Outcome != "unknown") || name != "balance_inquiry" && v.Reversal == nil {
			t.Errorf("%s: %+v", name, v)
		}
		again := mustAnswer(t, s, "key-"+name, bodies[name])
		if told := gatewaytest.Decode(t, again.Body); !again.Replayed || told.State != "timed_out" {
			t.Errorf("%s: the repeat got %s", name, again.Body)
		}
	}
	verifyLedger(t, s)
}
