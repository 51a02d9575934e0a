package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/schemegate/schemegate/reversal"
)

// NextStep is what will happen to an authorisation, or has to.
type NextStep struct {
	Text  string     `json:"text"`
	At    *time.Time `json:"at,omitempty"`
	Owner string     `json:"owner"` // schemegate, client, operator or nobody
}

// The owners of a next step.
const (
	ownerGateway  = "schemegate"
	ownerClient   = "client"
	ownerOperator = "operator"
	ownerNobody   = "nobody"
)

// nextStep says what comes, from the states and from the kinds of the open exceptions about the authorisation itself. What waits for a
// person comes first, since nobody else ends it.
func nextStep(a *Authorization, duties []DutyView, exceptions []string, links map[string]LinkConfig) NextStep {
	if a.State == Pending {
		at := a.DeadlineAt.UTC()
		next := NextStep{Text: "the scheme's answer, or the deadline", At: &at, Owner: ownerGateway}
		if a.Reversal != nil {
			next.Text += "; then the reversal"
		}
		return next
	}
	if d, ok := oldest(duties, reversal.Suspended); ok {
		return NextStep{Text: dutyName(d) + " is suspended: a person decides, see `schemegate duties resume`", Owner: ownerOperator}
	}
	if d, ok := oldest(duties, reversal.Owed); ok {
		text := fmt.Sprintf("attempt %d of %s", d.Attempts+1, dutyName(d))
		if d.NeedsAttention {
			text += "; a person was called"
		}
		return NextStep{Text: text, At: d.NextAt, Owner: ownerGateway}
	}
	if len(exceptions) > 0 {
		return NextStep{Text: "a person decides: " + strings.Join(exceptions, ", "), Owner: ownerOperator}
	}
	if a.State != Approved || a.remaining() == 0 {
		return NextStep{Text: "nothing", Owner: ownerNobody}
	}
	next := NextStep{Text: "a capture or a reversal", Owner: ownerClient}
	if l, ok := links[a.Link]; ok && l.HoldExpiresAfter > 0 {
		at := a.CreatedAt.Add(l.HoldExpiresAfter.Std()).UTC()
		next.Text, next.At = "a capture or a reversal, or the end of the hold", &at
	}
	return next
}

// oldest is the duty in a state that is sent first: they go one after the other, in the order of their age.
func oldest(duties []DutyView, state reversal.State) (d DutyView, ok bool) {
	in := slices.DeleteFunc(slices.Clone(duties), func(d DutyView) bool { return d.State != state })
	if len(in) == 0 {
		return d, false
	}
	return slices.MinFunc(in, func(x, y DutyView) int {
		if c := x.CreatedAt.Compare(y.CreatedAt); c != 0 {
			return c
		}
		return int(x.Number) - int(y.Number)
	}), true
}

// openExceptions are the kinds of the open exceptions about the authorisation itself.
func openExceptions(steps []TimelineStep) []string {
	var kinds []string
	for _, s := range steps {
		if s.open != "" && s.Subject == subjectAuthorization {
			kinds = append(kinds, s.open)
		}
	}
	return kinds
}
