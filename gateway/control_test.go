package gateway_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
)

func control(t *testing.T, s *gatewaytest.Stand, action gateway.LinkAction) {
	t.Helper()
	answer, err := s.Gateway.ControlLink(t.Context(), gateway.LinkCall{Tenant: gatewaytest.Tenant, IdempotencyKey: uuid.NewString(), Link: gatewaytest.LinkName,
		Action: action, Request: gateway.LinkRequest{Reason: "rehearsal of " + string(action)}})
	if err != nil || answer.Status != 200 {
		t.Fatalf("%s: %d, %v", action, answer.Status, err)
	}
}

// TestHeldLinkTakesNothingNewAndDeliversWhatIsOwed, here, in a daemon beside, and after a restart.
func TestHeldLinkTakesNothingNewAndDeliversWhatIsOwed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = "daemon-b" }})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	control(t, s, gateway.LinkHold)
	sent := len(s.Received(iso8583.MTIAuthorizationRequest))
	if _, err := s.Authorize(t, "key-2", gatewaytest.Purchase("12.00", nil)); code(t, err).Code != gateway.CodeLinkHeld {
		t.Fatalf("held: %v", err)
	}
	s.AwaitState(t, v.ID, "reversed")
	other.Eventually(t, "the other daemon holds too", func() bool {
		return other.Gateway.Links()[0].Held
	})
	if again := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", map[string]any{"client_reference": v.ClientReference})); again.ID != v.ID {
		t.Error("a repeat does not get its answer while the link is held")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	if _, err := s.Authorize(t, "key-2", gatewaytest.Purchase("12.00", nil)); code(t, err).Code != gateway.CodeLinkHeld {
		t.Fatalf("held after a restart: %v", err)
	}
	if _, err := other.Authorize(t, "key-3", gatewaytest.Purchase("12.00", nil)); code(t, err).Code != gateway.CodeLinkHeld {
		t.Fatalf("held beside: %v", err)
	}
	if n := len(s.Received(iso8583.MTIAuthorizationRequest)); n != sent {
		t.Errorf("%d authorizations left while the link was held", n-sent)
	}
	control(t, s, gateway.LinkResume)
	if v := s.MustAuthorize(t, "key-4", gatewaytest.Purchase("12.00", nil)); v.State != "approved" {
		t.Errorf("resumed: %s", v.State)
	}
	if n := s.Count(t, `SELECT count(*) FROM link_control_history`); n != 2 {
		t.Errorf("%d rows of history, want 2", n)
	}
}

// TestPlannedSignOffOutlivesARestart: the scheme hears 0800 sign-off, and no sign-on until a person asks for it.
func TestPlannedSignOffOutlivesARestart(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	control(t, s, gateway.LinkSignOff)
	s.Eventually(t, "signed off at the scheme", func() bool { return networkCodes(s, "002") == 1 })
	if _, err := s.Authorize(t, "key-1", gatewaytest.Purchase("12.00", nil)); code(t, err).Code != gateway.CodeLinkUnavailable {
		t.Fatalf("signed off: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	signOns := networkCodes(s, "001")
	s = startUnready(t, s)
	s.Eventually(t, "connected and signed off", func() bool {
		l := s.Gateway.Links()[0]
		return l.State == link.SignedOff && l.PlannedOff
	})
	if n := networkCodes(s, "001"); n != signOns {
		t.Fatal("signed on after a restart although it is to stay off")
	}
	control(t, s, gateway.LinkSignOn)
	s.AwaitSignedOn(t)
	if v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.00", nil)); v.State != "approved" {
		t.Errorf("signed on: %s", v.State)
	}
}

func startUnready(t *testing.T, s *gatewaytest.Stand) *gatewaytest.Stand {
	t.Helper()
	return gatewaytest.New(t, gatewaytest.Options{Beside: s, Unready: true})
}

// networkCodes counts the network management requests with a code that reached the scheme.
func networkCodes(s *gatewaytest.Stand, code string) int {
	n := 0
	for _, r := range s.Received(iso8583.MTINetworkManagementRequest) {
		if r.NetworkCode == code {
			n++
		}
	}
	return n
}

func TestControlNeedsAReasonAndALink(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for name, body := range map[string]string{"none": `{}`, "two lines": `{"reason":"a\nb"}`, "too long": `{"reason":"` + strings.Repeat("x", 201) + `"}`,
		"card number": `{"reason":"for 4111111111111111"}`, "unknown field": `{"reason":"why","for":"ever"}`} {
		if _, err := gateway.ParseLinkRequest([]byte(body)); code(t, err).Code != gateway.CodeValidationFailed || strings.Contains(err.Error(), "4111") {
			t.Errorf("%s: %v", name, err)
		}
	}
	call := gateway.LinkCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "key-1", Link: "no-such", Action: gateway.LinkHold, Request: gateway.LinkRequest{Reason: "why"}}
	if _, err := s.Gateway.ControlLink(t.Context(), call); code(t, err).Code != gateway.CodeNotFound {
		t.Errorf("unknown link: %v", err)
	}
}

// TestRepeatedDecisionDecidesNothingAnew: a hold that comes again after the link was resumed is the old one.
func TestRepeatedDecisionDecidesNothingAnew(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	call := gateway.LinkCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "key-1", Link: gatewaytest.LinkName, Action: gateway.LinkHold, Request: gateway.LinkRequest{Reason: "why"}}
	first, err := s.Gateway.ControlLink(t.Context(), call)
	if err != nil || !s.Gateway.Links()[0].Held {
		t.Fatalf("hold: %v", err)
	}
	control(t, s, gateway.LinkResume)
	again, err := s.Gateway.ControlLink(t.Context(), call)
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) || s.Gateway.Links()[0].Held {
		t.Fatalf("repeat: %+v, %v, held %v", again, err, s.Gateway.Links()[0].Held)
	}
	call.Action = gateway.LinkSignOff
	if _, err := s.Gateway.ControlLink(t.Context(), call); code(t, err).Code != gateway.CodeKeyReuse {
		t.Errorf("the key of another decision: %v", err)
	}
}
