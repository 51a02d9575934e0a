package reversal_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/reversal"
)

func TestMachine(t *testing.T) {
	t.Parallel()
	moves := map[reversal.State]map[reversal.Event]reversal.State{
		reversal.Owed: {reversal.EventAcknowledged: reversal.Acknowledged, reversal.EventRefused: reversal.Suspended,
			reversal.EventSilence: reversal.Owed},
		reversal.Suspended:    {reversal.EventAcknowledged: reversal.Acknowledged, reversal.EventResumed: reversal.Owed},
		reversal.Acknowledged: {reversal.EventReopened: reversal.Owed},
	}
	for _, state := range []reversal.State{reversal.Owed, reversal.Acknowledged, reversal.Suspended, "unheard of"} {
		for _, event := range []reversal.Event{reversal.EventAcknowledged, reversal.EventRefused, reversal.EventSilence, reversal.EventResumed,
			reversal.EventReopened, "unheard of"} {
			want, allowed := moves[state][event]
			got, err := reversal.Next(state, event)
			if allowed && (err != nil || got != want) {
				t.Errorf("%s on %s gives %s, %v, want %s", state, event, got, err, want)
			}
			if !allowed && (err == nil || got != state) {
				t.Errorf("%s on %s gives %s, %v, want a refusal", state, event, got, err)
			}
		}
	}
}

// TestGapGrowsWithinItsBounds: the n-th gap is first_gap doubled n-1 times, at most max_gap, give or take a fifth.
func TestGapGrowsWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "first"))
		most := time.Duration(rapid.Int64Range(int64(first), int64(time.Hour)).Draw(t, "most"))
		attempt := rapid.Int32Range(1, 1<<31-1).Draw(t, "attempt")
		want := most
		if doublings := attempt - 1; doublings < 22 && first<<doublings < most { // an hour is less than 2^22 ms
			want = first << doublings
		}
		got := reversal.Policy{FirstGap: configs.Duration(first), MaxGap: configs.Duration(most)}.Gap(attempt)
		if got < want-want/5 || got > want+want/5 {
			t.Fatalf("gap %s, want %s give or take a fifth", got, want)
		}
	})
}

// TestGapIsJittered: duties born together do not come back together.
func TestGapIsJittered(t *testing.T) {
	t.Parallel()
	policy := reversal.Policy{FirstGap: configs.Duration(time.Second), MaxGap: configs.Duration(time.Minute)}
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[policy.Gap(1)] = true
	}
	if len(seen) < 90 {
		t.Fatalf("%d different gaps of 100", len(seen))
	}
}

// TestAttentionCountsFromTheFirstAttempt: the delay that the profile asks for is not waiting.
func TestAttentionCountsFromTheFirstAttempt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	policy := reversal.Policy{ReversalDelay: configs.Duration(time.Hour), AttentionAfter: configs.Duration(15 * time.Minute)}
	if got, want := policy.AttentionBefore(now), now.Add(-75*time.Minute); !got.Equal(want) {
		t.Fatalf("duties since %s need attention, want %s", got, want)
	}
}

func TestPolicyIsValidated(t *testing.T) {
	t.Parallel()
	valid := func() reversal.Policy {
		var p reversal.Policy
		p.SetDefaults()
		p.Policy = reversal.ReversePolicy
		return p
	}
	for key, change := range map[string]func(*reversal.Policy){
		"":                   func(*reversal.Policy) {},
		"policy":             func(p *reversal.Policy) { p.Policy = "" },
		"response_code":      func(p *reversal.Policy) { p.ResponseCode = "9" },
		"reversal_delay":     func(p *reversal.Policy) { p.ReversalDelay = -1 },
		"answer_within":      func(p *reversal.Policy) { p.AnswerWithin = 0 },
		"first_gap":          func(p *reversal.Policy) { p.FirstGap = 0 },
		"max_gap":            func(p *reversal.Policy) { p.MaxGap = p.FirstGap - 1 },
		"attention_attempts": func(p *reversal.Policy) { p.AttentionAttempts = 0 },
		"attention_after":    func(p *reversal.Policy) { p.AttentionAfter = 0 },
		"in_flight":          func(p *reversal.Policy) { p.InFlight = 0 },
	} {
		p := valid()
		change(&p)
		var faults configs.Faults
		p.Validate("silence", &faults)
		switch {
		case key == "" && len(faults) != 0:
			t.Errorf("the defaults are refused: %v", faults)
		case key != "" && (len(faults) != 1 || faults[0].Path != "silence."+key):
			t.Errorf("%s: %v", key, faults)
		}
	}
	var empty reversal.Policy
	empty.SetDefaults()
	var faults configs.Faults
	empty.Validate("silence", &faults)
	if len(faults) != 1 || faults[0].Path != "silence.policy" {
		t.Errorf("a profile that states no policy gives %v", faults)
	}
}
