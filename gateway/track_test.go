package gateway_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
)

// timelines looks a reference up for the stand's tenant.
func timelines(t testing.TB, s *gatewaytest.Stand, reference string) []gateway.Timeline {
	t.Helper()
	found, err := s.Gateway.Track(t.Context(), gatewaytest.Tenant, reference)
	if err != nil {
		t.Fatalf("track %s: %v", reference, err)
	}
	return found
}

// timeline is the one of an authorisation.
func timeline(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) gateway.Timeline {
	t.Helper()
	found := timelines(t, s, id.String())
	if len(found) != 1 {
		t.Fatalf("%d timelines of %v", len(found), id)
	}
	return found[0]
}

// trace is a timeline's steps as lines, without what differs from run to run.
func trace(tl gateway.Timeline) []string {
	lines := make([]string, len(tl.Steps))
	for i, s := range tl.Steps {
		lines[i] = strings.TrimSpace(fmt.Sprintf("%s %s: %s", s.What, s.Subject, s.Text))
		if s.What == "posted" {
			lines[i] += fmt.Sprintf(" (%s, %s to %s)", s.Layer, s.Debit, s.Credit)
		}
		if s.ResponseCode != "" {
			lines[i] += " " + s.ResponseCode
		}
		if s.Attempt > 1 {
			lines[i] += fmt.Sprintf(" #%d", s.Attempt)
		}
	}
	return lines
}

func checkTrace(t testing.TB, tl gateway.Timeline, want string) {
	t.Helper()
	got := trace(tl)
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(want) {
		t.Errorf("timeline\n%s\n\nwant\n%s", text, strings.TrimSpace(want))
	}
	if !slices.IsSortedFunc(tl.Steps, func(a, b gateway.TimelineStep) int { return a.At.Compare(b.At) }) {
		t.Error("the steps are not in the order of their times")
	}
}

func checkNext(t testing.TB, tl gateway.Timeline, owner, text string) {
	t.Helper()
	if tl.Next.Owner != owner || tl.Next.Text != text {
		t.Errorf("next is %+v, want %s: %s", tl.Next, owner, text)
	}
}

// answered gives duties time, so that a busy machine makes no silence of its own.
func answered(l *gateway.LinkConfig) { l.Silence.AnswerWithin = configs.Duration(5 * time.Second) }

// TestTimelineOfSilence: no answer, the first reversal is lost, then an answer that comes too late.
func TestTimelineOfSilence(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Silence.AnswerWithin = configs.Duration(time.Second) }})
	const amount = "73.01"
	if err := s.Scheme.SetRules([]sim.Rule{
		{When: sim.Match{MTI: []string{"0100"}, Amount: amount}, Then: sim.Action{Delay: configs.Duration(6 * time.Second)}},
		{When: sim.Match{MTI: []string{"0420", "0421"}, Amount: amount, First: 1, Per: sim.PerOriginal}, Then: sim.Action{Answer: sim.AnswerLost}},
	}); err != nil {
		t.Fatal(err)
	}
	body := gatewaytest.Purchase(amount, nil)
	v := s.MustAuthorize(t, "key-1", body)
	s.MustAuthorize(t, "key-1", body) // a repeat
	s.Eventually(t, "the late answer", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
	s.AwaitState(t, v.ID, "reversed")
	s.Eventually(t, "the repeat is in the journal", func() bool {
		return s.Count(t, `SELECT count(*) FROM duplicate WHERE original_id = $1`, v.ID) == 1
	})
	tl := timeline(t, s, v.ID)
	checkNext(t, tl, "nobody", "nothing")
	// A repeat and the reversal go on side by side: what is the client's own is looked at apart.
	repeated := slices.IndexFunc(tl.Steps, func(s gateway.TimelineStep) bool { return s.What == "duplicate" })
	if repeated < 0 || tl.Steps[repeated].Text != "client: replayed" || tl.Steps[repeated].Subject != "authorization" {
		t.Fatalf("the repeat does not show: %v", trace(tl))
	}
	tl.Steps = slices.Delete(tl.Steps, repeated, repeated+1)
	checkTrace(t, tl, `
state authorization: pending
posted authorization: hold 73.01 EUR (pending, customer to settlement)
sent authorization: -> 0100 committed for sending
state authorization: pending -> timed_out, timeout 91
state reversal: owed, timeout
told authorization: answer stored for the caller: 201, timed_out
sent reversal: -> 0420 committed for sending
sent reversal: -> 0421 committed for sending #2
received reversal: <- 0430 response 00 #2
state reversal: owed -> acknowledged 00
state authorization: timed_out -> reversed, reversal_acknowledged
posted authorization: release 73.01 EUR (pending, settlement to customer)
received authorization: <- 0110 late 00
event authorization: authorization.late_response: response code 00`)
}

// TestTimelineOfCaptures: two captures, one of which is undone, and a part taken back, each under its name.
func TestTimelineOfCaptures(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		patient(l)
		answered(l)
	}})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	more, final := false, true
	settled := func(n int) {
		t.Helper()
		s.Eventually(t, "the duty is acknowledged", func() bool {
			return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND state = 'acknowledged'`, v.ID) == n
		})
	}
	first := mustCapture(t, s, v.ID, "5.00", &more)
	settled(1)
	mustReverse(t, s, v.ID, `"amount":"4.00"`)
	settled(2)
	checkNext(t, timeline(t, s, v.ID), "client", "a capture or a reversal, or the end of the hold")
	mustReverse(t, s, v.ID, `"capture_id":"`+first.ID.String()+`"`)
	settled(3)
	mustCapture(t, s, v.ID, "6.00", &final)
	settled(4)
	tl := timeline(t, s, v.ID)
	checkNext(t, tl, "nobody", "nothing")
	checkTrace(t, tl, `
state authorization: pending
posted authorization: hold 20.00 EUR (pending, customer to settlement)
sent authorization: -> 0100 committed for sending
received authorization: <- 0110 response 00
state authorization: pending -> approved 00
told authorization: answer stored for the caller: 201, approved
state authorization: still approved, capture_recorded
state capture 1: owed, completion
posted capture 1: release 5.00 EUR (pending, settlement to customer)
posted capture 1: debit 5.00 EUR (posted, customer to settlement)
told capture 1: answer stored for the caller: 201, owed
sent capture 1: -> 0220 committed for sending
received capture 1: <- 0230 response 00
state capture 1: owed -> acknowledged 00
state authorization: still approved, partial_reversal_recorded
state reversal 2: owed, customer_cancellation
told reversal 2: answer stored for the caller: 201, owed
sent reversal 2: -> 0420 committed for sending
received reversal 2: <- 0430 response 00
state reversal 2: owed -> acknowledged 00
state authorization: still approved, reversal_acknowledged
posted reversal 2: release 4.00 EUR (pending, settlement to customer)
state authorization: still approved, capture_reversal_recorded
state reversal 3: owed, customer_cancellation
told reversal 3: answer stored for the caller: 201, owed
sent reversal 3: -> 0420 committed for sending
received reversal 3: <- 0430 response 00
state reversal 3: owed -> acknowledged 00
state authorization: still approved, reversal_acknowledged
posted authorization: compensate 5.00 EUR, a correction (posted, settlement to customer)
state authorization: approved -> captured, capture_recorded
state capture 4: owed, completion
posted authorization: release 5.00 EUR (pending, settlement to customer)
posted capture 4: release 6.00 EUR (pending, settlement to customer)
posted capture 4: debit 6.00 EUR (posted, customer to settlement)
told capture 4: answer stored for the caller: 201, owed
sent capture 4: -> 0220 committed for sending
received capture 4: <- 0230 response 00
state capture 4: owed -> acknowledged 00`)
}

// TestTimelineNamesWhatNeedsAPerson: a refused reversal, its exception, and what comes next before and after.
func TestTimelineNamesWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: answered})
	answer, err := s.Authorize(t, "key-1", gatewaytest.Purchase("10.82", nil)) // silence, and reversals get a format error
	if err != nil {
		t.Fatal(err)
	}
	v := gatewaytest.Decode(t, answer.Body)
	s.Eventually(t, "the reversal is suspended", func() bool { return s.Read(t, v.ID).Reversal.State == "suspended" })
	tl := timeline(t, s, v.ID)
	checkNext(t, tl, "operator", "reversal is suspended: a person decides, see `schemegate duties resume`")
	checkTrace(t, tl, `
state authorization: pending
posted authorization: hold 10.82 EUR (pending, customer to settlement)
sent authorization: -> 0100 committed for sending
state authorization: pending -> timed_out, timeout 91
state reversal: owed, timeout
told authorization: answer stored for the caller: 201, timed_out
sent reversal: -> 0420 committed for sending
received reversal: <- 0430 response 30
state reversal: owed -> suspended, refused 30
exception reversal: reversal_refused opened: the scheme refused it; what is held or moved stays until a person decides
event reversal: reversal.needs_attention: reversal_refused`)
}

// TestNextStepFollowsTheState, for what is running, owed and waiting for a person.
func TestNextStepFollowsTheState(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		patient(l)
		l.Silence.ReversalDelay = configs.Duration(time.Hour)
		l.HoldExpiresAfter = 0
	}})
	reference, id, replies := pendingOn(t, s, "10.91")
	tl := timelines(t, s, reference)
	if len(tl) != 1 || tl[0].FoundBy != "client_reference" || tl[0].Next.At == nil {
		t.Fatalf("pending: %+v", tl)
	}
	checkNext(t, tl[0], "schemegate", "the scheme's answer, or the deadline")
	s.MustReverse(t, "undo-1", id, nil)
	checkNext(t, timeline(t, s, id), "schemegate", "the scheme's answer, or the deadline; then the reversal")
	<-replies
	approved := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.00", nil))
	tl = timelines(t, s, approved.ID.String())
	checkNext(t, tl[0], "client", "a capture or a reversal")
	if tl[0].Next.At != nil {
		t.Errorf("a hold that does not expire ends at %v", tl[0].Next.At)
	}
	declined := s.MustAuthorize(t, "key-3", gatewaytest.Purchase("10.05", nil))
	checkNext(t, timeline(t, s, declined.ID), "nobody", "nothing")
	_, err := s.DB.Pool.Exec(t.Context(), `INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
		VALUES ($1, 'answer_contradicts_decision', $2, $3, $4, 'two answers', now())`, uuid.New(), gatewaytest.Tenant, gatewaytest.LinkName, declined.ID)
	if err != nil {
		t.Fatal(err)
	}
	checkNext(t, timeline(t, s, declined.ID), "operator", "a person decides: answer_contradicts_decision")
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE exception SET closed_at = now()`); err != nil {
		t.Fatal(err)
	}
	checkNext(t, timeline(t, s, declined.ID), "nobody", "nothing")
}

// TestS42_AReferenceThatCameRoundAgainListsAll: an RRN and a STAN of several days name several authorisations, the newest first, and a
// STAN with its day names one. Days are those of UTC.
func TestS42_AReferenceThatCameRoundAgainListsAll(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	const stan = "987654"
	var ids []uuid.UUID // the newest first
	days := []time.Time{time.Date(2026, 1, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 2, 3, 12, 0, 0, 0, time.UTC)}
	for i, day := range days {
		v := s.MustAuthorize(t, fmt.Sprintf("key-%d", i), gatewaytest.Purchase("12.00", nil))
		_, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET stan = $2, created_at = $3 WHERE id = $1`, v.ID, stan, day)
		if err != nil {
			t.Fatal(err)
		}
		ids = append([]uuid.UUID{v.ID}, ids...)
	}
	found := timelines(t, s, stan)
	if len(found) != 3 {
		t.Fatalf("%d timelines", len(found))
	}
	for i, tl := range found {
		if v := gatewaytest.Decode(t, tl.Authorization); v.ID != ids[i] || tl.FoundBy != "stan" || !strings.Contains(string(tl.Authorization), `"created_at":"2026-0`) {
			t.Errorf("%d: %s by %s, want %v with its date", i, tl.Authorization, tl.FoundBy, ids[i])
		}
	}
	for day, want := range map[string][]uuid.UUID{"2026-01-31": ids[2:], "2026-02-01": ids[1:2], "2026-02-02": nil, "2026-02-03": ids[:1], "2026-02-30": nil} {
		var got []uuid.UUID
		for _, tl := range timelines(t, s, stan+"@"+day) {
			got = append(got, gatewaytest.Decode(t, tl.Authorization).ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("on %s: %v, want %v", day, got, want)
		}
	}
	// A client may call its own attempt by what looks like a STAN or like a day of one: both are found, each by its own name.
	for i, own := range []string{stan, stan + "@2026-02-30"} {
		v := s.MustAuthorize(t, fmt.Sprintf("key-own-%d", i), gatewaytest.Purchase("12.00", map[string]any{"client_reference": own}))
		if tl := timelines(t, s, own)[0]; gatewaytest.Decode(t, tl.Authorization).ID != v.ID || tl.FoundBy != "client_reference" {
			t.Errorf("%s: %s by %s", own, tl.Authorization, tl.FoundBy)
		}
	}
	if n := len(timelines(t, s, stan)); n != 4 {
		t.Errorf("%d timelines with the client's own, want 4", n)
	}
}

// TestCapturesOwnSTANIsFound: a duty has a STAN of its own, and the scheme asks by it.
func TestCapturesOwnSTANIsFound(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.00", nil))
	c := mustCapture(t, s, v.ID, "12.00", nil)
	var stan string
	s.Eventually(t, "the capture has its STAN", func() bool {
		return s.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(stan, '') FROM duty WHERE id = $1`, c.ID).Scan(&stan) == nil && stan != ""
	})
	for _, reference := range []string{stan, stan + "@" + time.Now().UTC().Format(time.DateOnly)} {
		found := timelines(t, s, reference)
		if len(found) != 1 || found[0].FoundBy != "stan" || gatewaytest.Decode(t, found[0].Authorization).ID != v.ID {
			t.Errorf("%s: %+v", reference, found)
		}
	}
	if found, err := s.Gateway.Track(t.Context(), "bank-b", stan); err != nil || len(found) != 0 {
		t.Errorf("another tenant sees %+v, %v", found, err)
	}
	all, err := gateway.Track(t.Context(), s.DB.Pool, "", stan, nil) // an operator's look, over all tenants
	if err != nil || len(all) != 1 {
		t.Errorf("an operator sees %+v, %v", all, err)
	}
}

// TestS86_TimelineHoldsNoCardData, whatever was sent with the request.
func TestS86_TimelineHoldsNoCardData(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	w := newWatch(t, s)
	for i, amount := range []string{"12.00", "10.91", "10.05", "10.87", "10.93"} {
		answer := w.send(t, fmt.Sprintf("key-%d", i), canaryRequest(amount, nil))
		v := gatewaytest.Decode(t, answer.Body)
		if amount == "12.00" {
			mustCapture(t, s, v.ID, "", nil)
		}
		s.Eventually(t, "nothing is owed any more", func() bool {
			return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND state <> 'acknowledged'`, v.ID) == 0
		})
		tl := timeline(t, s, v.ID)
		text := fmt.Sprintf("%s %+v", tl.Authorization, tl)
		mustHoldNoCanary(t, "the timeline of "+amount, text)
		if !strings.Contains(text, canaryMasked) || !strings.Contains(text, "-> 0100") {
			t.Errorf("the timeline of %s shows no masked message, so nothing was looked at", amount)
		}
	}
}

// TestMessagesOfDutiesCarryTheirName, also in a dialect of 0400 with STANs of their own.
func TestMessagesOfDutiesCarryTheirName(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Reversal.MTI, l.Reversal.STAN = "0400", "new" }})
	if err := s.Scheme.SetRules([]sim.Rule{
		{When: sim.Match{MTI: []string{"0100"}, Amount: "73.02"}, Then: sim.Action{Deliver: sim.DeliverSilent}},
		{When: sim.Match{MTI: []string{"0400", "0401"}, Amount: "73.02", First: 1, Per: sim.PerOriginal}, Then: sim.Action{Answer: sim.AnswerLost}},
	}); err != nil {
		t.Fatal(err)
	}
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("73.02", nil))
	s.AwaitState(t, v.ID, "reversed")
	var got []string
	for _, step := range timeline(t, s, v.ID).Steps {
		if step.What == "sent" || step.What == "received" {
			got = append(got, step.Subject+" "+step.Text)
		}
	}
	want := []string{"authorization -> 0100 committed for sending", "reversal -> 0400 committed for sending",
		"reversal -> 0401 committed for sending", "reversal <- 0410 response"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
