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

// stillWorking lets a link wait for interim answers: its own wait is short, each of them adds half a second, and two seconds are the most.
func stillWorking(most time.Duration) gatewaytest.Options {
	return gatewaytest.Options{
		Scheme: func(c *sim.CardConfig) { c.LateAfter = configs.Duration(300 * time.Millisecond) },
		Link: func(l *gateway.LinkConfig) {
			l.AnswerWithin, l.SendWithin = configs.Duration(400*time.Millisecond), configs.Duration(400*time.Millisecond)
			l.InterimExtension, l.InterimMost = configs.Duration(500*time.Millisecond), configs.Duration(most)
		},
	}
}

// TestInterimAnswersExtendTheWaitUpToTheCap (RC 09): the answer that counts decides; without one the cap does, and never later.
func TestInterimAnswersExtendTheWaitUpToTheCap(t *testing.T) {
	t.Parallel()
	const most = 2 * time.Second
	s := gatewaytest.New(t, stillWorking(most))
	if v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("11.11", nil)); v.State != "approved" || v.ResponseCode != "00" {
		t.Errorf("approved after two interim answers: %s %s", v.State, v.ResponseCode)
	}
	began := time.Now()
	v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("11.12", nil))
	if waited := time.Since(began); v.State != "timed_out" || waited < 700*time.Millisecond || waited > most+time.Second {
		t.Errorf("interim answers alone: %s after %s", v.State, waited)
	}
	s.AwaitState(t, v.ID, "reversed")
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 2 {
		t.Errorf("%d requests reached the scheme", n)
	}
	s.CheckBooks(t)
}

// TestInterimAnswersWithoutACapExtendNothing: the caller was promised answer_within.
func TestInterimAnswersWithoutACapExtendNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, stillWorking(0))
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("11.11", nil))
	if v.State != "timed_out" {
		t.Fatalf("%s", v.State)
	}
	s.AwaitState(t, v.ID, "reversed")
	s.CheckBooks(t)
}

// TestHostileAnswersAreNeverTakenForAnApproval: each amount makes the scheme approve and answer wrongly. All of them end undone.
func TestHostileAnswersAreNeverTakenForAnApproval(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for _, amount := range []string{"11.01", "11.02", "11.03", "11.04", "11.05", "11.06", "11.07", "11.09"} {
		t.Run(amount, func(t *testing.T) {
			v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase(amount, nil))
			if v.State != "timed_out" || v.Outcome != "unknown" || v.Retry != "never" || v.Reversal == nil {
				t.Fatalf("%s, outcome %s, reason %s", v.State, v.Outcome, v.Reason)
			}
			s.AwaitState(t, v.ID, "reversed")
		})
	}
	s.CheckBooks(t)
}

// TestNotSignedOnAnswerSignsOnAndSendsNothingAgain (S65): the decline stands, the next request is a new one.
func TestNotSignedOnAnswerSignsOnAndSendsNothingAgain(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.Spec.ResponseCodes = map[string]string{"89": "not_signed_on", "58": "not_signed_on"}
	}})
	signOns := networkCodes(s, "001")
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("11.13", nil))
	if v.State != "declined" || v.Retry != "new_key" {
		t.Fatalf("%s %s, retry %s", v.State, v.ResponseCode, v.Retry)
	}
	s.Eventually(t, "signed on again", func() bool { return networkCodes(s, "001") == signOns+1 })
	s.AwaitSignedOn(t)
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Errorf("%d requests reached the scheme", n)
	}
	s.CheckBooks(t)
}

// TestAnswersOnAnotherLineFindTheirRequest, and a lost line fails only what was on it.
func TestAnswersOnAnotherLineFindTheirRequest(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Lines = 2 }})
	s.Eventually(t, "both lines signed on", func() bool {
		for _, line := range s.Gateway.Links()[0].Lines {
			if !line.SignedOn {
				return false
			}
		}
		return len(s.Gateway.Links()[0].Lines) == 2
	})
	if v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("11.15", nil)); v.State != "approved" {
		t.Errorf("answered on the other line: %s %s", v.State, v.Reason)
	}
	v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("10.91", nil))
	s.AwaitState(t, v.ID, "reversed")
	s.CheckBooks(t)
}
