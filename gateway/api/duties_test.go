package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// duty is what the tests read of a capture or a reversal.
type duty struct {
	ID              uuid.UUID  `json:"id"`
	AuthorizationID uuid.UUID  `json:"authorization_id"`
	Kind            string     `json:"kind"`
	Number          int        `json:"number"`
	ClientReference string     `json:"client_reference"`
	Amount          string     `json:"amount"`
	StandingAmount  string     `json:"standing_amount"`
	Final           bool       `json:"final"`
	Undoes          *uuid.UUID `json:"undoes"`
	Reason          string     `json:"reason"`
	State           string     `json:"state"`
	ClosedAs        string     `json:"closed_as"`
	Authorization   struct {
		State           string `json:"state"`
		StateVersion    int    `json:"state_version"`
		CapturedAmount  string `json:"captured_amount"`
		ReversedAmount  string `json:"reversed_amount"`
		RemainingAmount string `json:"remaining_amount"`
	} `json:"authorization"`
}

type fields = map[string]any

func (b *bench) authorize(t *testing.T, amount string, changes fields) gatewaytest.View {
	t.Helper()
	return gatewaytest.Decode(t, b.post(t, uuid.NewString(), gatewaytest.Purchase(amount, changes)).body)
}

func pathOf(v gatewaytest.View) string { return "/v1/authorizations/" + v.ID.String() }

// taken posts a capture or a reversal that must be taken, checks what all of them have in common, the repeat included, and returns it.
func (b *bench) taken(t *testing.T, path string, body fields) duty {
	t.Helper()
	key := uuid.NewString()
	first := b.postAs(t, b.key, path, key, body)
	if first.status != 201 || first.header.Get("Idempotent-Replayed") != "" {
		t.Fatalf("%s got %d %s", path, first.status, first.body)
	}
	holdsAgainst(t, "DutyAnswer", first.body)
	again := b.postAs(t, b.key, path, key, body)
	if again.status != 201 || again.header.Get("Idempotent-Replayed") != "true" || !bytes.Equal(again.body, first.body) ||
		again.header.Get("Location") != first.header.Get("Location") {
		t.Fatalf("%s repeated got %d %v %s, first %s", path, again.status, again.header, again.body, first.body)
	}
	d := decode[duty](t, first.body)
	want := ""
	if d.AuthorizationID != uuid.Nil {
		want = "/v1/authorizations/" + d.AuthorizationID.String() + "/" + d.Kind + "s/" + d.ID.String()
		read := b.get(t, want)
		holdsAgainst(t, "Duty", read.body)
		if now := decode[duty](t, read.body); read.status != 200 || now.ID != d.ID || now.Number != d.Number || now.Amount != d.Amount {
			t.Fatalf("%s reads as %d %s", want, read.status, read.body)
		}
	}
	if location := first.header.Get("Location"); location != want {
		t.Fatalf("Location %q, want %q", location, want)
	}
	return d
}

// awaitDuty waits until the scheme has acknowledged it.
func (b *bench) awaitDuty(t *testing.T, d duty) {
	t.Helper()
	path := "/v1/authorizations/" + d.AuthorizationID.String() + "/" + d.Kind + "s/" + d.ID.String()
	b.Eventually(t, d.Kind+" acknowledged", func() bool { return decode[duty](t, b.get(t, path).body).State == "acknowledged" })
}

func patient(l *gateway.LinkConfig) {
	l.AnswerWithin, l.SendWithin = configs.Duration(5*time.Second), configs.Duration(5*time.Second)
}

func TestCapturesOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	v := b.authorize(t, "12.34", nil)
	part := b.taken(t, pathOf(v)+"/captures", fields{"client_reference": "cap-1", "amount": "5", "final": false})
	if part.Kind != "capture" || part.Number != 1 || part.Amount != "5.00" || part.Final || part.State != "owed" || part.ClientReference != "cap-1" ||
		part.Authorization.State != "approved" || part.Authorization.RemainingAmount != "7.34" || part.Authorization.StateVersion != 3 {
		t.Fatalf("first capture %+v", part)
	}
	b.awaitDuty(t, part)
	rest := b.taken(t, pathOf(v)+"/captures", fields{"client_reference": "cap-2"})
	if rest.Number != 2 || rest.Amount != "7.34" || !rest.Final || rest.Authorization.State != "captured" || rest.Authorization.CapturedAmount != "12.34" {
		t.Fatalf("second capture %+v", rest)
	}
	b.awaitDuty(t, rest)
	if n := b.Sent(iso8583.MTIFinancialAdvice); n != 2 {
		t.Errorf("%d completions reached the scheme", n)
	}
	b.CheckBooks(t)
}

func TestReversalsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	whole := b.authorize(t, "12.34", nil)
	d := b.taken(t, pathOf(whole)+"/reversals", fields{"reason": "answer_undelivered"})
	if d.Kind != "reversal" || d.Number != 0 || d.Reason != "answer_undelivered" || d.State != "owed" {
		t.Fatalf("reversal of the whole %+v", d)
	}
	b.AwaitState(t, whole.ID, "reversed")
	joined := b.taken(t, "/v1/reversals", fields{"client_reference": whole.ClientReference})
	if joined.ID != d.ID || joined.ClosedAs != "acknowledged" {
		t.Fatalf("by reference %+v, want to join %v", joined, d.ID)
	}

	parts := b.authorize(t, "20.00", nil)
	back := b.taken(t, pathOf(parts)+"/reversals", fields{"amount": "4.00"})
	if back.Number != 1 || back.Amount != "4.00" || back.StandingAmount != "16.00" || back.Authorization.ReversedAmount != "4.00" || back.Authorization.RemainingAmount != "16.00" {
		t.Fatalf("partial reversal %+v", back)
	}
	capture := b.taken(t, pathOf(parts)+"/captures", fields{"client_reference": "cap-1", "amount": "6.00", "final": false})
	b.awaitDuty(t, capture)
	undone := b.taken(t, "/v1/reversals", fields{"client_reference": parts.ClientReference, "capture_id": capture.ID})
	if undone.Number != 3 || undone.Undoes == nil || *undone.Undoes != capture.ID || undone.Amount != "6.00" {
		t.Fatalf("reversal of a capture %+v", undone)
	}
	b.awaitDuty(t, undone)

	var now struct {
		ReturnedAmount      string `json:"returned_amount"`
		Captures, Reversals []duty
	}
	read := b.get(t, pathOf(parts))
	holdsAgainst(t, "Authorization", read.body)
	if err := json.Unmarshal(read.body, &now); err != nil {
		t.Fatal(err)
	}
	if len(now.Captures) != 1 || now.Captures[0].ID != capture.ID || len(now.Reversals) != 2 || now.Reversals[0].ID != back.ID || now.Reversals[1].ID != undone.ID ||
		now.ReturnedAmount != "6.00" {
		t.Fatalf("read alone %s", read.body)
	}
	for _, item := range decode[page[json.RawMessage]](t, b.get(t, "/v1/authorizations").body).Items {
		holdsAgainst(t, "Authorization", item)
		if bytes.Contains(item, []byte(`"captures"`)) || bytes.Contains(item, []byte(`"reversals"`)) {
			t.Errorf("a list shows the duties: %s", item)
		}
	}
	wantProblem(t, b.get(t, pathOf(parts)+"/captures/"+back.ID.String()), 404, gateway.CodeNotFound) // a reversal is no capture
	wantProblem(t, b.get(t, pathOf(whole)+"/captures/"+capture.ID.String()), 404, gateway.CodeNotFound)
	b.CheckBooks(t)
}

// TestReversalByReferenceInAnyOrder: before the authorisation, while it runs, and after it.
func TestReversalByReferenceInAnyOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	early := b.taken(t, "/v1/reversals", fields{"client_reference": "ref-early"})
	if early.AuthorizationID != uuid.Nil || early.ClosedAs != "withdrawn" {
		t.Fatalf("before: %+v", early)
	}
	if again := b.taken(t, "/v1/reversals", fields{"client_reference": "ref-early"}); again.ID != early.ID {
		t.Fatalf("another key left another tombstone: %v and %v", again.ID, early.ID)
	}
	p := wantProblem(t, b.post(t, "key-early", gatewaytest.Purchase("12.34", fields{"client_reference": "ref-early"})), 409, gateway.CodeReversedBefore)
	if p.Sent != gateway.SentNo || p.Retry != gateway.RetryNever || b.Sent(iso8583.MTIAuthorizationRequest) != 0 {
		t.Fatalf("refused with %+v, %d sent", p, b.Sent(iso8583.MTIAuthorizationRequest))
	}
	if a := b.post(t, "key-running", gatewaytest.Purchase("10.91", fields{"client_reference": "ref-running"}), "Prefer", "wait=0"); a.status != 202 {
		t.Fatalf("running: %d %s", a.status, a.body)
	}
	running := b.taken(t, "/v1/reversals", fields{"client_reference": "ref-running"})
	if running.State != "owed" || running.Authorization.State != "pending" {
		t.Fatalf("while it runs: %+v", running)
	}
	b.AwaitState(t, running.AuthorizationID, "reversed")
	if joined := b.taken(t, "/v1/reversals", fields{"client_reference": "ref-running"}); joined.ID != running.ID || joined.State != "acknowledged" {
		t.Fatalf("after: %+v", joined)
	}
	b.CheckBooks(t)
}

// documented checks that the document names this refusal for the operation.
func documented(t *testing.T, b *bench, operation string, p problem) {
	t.Helper()
	for _, rt := range b.api.routes() {
		if rt.operation.OperationID != operation {
			continue
		}
		response := rt.operation.Responses[itoa(int32(p.Status))]
		if response == nil || !slices.ContainsFunc(strings.Split(response.Description, "\n"), func(line string) bool { return strings.HasPrefix(line, string(p.Code)+": ") }) {
			t.Errorf("the document does not name %d %s for %s", p.Status, p.Code, operation)
		}
		return
	}
	t.Fatalf("no operation %s", operation)
}

// refusedDuty posts what must be refused, before anything of it is recorded.
func (b *bench) refusedDuty(t *testing.T, operation, path string, body fields, status int, code gateway.Code) problem {
	t.Helper()
	p := wantProblem(t, b.postAs(t, b.key, path, uuid.NewString(), body), status, code)
	if p.Sent != gateway.SentNo {
		t.Errorf("%s %s: sent %s", operation, code, p.Sent)
	}
	documented(t, b, operation, p)
	return p
}

// standing puts an authorisation into each state in which nothing of it can be captured or taken back. Unacknowledged reversals stay owed.
func standing(t *testing.T, b *bench) map[gateway.Code]gatewaytest.View {
	t.Helper()
	rules := []sim.Rule{{When: sim.Match{MTI: []string{"0420", "0421"}, Amount: "77.00"}, Then: sim.Action{Answer: sim.AnswerLost}}}
	if err := b.Scheme.SetRules(rules); err != nil {
		t.Fatal(err)
	}
	move := func(v gatewaytest.View, change string) gatewaytest.View {
		if _, err := b.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET `+change+` WHERE id = $1`, v.ID); err != nil {
			t.Fatal(err)
		}
		return v
	}
	pending := gatewaytest.Decode(t, b.post(t, uuid.NewString(), gatewaytest.Purchase("10.91", nil), "Prefer", "wait=0").body)
	all := map[gateway.Code]gatewaytest.View{
		gateway.CodeAuthorizationPending:  pending,
		gateway.CodeAuthorizationDeclined: b.authorize(t, "10.05", nil),
		gateway.CodeAuthorizationNotSent:  move(b.authorize(t, "1.01", nil), "state = 'not_sent'"),
		gateway.CodeAuthorizationExpired:  move(b.authorize(t, "1.02", nil), "state = 'expired'"),
		gateway.CodeAuthorizationTimedOut: move(b.authorize(t, "1.03", nil), "state = 'timed_out'"),
		gateway.CodeNothingHeld:           b.authorize(t, "1.04", fields{"type": "refund"}),
		gateway.CodeTooManyDuties:         move(b.authorize(t, "1.05", nil), "duties = 999"),
		gateway.CodeReversalOwed:          b.authorize(t, "77.00", nil),
		gateway.CodeAuthorizationCaptured: b.authorize(t, "1.06", nil),
		gateway.CodeAuthorizationReversed: b.authorize(t, "1.07", nil),
	}
	b.taken(t, pathOf(all[gateway.CodeReversalOwed])+"/reversals", fields{})
	b.taken(t, pathOf(all[gateway.CodeAuthorizationCaptured])+"/captures", fields{"client_reference": "all-of-it"})
	b.taken(t, pathOf(all[gateway.CodeAuthorizationReversed])+"/reversals", fields{})
	b.AwaitState(t, all[gateway.CodeAuthorizationReversed].ID, "reversed")
	return all
}

func TestEveryRefusalOfCapturesAndReversals(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.AnswerWithin, l.SendWithin = configs.Duration(20*time.Second), configs.Duration(5*time.Second) // pending lasts longer than the test
	}}, nil)
	all := standing(t, b)
	claims := b.Count(t, `SELECT count(*) FROM idempotency_claim`)
	for code, v := range all {
		for operation, request := range map[string]struct {
			path string
			body fields
		}{"post-capture": {"/captures", fields{"client_reference": "cap-" + string(code)}}, "post-reversal": {"/reversals", fields{"amount": "0.50"}}} {
			p := b.refusedDuty(t, operation, pathOf(v)+request.path, request.body, 409, code)
			if p.Resource != pathOf(v) || (p.Retry == gateway.RetryNever) == (code == gateway.CodeAuthorizationPending) {
				t.Errorf("%s %s: %+v", operation, code, p)
			}
		}
	}
	pending := b.postAs(t, b.key, pathOf(all[gateway.CodeAuthorizationPending])+"/captures", "key-early", fields{"client_reference": "cap-early"})
	if p := wantProblem(t, pending, 409, gateway.CodeAuthorizationPending); p.Retry != gateway.RetryAfter || pending.header.Get("Retry-After") == "" {
		t.Errorf("pending: %v %s", pending.header, pending.body)
	}
	captured, declined := all[gateway.CodeAuthorizationCaptured], all[gateway.CodeAuthorizationDeclined]
	b.refusedDuty(t, "post-reversal", pathOf(captured)+"/reversals", fields{}, 409, gateway.CodeCaptured)
	b.refusedDuty(t, "post-reversal-by-reference", "/v1/reversals", fields{"client_reference": declined.ClientReference}, 409, gateway.CodeNothingToUndo)
	b.refusedDuty(t, "post-reversal", pathOf(captured)+"/reversals", fields{"capture_id": uuid.NewString()}, 404, gateway.CodeNotFound)
	b.refusedDuty(t, "post-reversal-by-reference", "/v1/reversals", fields{"client_reference": "never-came", "amount": "1.00"}, 404, gateway.CodeNotFound)
	if n := b.Count(t, `SELECT count(*) FROM idempotency_claim`); n != claims {
		t.Errorf("%d claims are left by refusals", n-claims)
	}

	approved := b.authorize(t, "9.00", nil)
	for operation, path := range map[string]string{"post-capture": "/captures", "post-reversal": "/reversals"} {
		body := fields{"amount": "9.01"}
		if operation == "post-capture" {
			body["client_reference"] = "cap-too-much"
		}
		if p := b.refusedDuty(t, operation, pathOf(approved)+path, body, 409, gateway.CodeAmountExceedsRemaining); p.Detail != "remaining: 9.00 EUR" {
			t.Errorf("%s: %+v", operation, p)
		}
		body["amount"] = "1.001" // EUR has two decimals
		b.refusedDuty(t, operation, pathOf(approved)+path, body, 422, gateway.CodeValidationFailed)
	}
}

func TestPartialReversalWhereTheSchemeTakesNone(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.Reversal.Partial = "refuse" }}, nil)
	v := b.authorize(t, "9.00", nil)
	b.refusedDuty(t, "post-reversal", pathOf(v)+"/reversals", fields{"amount": "1.00"}, 409, gateway.CodePartialReversalRefused)
}

func TestKeysAndReferencesOfDuties(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	v, other := b.authorize(t, "12.34", nil), b.authorize(t, "12.34", nil)
	captures, body := pathOf(v)+"/captures", fields{"client_reference": "cap-1", "amount": "1.00", "final": false}
	first := b.postAs(t, b.key, captures, "key-1", body)
	d := decode[duty](t, first.body)
	for name, c := range map[string]struct {
		path string
		body fields
	}{
		"another amount":        {captures, fields{"client_reference": "cap-1", "amount": "2.00", "final": false}},
		"another authorization": {pathOf(other) + "/captures", body},
	} {
		if p := wantProblem(t, b.postAs(t, b.key, c.path, "key-1", c.body), 422, gateway.CodeKeyReuse); p.Sent != gateway.SentNo || p.Retry != gateway.RetryNever || p.Resource != "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	same := b.postAs(t, b.key, captures, "key-1", fields{"client_reference": "cap-1", "amount": "1.0", "final": false})
	if same.status != 201 || !bytes.Equal(same.body, first.body) {
		t.Errorf("the same amount, written otherwise: %d %s", same.status, same.body)
	}
	p := wantProblem(t, b.postAs(t, b.key, captures, "key-2", body), 409, gateway.CodeDuplicateReference)
	if p.Resource != captures+"/"+d.ID.String() || p.Sent != gateway.SentNo || p.Retry != gateway.RetryNever {
		t.Errorf("duplicate reference: %+v", p)
	}
	b.awaitDuty(t, d)
	undo := b.postAs(t, b.key, pathOf(v)+"/reversals", "key-1", fields{"amount": "1.00"}) // the key of another route is another key
	if undo.status != 201 {
		t.Fatalf("got %d %s", undo.status, undo.body)
	}
	wantProblem(t, b.postAs(t, b.key, pathOf(v)+"/reversals", "key-1", fields{"amount": "2.00"}), 422, gateway.CodeKeyReuse)
	if n := b.Count(t, `SELECT count(*) FROM duty`); n != 2 {
		t.Errorf("%d duties, want the capture and the reversal", n)
	}
	if _, err := b.DB.Pool.Exec(t.Context(), `DELETE FROM stored_answer WHERE endpoint = 'captures'`); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, b.postAs(t, b.key, captures, "key-1", body), 410, gateway.CodeAnswerExpired)
}

func TestDutyRequestsAreValidated(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{}, nil)
	v := b.authorize(t, "12.34", nil)
	captures, reversals := pathOf(v)+"/captures", pathOf(v)+"/reversals"
	for _, c := range []struct {
		operation, path string
		body            fields
		faults          []string
	}{
		{"post-capture", captures, fields{"amount": "1,00", "colour": "red", "final": "yes"}, []string{"amount", "client_reference", "colour", "final"}},
		{"post-capture", captures, fields{"client_reference": "a b", "amount": "0.00"}, []string{"amount", "client_reference"}},
		{"post-capture", captures, fields{"client_reference": "r-" + gatewaytest.PAN}, []string{"client_reference"}},
		{"post-reversal", reversals, fields{"client_reference": "r", "amount": 5, "reason": "whim", "x": 1}, []string{"amount", "client_reference", "reason", "x"}},
		{"post-reversal", reversals, fields{"capture_id": "5", "reason": "timeout"}, []string{"capture_id", "reason"}},
		{"post-reversal-by-reference", "/v1/reversals", fields{"amount": "0"}, []string{"amount", "client_reference"}},
	} {
		p := b.refusedDuty(t, c.operation, c.path, c.body, 422, gateway.CodeValidationFailed)
		var got []string
		for _, f := range p.Faults {
			got = append(got, f.Field)
		}
		if slices.Sort(got); !slices.Equal(got, c.faults) {
			t.Errorf("%s %v: faults %v, want %v", c.operation, c.body, got, c.faults)
		}
	}
	json := []string{"Content-Type", "application/json"}
	keyed := append([]string{"Idempotency-Key", "key-1"}, json...)
	for operation, path := range map[string]string{"post-capture": captures, "post-reversal": reversals, "post-reversal-by-reference": "/v1/reversals"} {
		for _, c := range []struct {
			pairs       []string
			query, body string
			status      int
			code        gateway.Code
		}{
			{json, "", `{}`, 400, gateway.CodeKeyMissing},
			{keyed, "?x=1", `{}`, 400, gateway.CodeMalformedParameter},
			{keyed, "", `[]`, 400, gateway.CodeMalformedBody},
			{keyed[:2], "", `{}`, 415, gateway.CodeUnsupportedMediaType},
			{keyed, "", strings.Repeat(" ", gateway.MaxBodyBytes+1), 413, gateway.CodeBodyTooLarge},
		} {
			a := b.do(t, http.MethodPost, path+c.query, b.headers(c.pairs...), []byte(c.body))
			documented(t, b, operation, wantProblem(t, a, c.status, c.code))
		}
	}
	a := b.postAs(t, b.key, captures, "key "+gatewaytest.PAN, fields{"client_reference": "cap-1"})
	if wantProblem(t, a, 400, gateway.CodeKeyMalformed); bytes.Contains(a.body, []byte(gatewaytest.PAN)) {
		t.Errorf("the answer quotes the key: %s", a.body)
	}
	if n := b.Count(t, `SELECT count(*) FROM duty`) + b.Count(t, `SELECT count(*) FROM tombstone`); n != 0 {
		t.Errorf("%d duties and tombstones are left by refusals", n)
	}
}

// TestOtherIdsAndTenantsAreNotFound: what is not ours is not there.
func TestOtherIdsAndTenantsAreNotFound(t *testing.T) {
	t.Parallel()
	b := setup(t, gatewaytest.Options{Link: patient}, nil)
	v := b.authorize(t, "12.34", nil)
	d := b.taken(t, pathOf(v)+"/captures", fields{"client_reference": "cap-1", "amount": "1.00"})
	bodies := map[string]fields{"/captures": {"client_reference": "cap-2"}, "/reversals": {}}
	for suffix, body := range bodies {
		for _, id := range []string{"x", uuid.NewString(), uuid.Nil.String(), "{" + v.ID.String() + "}", strings.ReplaceAll(v.ID.String(), "-", "")} {
			wantProblem(t, b.postAs(t, b.key, "/v1/authorizations/"+id+suffix, uuid.NewString(), body), 404, gateway.CodeNotFound)
		}
		wantProblem(t, b.postAs(t, b.other, pathOf(v)+suffix, uuid.NewString(), body), 404, gateway.CodeNotFound)
	}
	for _, path := range []string{"/captures/" + d.ID.String(), "/reversals/" + uuid.NewString()} {
		wantProblem(t, b.getAs(t, b.other, pathOf(v)+path), 404, gateway.CodeNotFound)
	}
	for _, path := range []string{"/captures/x", "/captures/" + uuid.NewString(), "/reversals/" + d.ID.String()} {
		wantProblem(t, b.get(t, pathOf(v)+path), 404, gateway.CodeNotFound)
	}
	wantProblem(t, b.get(t, pathOf(v)+"/captures/"+d.ID.String()+"?x=1"), 400, gateway.CodeMalformedParameter)
	// Another tenant's reference is one that the caller has not used: it hears the same as for any such.
	stone := b.postAs(t, b.other, "/v1/reversals", "key-1", fields{"client_reference": v.ClientReference})
	if stone.status != 201 || decode[duty](t, stone.body).AuthorizationID != uuid.Nil {
		t.Fatalf("got %d %s", stone.status, stone.body)
	}
	if now := b.Read(t, v.ID); now.State != "approved" && now.State != "captured" || now.Reversal != nil {
		t.Fatalf("the other tenant moved it: %+v", now)
	}
}
