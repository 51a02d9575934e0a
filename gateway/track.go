package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

const (
	// MaxTimelines is how many authorisations one reference shows at most, the newest.
	MaxTimelines = 20
	// maxTimelineRows bounds what is read of each table for one authorisation.
	maxTimelineRows = 2000
)

// Timeline is all that is known of one authorisation, in the order in which it happened, and what comes next. A reversal that came
// before its authorisation has one without it.
type Timeline struct {
	FoundBy       string          `json:"found_by"`                // which reference it was: id, duty_id, client_reference, capture_reference, rrn or stan
	Authorization json.RawMessage `json:"authorization,omitempty"` // as it is now, in the form of a read
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

	rank int    // among steps of one moment
	open string // of an open exception about the authorisation: its kind
}

// The kinds of step.
const (
	stepState     = "state"
	stepSent      = "sent"
	stepReceived  = "received"
	stepTold      = "told"
	stepPosted    = "posted"
	stepException = "exception"
)

// subjectAuthorization is the subject of what is not about one of its duties.
const subjectAuthorization = "authorization"

// The places of steps that happened at one moment, as causes come before effects: an answer closes its duty, which moves the
// authorisation and its money; an authorisation that is given up owes a reversal.
const (
	rankReceived = iota
	rankDutyMoved
	rankMoved
	rankDutyOwed
	rankPosted
	rankTold
	rankSent
	rankException
	rankOther
)

// Track finds the tenant's authorisations by any reference to them and gives the timeline of each, the newest first.
func (g *Gateway) Track(ctx context.Context, tenant, reference string) ([]Timeline, error) {
	return Track(ctx, g.db, tenant, reference, g.config.Links)
}

// Track is the same on a database alone, for operators; an empty tenant is all of them. A reference is an id of ours, a client
// reference, an RRN, or a STAN, alone or with the day of UTC on which it was used: 000123@2026-12-01. At most MaxTimelines are given.
// links gives the times after which holds expire; it may be nil.
func Track(ctx context.Context, db *pgxpool.Pool, tenant, text string, links map[string]LinkConfig) ([]Timeline, error) {
	text = strings.TrimSpace(text)
	if !reference.MatchString(text) {
		return nil, Errorf(CodeMalformedParameter, nil, "a reference has 1 to 64 printable characters without spaces")
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	timelines, err := timelinesOf(ctx, db, lookFor(tenant, text), links)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return timelines, nil
}

// tracked is one authorisation that a reference names, and by what.
type tracked struct {
	id uuid.UUID
	by string
}

var stanOnDay = regexp.MustCompile(`^([0-9]{6})(?:@([0-9]{4}-[0-9]{2}-[0-9]{2}))?$`)

// lookFor takes a reference for everything that it can be. One reference may name several authorisations: STANs and RRNs come round
// again.
func lookFor(tenant, text string) trackedLook {
	look := trackedLook{tenant: tenant, reference: text, rrn: strings.ToUpper(text)}
	if id, err := uuid.Parse(text); err == nil && len(text) == uuidLength {
		look.id = id
	}
	m := stanOnDay.FindStringSubmatch(text)
	if m == nil {
		return look
	}
	if m[2] != "" {
		day, err := time.Parse(time.DateOnly, m[2])
		if err != nil {
			return look // no such day, so it is somebody's own reference
		}
		look.from, look.to = day, day.AddDate(0, 0, 1)
	}
	look.stan = m[1]
	return look
}

func timelinesOf(ctx context.Context, db *pgxpool.Pool, look trackedLook, links map[string]LinkConfig) ([]Timeline, error) {
	found, err := selectTracked(ctx, db, look, MaxTimelines)
	if err != nil {
		return nil, err
	}
	timelines := make([]Timeline, 0, len(found))
	for _, f := range found {
		t, err := timelineOf(ctx, db, f, links)
		if err != nil {
			return nil, err
		}
		timelines = append(timelines, t)
	}
	tombstones, err := selectTombstones(ctx, db, look, MaxTimelines-len(found))
	if err != nil {
		return nil, err
	}
	for _, stone := range tombstones {
		t, err := stone.timeline(ctx, db, look)
		if err != nil {
			return nil, err
		}
		timelines = append(timelines, t)
	}
	return timelines, nil
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
	t := Timeline{FoundBy: f.by, Authorization: a.JSON()}
	s := newSubjects(a, duties)
	if t.Steps, err = selectSteps(ctx, db, s); err != nil {
		return Timeline{}, err
	}
	entries, err := ledger.EntriesOf(ctx, db, a.ID)
	if err != nil {
		return Timeline{}, err
	}
	slices.SortFunc(entries, func(x, y ledger.Entry) int { // those of one moment have no order of their own
		return cmp.Or(cmp.Compare(x.Transaction, y.Transaction), cmp.Compare(x.Step, y.Step), cmp.Compare(x.Number, y.Number))
	})
	for _, e := range entries {
		t.Steps = append(t.Steps, s.posting(e))
	}
	t.Steps = append(t.Steps, s.told()...)
	t.sort()
	t.Next = nextStep(a, duties, openExceptions(t.Steps), links)
	return t, nil
}

func (t *Timeline) sort() {
	slices.SortStableFunc(t.Steps, func(x, y TimelineStep) int {
		if c := x.At.Compare(y.At); c != 0 {
			return c
		}
		return x.rank - y.rank
	})
}

// timeline is that of a reversal whose authorisation has not come, and is refused when it does.
func (t tombstone) timeline(ctx context.Context, db querier, look trackedLook) (Timeline, error) {
	steps, err := selectHappenings(ctx, db, subjects{names: map[uuid.UUID]string{t.id: string(reversal.Reversal)}})
	if err != nil {
		return Timeline{}, err
	}
	at := t.createdAt.UTC()
	timeline := Timeline{FoundBy: "client_reference", Next: NextStep{Text: "nothing: the authorization is refused if it comes", Owner: ownerNobody}}
	if t.id == look.id {
		timeline.FoundBy = "duty_id"
	}
	timeline.Steps = append(steps,
		TimelineStep{At: at, What: stepState, Subject: string(reversal.Reversal), Text: "recorded before the authorization came, " + string(t.reason), rank: rankDutyOwed},
		toldStep(at, string(reversal.Reversal), http.StatusCreated, string(reversal.Acknowledged)+", "+string(reversal.AttemptWithdrawn)))
	timeline.sort()
	return timeline, nil
}

// subjects names an authorisation and its duties for the steps of its timeline.
type subjects struct {
	authorization *Authorization
	duties        []DutyView
	names         map[uuid.UUID]string
}

func newSubjects(a *Authorization, duties []DutyView) subjects {
	s := subjects{authorization: a, duties: duties, names: map[uuid.UUID]string{a.ID: subjectAuthorization}}
	for _, d := range duties {
		s.names[d.ID] = dutyName(d)
	}
	return s
}

func dutyName(d DutyView) string {
	if d.Number == 0 {
		return string(d.Kind)
	}
	return fmt.Sprintf("%s %d", d.Kind, d.Number)
}

// ofMessage names what a message is about: the duty whose STAN it has and whose kind its type tells, else the authorisation. A message
// whose type could not be read belongs to a duty if it answered an attempt of one.
func (s subjects) ofMessage(mti, stan string, attempt int32) string {
	m, err := iso8583.ParseMTI(mti)
	for _, d := range s.duties {
		own := d.STAN
		if own == "" && d.Number == 0 {
			own = s.authorization.STAN
		}
		fits := (d.Kind == reversal.Reversal) == (m.Class() == iso8583.MTIReversalAdvice.Class())
		if err != nil {
			fits = attempt > 0
		}
		if fits && own != "" && own == stan {
			return dutyName(d)
		}
	}
	return subjectAuthorization
}

// ofPosting names what moved money: captures and partial reversals number their own entries.
func (s subjects) ofPosting(e ledger.Entry) string {
	number := int16(0)
	switch {
	case e.Transaction != transactionOwn:
	case e.Step == ledger.Release && e.Number > releaseOfDuty:
		number = e.Number - releaseOfDuty
	case e.Step == ledger.Debit && s.authorization.effect() == holds:
		number = e.Number
	}
	for _, d := range s.duties {
		if number > 0 && d.Number == number {
			return dutyName(d)
		}
	}
	return subjectAuthorization
}

func (s subjects) posting(e ledger.Entry) TimelineStep {
	name := func(account int32) string {
		switch account {
		case s.authorization.CustomerAccount:
			return string(ledger.Customer)
		case s.authorization.SettlementAccount:
			return string(ledger.Settlement)
		}
		return string(ledger.Suspense)
	}
	text := fmt.Sprintf("%s %s %s", e.Step, e.Money.Text(), s.authorization.Currency)
	if e.Correction {
		text += ", a correction"
	}
	return TimelineStep{At: e.BookedAt.UTC(), What: stepPosted, Subject: s.ofPosting(e), Text: text, Key: e.Key(), Amount: e.Money.Text(),
		Layer: e.Layer.String(), Debit: name(e.DebitAccount), Credit: name(e.CreditAccount), Correction: e.Correction, rank: rankPosted}
}

// told are the answers to the client's own captures and reversals, which were stored with them.
func (s subjects) told() []TimelineStep {
	var steps []TimelineStep
	for _, d := range s.duties {
		if d.Kind == reversal.Capture || d.Reason == reversal.Customer || d.Reason == reversal.Undelivered {
			steps = append(steps, toldStep(d.CreatedAt, dutyName(d), http.StatusCreated, string(reversal.Owed)))
		}
	}
	return steps
}

func toldStep(at time.Time, subject string, status int, state string) TimelineStep {
	return TimelineStep{At: at, What: stepTold, Subject: subject, Text: fmt.Sprintf("answer stored for the caller: %d, %s", status, state), rank: rankTold}
}
