package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

const (
	// maxTimelines is how many authorisations one reference shows at most, the newest.
	maxTimelines = 20
	// maxTimelineRows bounds what is read of each table for one authorisation.
	maxTimelineRows = 2000
	// maxReference bounds a reference that is looked for.
	maxReference = 64
)

// Timeline is all that is known of one authorisation, in the order in which it happened, and what comes next.
type Timeline struct {
	FoundBy       string          `json:"found_by"`      // which reference it was: id, duty_id, client_reference, capture_reference, rrn or stan
	Authorization json.RawMessage `json:"authorization"` // as it is now, in the form of a read
	Steps         []TimelineStep  `json:"steps"`
	Next          NextStep        `json:"next"`
}

// TimelineStep is one thing that happened.
type TimelineStep struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`    // state, sent, received, told, posted, event, exception or duplicate
	Subject string    `json:"subject"` // authorization, reversal, or capture or reversal with its number
	Text    string    `json:"text"`    // one line for people

	MTI          string `json:"mti,omitempty"`
	STAN         string `json:"stan,omitempty"`
	ResponseCode string `json:"response_code,omitempty"`
	Attempt      int32  `json:"attempt,omitempty"`
	Image        string `json:"image,omitempty"` // of a message, masked
	Key          string `json:"key,omitempty"`   // of a posting
	Amount       string `json:"amount,omitempty"`
	Layer        string `json:"layer,omitempty"`
	Debit        string `json:"debit,omitempty"`
	Credit       string `json:"credit,omitempty"`
	Correction   bool   `json:"correction,omitempty"`

	rank int // among steps of one moment
}

// NextStep is what will happen, or has to.
type NextStep struct {
	Text  string     `json:"text"`
	At    *time.Time `json:"at,omitempty"`
	Owner string     `json:"owner"` // schemegate, client, operator or nobody
}

// The places of steps that happened at one moment, as causes come before effects.
const (
	rankReceived = iota
	rankState
	rankPosted
	rankTold
	rankSent
	rankOther
)

// Track finds the tenant's authorisations by any reference to them and gives the timeline of each, the newest first.
func (g *Gateway) Track(ctx context.Context, tenant, reference string) ([]Timeline, error) {
	return Track(ctx, g.db, tenant, reference, g.config.Links)
}

// Track is the same on a database alone, for operators; an empty tenant is all of them. A reference is an id of ours, a client
// reference, an RRN, or a STAN, alone or with the day on which it was sent: 000123@2026-12-01. links gives the times after which
// holds expire; it may be nil.
func Track(ctx context.Context, db *pgxpool.Pool, tenant, reference string, links map[string]LinkConfig) ([]Timeline, error) {
	reference = strings.TrimSpace(reference)
	if reference == "" || len(reference) > maxReference {
		return nil, Errorf(CodeMalformedParameter, nil, "a reference has 1 to %d characters", maxReference)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := findTracked(ctx, db, tenant, reference)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	timelines := make([]Timeline, 0, len(found))
	for _, f := range found {
		t, err := timelineOf(ctx, db, f, links)
		if err != nil {
			return nil, Errorf(CodeDatabaseUnavailable, err, "")
		}
		timelines = append(timelines, t)
	}
	return timelines, nil
}

// tracked is one authorisation that a reference names, and by what.
type tracked struct {
	id uuid.UUID
	by string
}

var stanOnDay = regexp.MustCompile(`^([0-9]{6})(?:@([0-9]{4}-[0-9]{2}-[0-9]{2}))?$`)

// findTracked looks a reference up in every form it can have. One reference may name several authorisations: STANs and RRNs come
// round again.
func findTracked(ctx context.Context, db querier, tenant, reference string) ([]tracked, error) {
	var look trackedLook
	look.tenant, look.reference, look.rrn = tenant, reference, strings.ToUpper(reference)
	if id, err := uuid.Parse(reference); err == nil {
		look.id = id
	}
	if m := stanOnDay.FindStringSubmatch(reference); m != nil {
		look.stan = m[1]
		if day, err := time.Parse(time.DateOnly, m[2]); err == nil {
			look.from, look.to = day, day.AddDate(0, 0, 1)
		}
	}
	return selectTracked(ctx, db, look, maxTimelines)
}

func timelineOf(ctx context.Context, db *pgxpool.Pool, f tracked, links map[string]LinkConfig) (Timeline, error) {
	a, err := selectAnyAuthorization(ctx, db, f.id)
	if err != nil {
		return Timeline{}, err
	}
	duties, err := selectDuties(ctx, db, a)
	if err != nil {
		return Timeline{}, err
	}
	a.NumberedDuties = slices.DeleteFunc(slices.Clone(duties), func(d DutyView) bool { return d.Number == 0 })
	t := Timeline{FoundBy: f.by, Authorization: a.JSON(), Next: nextStep(a, duties, links)}
	subjects := map[uuid.UUID]string{a.ID: "authorization"}
	for _, d := range duties {
		subjects[d.ID] = dutyName(d)
	}
	if t.Steps, err = selectSteps(ctx, db, a, subjects); err != nil {
		return Timeline{}, err
	}
	entries, err := ledger.EntriesOf(ctx, db, a.ID)
	if err != nil {
		return Timeline{}, err
	}
	for _, e := range entries {
		t.Steps = append(t.Steps, postingStep(a, e))
	}
	slices.SortStableFunc(t.Steps, func(x, y TimelineStep) int {
		if c := x.At.Compare(y.At); c != 0 {
			return c
		}
		return x.rank - y.rank
	})
	return t, nil
}

func dutyName(d DutyView) string {
	if d.Number == 0 {
		return string(d.Kind)
	}
	return fmt.Sprintf("%s %d", d.Kind, d.Number)
}

func postingStep(a *Authorization, e ledger.Entry) TimelineStep {
	name := func(account int32) string {
		switch account {
		case a.CustomerAccount:
			return string(ledger.Customer)
		case a.SettlementAccount:
			return string(ledger.Settlement)
		}
		return string(ledger.Suspense)
	}
	text := fmt.Sprintf("%s %d: %s %s", e.Step, e.Number, e.Money.Text(), a.Currency)
	if e.Correction {
		text += ", a correction"
	}
	return TimelineStep{At: e.BookedAt, What: "posted", Subject: "authorization", Text: text, Key: e.Key(), Amount: e.Money.Text(),
		Layer: e.Layer.String(), Debit: name(e.DebitAccount), Credit: name(e.CreditAccount), Correction: e.Correction, rank: rankPosted}
}

// The owners of a next step.
const (
	ownerGateway  = "schemegate"
	ownerClient   = "client"
	ownerOperator = "operator"
	ownerNobody   = "nobody"
)

// nextStep says what comes, from the states alone.
func nextStep(a *Authorization, duties []DutyView, links map[string]LinkConfig) NextStep {
	for _, d := range duties {
		switch d.State {
		case reversal.Owed:
			return NextStep{Text: fmt.Sprintf("attempt %d of %s", d.Attempts+1, dutyName(d)), At: d.NextAt, Owner: ownerGateway}
		case reversal.Suspended:
			return NextStep{Text: dutyName(d) + " is suspended: a person decides, see `reversals resume`", Owner: ownerOperator}
		}
	}
	switch a.State {
	case Pending:
		at := a.DeadlineAt.UTC()
		return NextStep{Text: "the scheme's answer, or the deadline", At: &at, Owner: ownerGateway}
	case Approved:
		if a.effect() != holds || a.remaining() == 0 {
			break
		}
		next := NextStep{Text: "a capture or a reversal", Owner: ownerClient}
		if l, ok := links[a.Link]; ok && l.HoldExpiresAfter > 0 {
			at := a.CreatedAt.Add(l.HoldExpiresAfter.Std()).UTC()
			next.Text, next.At = "a capture or a reversal, or the end of the hold", &at
		}
		return next
	}
	return NextStep{Text: "nothing", Owner: ownerNobody}
}
