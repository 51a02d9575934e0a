package gateway_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// inDialect puts a stand's scheme and link into a dialect. The 1993 edition needs types of its own.
func inDialect(dialect iso8583.Dialect) gatewaytest.Options {
	return gatewaytest.Options{
		Scheme: func(c *sim.CardConfig) { c.Spec = iso8583.SpecConfig{Dialect: dialect} },
		Link: func(l *gateway.LinkConfig) {
			if !strings.HasPrefix(string(dialect), "1993") {
				return
			}
			l.Types = map[gateway.AuthorizationType]gateway.TypeConfig{
				gateway.Purchase:         {MTI: "1100", ProcessingCode: "000000", FunctionCode: "100"},
				gateway.Preauthorization: {MTI: "1100", ProcessingCode: "000000", FunctionCode: "101"},
				gateway.Cash:             {MTI: "1200", ProcessingCode: "010000", FunctionCode: "200"},
				gateway.Refund:           {MTI: "1200", ProcessingCode: "200000", FunctionCode: "200"},
				gateway.BalanceInquiry:   {MTI: "1100", ProcessingCode: "310000", FunctionCode: "108"},
			}
			l.Reversal = gateway.ReversalConfig{MTI: "1420", STAN: "original", Partial: "de30"}
			l.Captures = gateway.CaptureConfig{MTI: "1220", FunctionCode: "202", DoneCodes: []string{"913"}}
			l.Silence.ResponseCode = "911"
		},
	}
}

// TestEveryDialectCarriesACardsWholeLife: approval, decline, silence with its reversal, completion in parts, partial reversal, cash,
// refund and balance inquiry, each against a scheme that speaks the dialect, whose books agree at the end.
func TestEveryDialectCarriesACardsWholeLife(t *testing.T) {
	t.Parallel()
	for _, dialect := range []iso8583.Dialect{iso8583.Dialect1987ASCII, iso8583.Dialect1987BCD, iso8583.Dialect1987EBCDIC, iso8583.Dialect1993ASCII, iso8583.Dialect1993BCD} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, inDialect(dialect))
			edition1993 := strings.HasPrefix(string(dialect), "1993")
			entry := map[string]any{"entry_mode": "051", "condition_code": "00"}
			if edition1993 {
				entry = map[string]any{"entry_mode": "510101512345"}
			}
			send := func(kind, amount string) gatewaytest.View {
				t.Helper()
				changes := map[string]any{"type": kind, "pos": entry}
				if amount == "" {
					changes["amount"] = nil
				}
				return s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase(amount, changes))
			}
			if v := send("purchase", "10.05"); v.State != "declined" {
				t.Errorf("declined: %s %s", v.State, v.ResponseCode)
			}
			silent := send("purchase", "10.91")
			if silent.State != "timed_out" {
				t.Errorf("silence: %s %s", silent.State, silent.ResponseCode)
			}
			completed := send("preauthorization", "50.00")
			if completed.State != "approved" {
				t.Fatalf("approval: %s %s %s", completed.State, completed.ResponseCode, completed.Reason)
			}
			captureAs(t, s, completed.ID, `{"client_reference":"`+uuid.NewString()+`","amount":"20.00"}`)
			reverseAs(t, s, completed.ID, `{"amount":"5.00"}`)
			captureAs(t, s, completed.ID, `{"client_reference":"`+uuid.NewString()+`"}`)
			if v := send("cash", "30.00"); v.State != "approved" {
				t.Errorf("cash: %s %s", v.State, v.ResponseCode)
			}
			refund := send("refund", "7.00")
			if refund.State != "approved" {
				t.Errorf("refund: %s %s", refund.State, refund.ResponseCode)
			}
			reverseAs(t, s, refund.ID, `{}`)
			if v := send("balance_inquiry", ""); v.State != "approved" {
				t.Errorf("balance inquiry: %s %s", v.State, v.ResponseCode)
			}
			s.AwaitState(t, silent.ID, "reversed")
			s.AwaitState(t, refund.ID, "reversed")
			s.Eventually(t, "every duty acknowledged", func() bool { return s.Count(t, `SELECT count(*) FROM duty WHERE state <> 'acknowledged'`) == 0 })
			if n := s.Count(t, `SELECT count(*) FROM exception`); n != 0 {
				t.Errorf("%d exceptions", n)
			}
			s.CheckBooks(t)
		})
	}
}

func captureAs(t *testing.T, s *gatewaytest.Stand, id uuid.UUID, body string) gateway.Answer {
	t.Helper()
	request, err := gateway.ParseCaptureRequest([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: uuid.NewString(), Authorization: id, Request: request})
	if err != nil {
		t.Fatalf("capture: %v", err)
	}
	return answer
}

func reverseAs(t *testing.T, s *gatewaytest.Stand, id uuid.UUID, body string) gateway.Answer {
	t.Helper()
	request, err := gateway.ParseReversalRequest([]byte(body), false)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Gateway.Reverse(t.Context(), gateway.ReverseCall{Tenant: gatewaytest.Tenant, IdempotencyKey: uuid.NewString(), Authorization: id, Request: request})
	if err != nil {
		t.Fatalf("reverse: %v", err)
	}
	return answer
}
