// Package reversal is the duty to undo a card authorisation whose outcome is not known.
//
// A duty is owed in the transaction that gives the authorisation up, before any caller hears of it. From then on it is sent
// as 0420 and, until it is acknowledged, again as 0421 with the same STAN, RRN and original data elements:
//
//	owed -> acknowledged    by its own response only: done, or one of the profile's "nothing to undo" codes
//	owed -> suspended       a format error or an unlisted code: sending the same bytes again cannot help; the hold stays
//	suspended -> owed | acknowledged   by a person; acknowledged also by a response to an earlier attempt
//	acknowledged -> owed    an approval that came after "nothing to undo", or after the duty was withdrawn: there is something now
//
// A duty is withdrawn, which closes it unsent, when its original turns out to be declined or never to have left. Whatever closed it,
// and what it was closed as, stands in the row.
//
// Silence moves nothing: it is counted, and the next attempt comes later, with a growing, jittered gap. After the policy's
// threshold a person is called (an exception), and the attempts go on. A duty is never dropped.
//
// Safety argument. Attempt n is committed (Claim) before its first byte leaves, so a crash in between costs one repeat and
// never forgets that something may be on the wire. The result of an attempt is written only while the duty is still owed and
// the claim it was made under still stands, so a late or repeated result can acknowledge a duty (any 0430 of this STAN does) but
// never move its schedule back. The receiver makes repeats harmless: they carry one identity.
package reversal

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/schemegate/schemegate/configs"
)

// State is where a duty stands.
type State string

// The states of a duty.
const (
	Owed         State = "owed"
	Acknowledged State = "acknowledged"
	Suspended    State = "suspended"
)

// Event is what happened to a duty.
type Event string

// The events of the machine. EventSilence is an attempt without a usable answer, EventReopened an approval of what was closed as
// nothing to undo.
const (
	EventAcknowledged Event = "acknowledged"
	EventRefused      Event = "refused"
	EventSilence      Event = "silence"
	EventResumed      Event = "resumed"
	EventReopened     Event = "reopened"
)

// Next is the machine as a pure function.
func Next(state State, event Event) (State, error) {
	switch state {
	case Owed:
		switch event {
		case EventAcknowledged:
			return Acknowledged, nil
		case EventRefused:
			return Suspended, nil
		case EventSilence:
			return Owed, nil
		}
	case Suspended:
		switch event {
		case EventAcknowledged:
			return Acknowledged, nil
		case EventResumed:
			return Owed, nil
		}
	case Acknowledged:
		if event == EventReopened {
			return Owed, nil
		}
	}
	return state, fmt.Errorf("reversal %s cannot take %s", state, event)
}

// Reason says why an authorisation is undone.
type Reason string

// The reasons; they stand in the row and in the answer to the caller.
const (
	Timeout                    Reason = "timeout"
	LinkLost                   Reason = "link_lost"
	Undecodable                Reason = "response_undecodable"
	Contradiction              Reason = "response_contradicts_request"
	UnlistedCode               Reason = "response_code_unlisted"
	UnrequestedPartialApproval Reason = "unrequested_partial_approval"
	Recovered                  Reason = "recovered_after_restart"
	Swept                      Reason = "swept_past_deadline"
	Customer                   Reason = "customer_cancellation"   // asked for by the client
	Undelivered                Reason = "answer_undelivered"      // asked for by the client: its answer could not be used at the point of service
	LateApproval               Reason = "approved_after_decision" // the scheme approved what was certainly not sent
	Completion                 Reason = "completion"              // of a capture
)

// ReversePolicy is the only silence policy of a card link.
const ReversePolicy = "reverse"

// Policy is a card link's silence policy: what the caller is told, and how the reversal is delivered.
type Policy struct {
	Policy            string           `yaml:"policy"`             // reverse
	ResponseCode      string           `yaml:"response_code"`      // DE 39 the caller sees for an authorisation without an answer
	ReversalDelay     configs.Duration `yaml:"reversal_delay"`     // from the timeout to the first 0420
	AnswerWithin      configs.Duration `yaml:"answer_within"`      // for each attempt
	FirstGap          configs.Duration `yaml:"first_gap"`          // from a silent attempt to the next; doubles each time
	MaxGap            configs.Duration `yaml:"max_gap"`            // where the doubling ends
	AttentionAttempts int              `yaml:"attention_attempts"` // unacknowledged attempts before a person is called
	AttentionAfter    configs.Duration `yaml:"attention_after"`    // from when the first 0420 is due; past it a person is called however few attempts there were
	InFlight          int              `yaml:"in_flight"`          // reversals of one link on the wire at once

	LateDeclineWithdraws bool `yaml:"late_decline_withdraws"` // a decline that comes late withdraws a reversal of which nothing was sent yet
}

// SetDefaults fills in all but the policy itself, which a profile must state.
func (p *Policy) SetDefaults() {
	*p = Policy{
		ResponseCode:      "91",
		AnswerWithin:      configs.Duration(10 * time.Second),
		FirstGap:          configs.Duration(5 * time.Second),
		MaxGap:            configs.Duration(5 * time.Minute),
		AttentionAttempts: 10,
		AttentionAfter:    configs.Duration(15 * time.Minute),
		InFlight:          64,
	}
}

// Bounds of a policy.
const (
	maxReversalDelay  = 24 * time.Hour
	maxAnswerWithin   = 5 * time.Minute
	maxGap            = time.Hour
	maxAttention      = 1000
	maxAttentionAfter = 7 * 24 * time.Hour
	maxInFlight       = 1024
)

// Validate names every fault of the policy.
func (p Policy) Validate(path string, f *configs.Faults) {
	if p.Policy != ReversePolicy {
		f.Add(path+".policy", "a card link's policy is "+ReversePolicy, p.Policy)
	}
	if n := len(p.ResponseCode); n != 2 && n != 3 {
		f.Add(path+".response_code", "two characters, in the 1993 edition three (DE 39), such as 91 or 911", p.ResponseCode)
	}
	bound := func(key string, d configs.Duration, low, high time.Duration) {
		if time.Duration(d) < low || time.Duration(d) > high {
			f.Add(path+"."+key, fmt.Sprintf("%s to %s", low, high), d)
		}
	}
	bound("reversal_delay", p.ReversalDelay, 0, maxReversalDelay)
	bound("answer_within", p.AnswerWithin, time.Millisecond, maxAnswerWithin)
	bound("first_gap", p.FirstGap, time.Millisecond, maxGap)
	bound("max_gap", p.MaxGap, time.Duration(max(p.FirstGap, 0)), maxGap)
	if p.AttentionAttempts < 1 || p.AttentionAttempts > maxAttention {
		f.Add(path+".attention_attempts", fmt.Sprintf("1 to %d", maxAttention), p.AttentionAttempts)
	}
	bound("attention_after", p.AttentionAfter, time.Millisecond, maxAttentionAfter)
	if p.InFlight < 1 || p.InFlight > maxInFlight {
		f.Add(path+".in_flight", fmt.Sprintf("1 to %d", maxInFlight), p.InFlight)
	}
}

// AttentionBefore is the moment such that a duty owed since before it has waited too long at now. The delay that the profile
// itself asks for is not part of the wait.
func (p Policy) AttentionBefore(now time.Time) time.Time {
	return now.Add(-time.Duration(p.ReversalDelay) - time.Duration(p.AttentionAfter))
}

// Gap is how long after the n-th attempt (from 1) the next one is due: first_gap doubled n-1 times, at most max_gap, and
// moved by up to a fifth either way so that duties born together do not return together.
func (p Policy) Gap(attempt int32) time.Duration {
	gap := time.Duration(p.FirstGap)
	for i := int32(1); i < attempt && gap < time.Duration(p.MaxGap); i++ {
		gap *= 2
	}
	gap = min(gap, time.Duration(p.MaxGap))
	return gap - gap/5 + rand.N(2*gap/5+1)
}
