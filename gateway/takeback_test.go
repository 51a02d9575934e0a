package gateway

import (
	"errors"
	"testing"
	"time"
)

// TestWhatStandsAgainstTakingOfAHold: every state but approved, and what holds nothing, has its own code.
func TestWhatStandsAgainstTakingOfAHold(t *testing.T) {
	t.Parallel()
	approved := int64(1000)
	want := map[State]Code{Pending: CodeAuthorizationPending, TimedOut: CodeAuthorizationTimedOut, Declined: CodeAuthorizationDeclined,
		NotSent: CodeAuthorizationNotSent, Captured: CodeAuthorizationCaptured, Reversed: CodeAuthorizationReversed, Expired: CodeAuthorizationExpired, Approved: ""}
	for _, state := range allStates {
		a := &Authorization{State: state, Type: Purchase, MTI: "0100", ApprovedMinor: &approved, DeadlineAt: time.Now().Add(3 * time.Second), Currency: "EUR"}
		checkRefusal(t, string(state), a, want[state])
		if remains := a.remaining(); (remains != 0) != (state == Approved) {
			t.Errorf("%s: %d remain", state, remains)
		}
	}
	checkRefusal(t, "financial", &Authorization{State: Approved, Type: Purchase, MTI: "0200", ApprovedMinor: &approved}, CodeNothingHeld)
	checkRefusal(t, "refund", &Authorization{State: Approved, Type: Refund, MTI: "0200", ApprovedMinor: &approved}, CodeNothingHeld)
	checkRefusal(t, "inquiry", &Authorization{State: Approved, Type: BalanceInquiry, MTI: "0100", ApprovedMinor: &approved}, CodeNothingHeld)
	whole := &Authorization{State: Approved, Type: Purchase, MTI: "0100", ApprovedMinor: &approved, Reversal: &ReversalView{}}
	checkRefusal(t, "whole reversal owed", whole, CodeReversalOwed)
	if whole.remaining() != 0 {
		t.Error("something remains of what is to be reversed as a whole")
	}
	if got := (&Authorization{State: Approved, Type: Purchase, MTI: "1100", ApprovedMinor: &approved, CapturedMinor: 300, ReversedMinor: 200}).remaining(); got != 500 {
		t.Errorf("%d remain, want 500", got)
	}
}

func checkRefusal(t *testing.T, name string, a *Authorization, want Code) {
	t.Helper()
	err := a.notHolding()
	var problem *Error
	if !errors.As(err, &problem) {
		problem = &Error{}
	}
	if problem.Code != want || (err == nil) != (want == "") || problem.Code == CodeAuthorizationPending != (problem.RetryAfterSeconds > 0) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
	if want != "" && problem.Status() != 409 {
		t.Errorf("%s: status %d", name, problem.Status())
	}
}

func TestBalancesOfDE54(t *testing.T) {
	t.Parallel()
	good := "1001978C000000012345"
	for text, want := range map[string]int{"": 0, good: 1, good + good: 2, good[:19]: 0, good + good[:10]: 1, "xx01978C000000012345" + good: 1,
		"1001999C000000012345": 0, "1001978X000000012345": 0, "1001978C-00000012345": 0, "1001978C00000001234x": 0,
		good + good + good + good + good + good + good: maxBalances} {
		if got := parseBalances(text); len(got) != want {
			t.Errorf("%q gives %+v, want %d", text, got, want)
		}
	}
}
