package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// completions are what several tests' rules look at.
var completions = []string{"0220", "0221"}

// captureView is the answer to a capture.
type captureView struct {
	ID              uuid.UUID  `json:"id"`
	AuthorizationID uuid.UUID  `json:"authorization_id"`
	Number          int        `json:"number"`
	ClientReference string     `json:"client_reference"`
	Amount          string     `json:"amount"`
	Currency        string     `json:"currency"`
	Final           bool       `json:"final"`
	State           string     `json:"state"`
	Attempts        int        `json:"attempts"`
	NextAt          *time.Time `json:"next_at"`
	Authorization   struct {
		State           string `json:"state"`
		StateVersion    int    `json:"state_version"`
		CapturedAmount  string `json:"captured_amount"`
		RemainingAmount string `json:"remaining_amount"`
	} `json:"authorization"`
}

// money is what an authorisation's JSON says of its amounts and duties.
type money struct {
	State           string             `json:"state"`
	StateVersion    int                `json:"state_version"`
	CapturedAmount  string             `json:"captured_amount"`
	ReversedAmount  string             `json:"reversed_amount"`
	ReturnedAmount  string             `json:"returned_amount"`
	RemainingAmount string             `json:"remaining_amount"`
	Balances        []gateway.Balance  `json:"balances"`
	Captures        []gateway.DutyView `json:"captures"`
	Reversals       []gateway.DutyView `json:"reversals"`
}

func readMoney(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) (m money) {
	t.Helper()
	a, err := s.Gateway.Authorization(context.Background(), gatewaytest.Tenant, id)
	if err != nil {
		t.Fatalf("read authorization: %v", err)
	}
	if err := json.Unmarshal(a.JSON(), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// captureBody is the JSON of a capture with a reference of its own; an empty amount is what remains.
func captureBody(amount string, final *bool) []byte {
	members := map[string]any{"client_reference": "cap-" + uuid.NewString()}
	if amount != "" {
		members["amount"] = amount
	}
	if final != nil {
		members["final"] = *final
	}
	body, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return body
}

func capture(ctx context.Context, s *gatewaytest.Stand, id uuid.UUID, key string, body []byte) (gateway.Answer, error) {
	req, err := gateway.ParseCaptureRequest(body)
	if err != nil {
		return gateway.Answer{}, err
	}
	return s.Gateway.Capture(ctx, gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: key, Authorization: id, Request: req})
}

func mustCapture(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, amount string, final *bool) captureView {
	t.Helper()
	answer, err := capture(context.Background(), s, id, uuid.NewString(), captureBody(amount, final))
	if err != nil {
		t.Fatalf("capture: %v", err)
	}
	var v captureView
	if err := json.Unmarshal(answer.Body, &v); err != nil || answer.Status != 201 || !strings.HasSuffix(answer.Resource, "/captures/"+v.ID.String()) {
		t.Fatalf("capture answered %d %s for %s, %v", answer.Status, answer.Body, answer.Resource, err)
	}
	return v
}

// askReversal asks for a reversal: of the whole, or with "amount" or "capture_id" and its value as member.
func askReversal(ctx context.Context, s *gatewaytest.Stand, id uuid.UUID, key string, member string) (gateway.Answer, error) {
	req, err := gateway.ParseReversalRequest([]byte("{"+member+"}"), false)
	if err != nil {
		return gateway.Answer{}, err
	}
	return s.Gateway.Reverse(ctx, gateway.ReverseCall{Tenant: gatewaytest.Tenant, IdempotencyKey: key, Authorization: id, Request: req})
}

// mustReverse is askReversal for one that must be taken.
func mustReverse(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, member string) (d gateway.DutyView) {
	t.Helper()
	answer, err := askReversal(context.Background(), s, id, uuid.NewString(), member)
	if err != nil {
		t.Fatalf("reverse %s: %v", member, err)
	}
	if err := json.Unmarshal(answer.Body, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// awaitDuties waits until nothing is owed for an authorisation any more.
func awaitDuties(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) {
	t.Helper()
	s.Eventually(t, "duties acknowledged", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND state <> 'acknowledged'`, id) == 0
	})
}

// postings are an authorisation's entries as text: step, number, layer, the accounts' kinds and the amount, and ! for a correction.
func postings(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) []string {
	t.Helper()
	rows, err := s.DB.Pool.Query(context.Background(), `SELECT p.transaction, p.step, p.number, p.layer, d.kind, c.kind, p.amount_minor, p.correction
		FROM ledger_posting p JOIN ledger_account d ON d.id = p.debit_account JOIN ledger_account c ON c.id = p.credit_account
		JOIN card_authorization a ON a.id = p.intent AND a.tenant = p.tenant AND a.client_reference = p.client_reference AND a.rrn = p.source_ref
			AND a.currency = p.currency AND d.tenant = a.tenant AND c.tenant = a.tenant AND d.link = a.link AND c.link = a.link
		WHERE p.intent = $1 AND p.value_date BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date + 9`, id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	entries := []string{}
	for rows.Next() {
		var transaction, number int16
		var step ledger.Step
		var layer ledger.Layer
		var debit, credit string
		var minor int64
		var correction bool
		if err := rows.Scan(&transaction, &step, &number, &layer, &debit, &credit, &minor, &correction); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%s %d %s %s>%s %d", step, number, layer, debit, credit, minor)
		if transaction != 0 {
			text = fmt.Sprintf("%d:%s", transaction, text)
		}
		if correction {
			text += " !"
		}
		entries = append(entries, text)
	}
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1`, id); n != len(entries) {
		t.Fatalf("%d postings, of which %d have the right tenant, reference, link, currency and source", n, len(entries))
	}
	slices.Sort(entries)
	return entries
}

// wantPostings holds an authorisation's entries against those wanted, in any order.
func wantPostings(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := postings(t, s, id); !slices.Equal(got, want) {
		t.Fatalf("postings\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// verifyLedger asks the ledger's own checks, and the second guard.
func verifyLedger(t testing.TB, s *gatewaytest.Stand) {
	t.Helper()
	report, err := ledger.Verify(context.Background(), s.DB.Pool, 0)
	if err != nil || !report.OK() {
		t.Errorf("ledger: %v, %v", report.Faults(), err)
	}
	if hits := s.Metric(t, "schemegate_ledger_unique_index_hits_total"); hits != 0 {
		t.Errorf("the ledger's own guard fired %v times", hits)
	}
}

func TestCaptureOfTheWholeIsAnsweredAtOnceAndToldToTheScheme(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	if m := readMoney(t, s, v.ID); m.RemainingAmount != "20.00" || m.CapturedAmount != "" || m.Captures != nil {
		t.Fatalf("before: %+v", m)
	}
	body := captureBody("", nil)
	first, err := capture(context.Background(), s, v.ID, "cap-1", body)
	if err != nil {
		t.Fatal(err)
	}
	var c captureView
	if err := json.Unmarshal(first.Body, &c); err != nil {
		t.Fatal(err)
	}
	if first.Status != 201 || c.AuthorizationID != v.ID || c.Number != 1 || c.Amount != "20.00" || c.Currency != "EUR" || !c.Final || c.State != "owed" ||
		c.Attempts != 0 || c.NextAt == nil || !bytes.Contains(body, []byte(c.ClientReference)) || c.Authorization.State != "captured" ||
		c.Authorization.StateVersion != 3 || c.Authorization.CapturedAmount != "20.00" || c.Authorization.RemainingAmount != "0.00" {
		t.Fatalf("answer %d %s", first.Status, first.Body)
	}
	awaitDuties(t, s, v.ID)
	again, err := capture(context.Background(), s, v.ID, "cap-1", body)
	if err != nil || !again.Replayed || again.Status != first.Status || !bytes.Equal(again.Body, first.Body) || again.Resource != first.Resource {
		t.Fatalf("repeat got %+v, %v", again, err)
	}
	sent := s.Received(iso8583.MTIFinancialAdvice, iso8583.MTIFinancialAdviceRepeat)
	if len(sent) != 1 || sent[0].MTI != "0220" || sent[0].AmountMinor != 2000 || sent[0].RRN != v.RRN || sent[0].STAN == v.STAN {
		t.Fatalf("completions %+v", sent)
	}
	original, err := iso8583.ParseOriginalDataElements(sent[0].OriginalDataElements)
	if err != nil || original.MTI != iso8583.MTIAuthorizationRequest || original.STAN != v.STAN || original.TransmissionDateTime != v.DateTime {
		t.Fatalf("DE 90 names %+v, %v", original, err)
	}
	m := readMoney(t, s, v.ID)
	if m.State != "captured" || m.CapturedAmount != "20.00" || m.RemainingAmount != "" || len(m.Captures) != 1 || len(m.Reversals) != 0 {
		t.Fatalf("afterwards: %+v", m)
	}
	if d := m.Captures[0]; d.ID != c.ID || d.State != reversal.Acknowledged || d.ClosedAs != "acknowledged" || d.Attempts != 1 || d.ResponseCode != "00" ||
		d.STAN != sent[0].STAN || d.NextAt != nil || d.ClientReference != c.ClientReference {
		t.Fatalf("duty %+v", d)
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND subject = 'capture'`, c.ID); n != 2 {
		t.Fatalf("%d rows of history of the capture", n)
	}
	verifyLedger(t, s)
}

func TestCapturesInPartsEndWithTheFinalOne(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	first := mustCapture(t, s, v.ID, "5.5", nil)
	if first.Final || first.Amount != "5.50" || first.Authorization.State != "approved" || first.Authorization.RemainingAmount != "14.50" {
		t.Fatalf("first %+v", first)
	}
	_, err := capture(context.Background(), s, v.ID, "too-much", captureBody("14.51", nil))
	problem := mustRefuse(t, err, gateway.CodeAmountExceedsRemaining, 409)
	if !strings.Contains(problem.Detail, "14.50 EUR") || problem.Sent() != gateway.SentNo || problem.Resource != "/v1/authorizations/"+v.ID.String() {
		t.Fatalf("refusal %+v", problem)
	}
	if second := mustCapture(t, s, v.ID, "4.50", new(false)); second.Number != 2 || second.Final || second.Authorization.CapturedAmount != "10.00" {
		t.Fatalf("second %+v", second)
	}
	last := mustCapture(t, s, v.ID, "1", new(true))
	if last.Number != 3 || !last.Final || last.Authorization.State != "captured" || last.Authorization.RemainingAmount != "0.00" || last.Authorization.StateVersion != 5 {
		t.Fatalf("last %+v", last)
	}
	wantPostings(t, s, v.ID, "hold 1 pending customer>settlement 2000",
		"release 3 pending settlement>customer 550", "debit 1 posted customer>settlement 550",
		"release 4 pending settlement>customer 450", "debit 2 posted customer>settlement 450",
		"release 5 pending settlement>customer 100", "debit 3 posted customer>settlement 100", "release 2 pending settlement>customer 900")
	_, err = capture(context.Background(), s, v.ID, "one-more", captureBody("", nil))
	mustRefuse(t, err, gateway.CodeAuthorizationCaptured, 409)
	awaitDuties(t, s, v.ID)
	sent := s.Received(iso8583.MTIFinancialAdvice)
	if len(sent) != 3 || sent[0].AmountMinor != 550 || sent[1].AmountMinor != 450 || sent[2].AmountMinor != 100 {
		t.Fatalf("completions %+v", sent)
	}
	verifyLedger(t, s)
}

// TestCaptureOfAllThatRemainsEndsTheHold, whether or not it was called final.
func TestCaptureOfAllThatRemainsEndsTheHold(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	if c := mustCapture(t, s, v.ID, "20.00", new(false)); c.Final || c.Authorization.State != "captured" {
		t.Fatalf("answer %+v", c)
	}
	wantPostings(t, s, v.ID, "hold 1 pending customer>settlement 2000", "release 3 pending settlement>customer 2000", "debit 1 posted customer>settlement 2000")
	w := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("20.00", nil))
	if c := mustCapture(t, s, w.ID, "20.00", nil); !c.Final || c.Authorization.State != "captured" {
		t.Fatalf("answer %+v", c)
	}
}

func TestCaptureRequestIsValidatedAtOnce(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"client_reference":"r 1","amount":"1.23456","final":"yes","more":1}`: "amount client_reference final more",
		`{"amount":"0.00"}`:                        "amount client_reference",
		`{"client_reference":"r","amount":"-1"}`:   "amount",
		`{"client_reference":"r","amount":1}`:      "amount",
		`{"client_reference":"r","final":null}`:    "final",
		`{"final":true,"client_reference":"r"}`:    "",
		`{"client_reference":"r","final":false}`:   "",
		`{"amount":"0.01","client_reference":"r"}`: "",
	} {
		_, err := gateway.ParseCaptureRequest([]byte(body))
		var problem *gateway.Error
		if errors.As(err, &problem) != (want != "") {
			t.Errorf("%s gives %v", body, err)
			continue
		}
		var fields []string
		if problem != nil {
			for _, f := range problem.Faults {
				fields = append(fields, f.Field)
			}
			slices.Sort(fields)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: faults at %q, want %q", body, got, want)
		}
	}
	_, err := gateway.ParseCaptureRequest([]byte(`{"client_reference":"r","client_reference":"s"}`))
	mustRefuse(t, err, gateway.CodeMalformedBody, 400)
	_, err = gateway.ParseCaptureRequest(bytes.Repeat([]byte(" "), gateway.MaxBodyBytes+1))
	mustRefuse(t, err, gateway.CodeBodyTooLarge, 413)
}

func TestCaptureClaimsItsKeyAndReferenceForEver(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil))
	w := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("20.00", nil))
	first, err := capture(t.Context(), s, v.ID, "cap-1", []byte(`{"client_reference":"cap-ref-1","amount":"5.00"}`))
	if err != nil {
		t.Fatal(err)
	}
	same, err := capture(t.Context(), s, v.ID, "cap-1", []byte(` {"amount": "5", "client_reference": "cap-ref-1"}`))
	if err != nil || !same.Replayed || !bytes.Equal(same.Body, first.Body) {
		t.Fatalf("the same content in other words got %+v, %v", same, err)
	}
	for name, c := range map[string]struct {
		id        uuid.UUID
		key, body string
		code      gateway.Code
		status    int
	}{
		"other amount":                    {v.ID, "cap-1", `{"client_reference":"cap-ref-1","amount":"6.00"}`, gateway.CodeKeyReuse, 422},
		"other authorization":             {w.ID, "cap-1", `{"client_reference":"cap-ref-1","amount":"5.00"}`, gateway.CodeKeyReuse, 422},
		"final said":                      {v.ID, "cap-1", `{"client_reference":"cap-ref-1","amount":"5.00","final":false}`, gateway.CodeKeyReuse, 422},
		"other key":                       {v.ID, "cap-2", `{"client_reference":"cap-ref-1","amount":"5.00"}`, gateway.CodeDuplicateReference, 409},
		"other authorization's reference": {w.ID, "cap-3", `{"client_reference":"cap-ref-1"}`, gateway.CodeDuplicateReference, 409},
		"unknown authorization":           {uuid.New(), "cap-4", `{"client_reference":"cap-ref-4"}`, gateway.CodeNotFound, 404},
		"too many decimals":               {v.ID, "cap-5", `{"client_reference":"cap-ref-5","amount":"1.001"}`, gateway.CodeValidationFailed, 422},
		"card number in reference":        {v.ID, "cap-6", `{"client_reference":"x` + gatewaytest.PAN + `"}`, gateway.CodeValidationFailed, 422},
		"card number in key":              {v.ID, "k" + gatewaytest.PAN, `{"client_reference":"cap-ref-6"}`, gateway.CodeKeyMalformed, 400},
	} {
		_, err := capture(t.Context(), s, c.id, c.key, []byte(c.body))
		problem := mustRefuse(t, err, c.code, c.status)
		if strings.Contains(string(problem.Problem()), gatewaytest.PAN) {
			t.Errorf("%s: the refusal quotes the card number", name)
		}
		if problem.Code == gateway.CodeDuplicateReference && problem.Resource != first.Resource {
			t.Errorf("%s: the refusal names %s, want %s", name, problem.Resource, first.Resource)
		}
	}
	if _, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: "bank-b", IdempotencyKey: "cap-1", Authorization: v.ID,
		Request: gateway.CaptureRequest{ClientReference: "r"}}); err == nil {
		t.Error("another tenant captured it")
	}
	awaitDuties(t, s, v.ID)
	if n := s.Count(t, `SELECT count(*) FROM duty`); n != 1 || s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE endpoint = 'captures'`) != 1 {
		t.Fatalf("%d duties: %s", n, effects(t, s))
	}
	wantPostings(t, s, w.ID, "hold 1 pending customer>settlement 2000")
	verifyLedger(t, s)
}

// TestS22_CaptureNeedsAHoldThatStands: pending, declined, timed out, captured; what loses leaves no trace, and its key is free.
func TestS22_CaptureNeedsAHoldThatStands(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(
			sim.Rule{When: sim.Match{MTI: authorizations, Amount: "30.05"}, Then: refused("05")},
			sim.Rule{When: sim.Match{MTI: authorizations, Amount: "30.91"}, Then: lost},
			sim.Rule{When: sim.Match{MTI: authorizations, Amount: "30.50"}, Then: sim.Action{Delay: configs.Duration(300 * time.Millisecond)}},
			sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link: func(l *gateway.LinkConfig) {
			l.Types[gateway.Cash] = gateway.TypeConfig{MTI: "0200", ProcessingCode: "010000"}
		},
	})
	refuse := func(id uuid.UUID, code gateway.Code) *gateway.Error {
		t.Helper()
		_, err := capture(t.Context(), s, id, "cap-"+string(code), captureBody("", nil))
		return mustRefuse(t, err, code, 409)
	}
	declined := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("30.05", nil))
	refuse(declined.ID, gateway.CodeAuthorizationDeclined)
	timedOut := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("30.91", nil))
	refuse(timedOut.ID, gateway.CodeAuthorizationTimedOut)
	cash := s.MustAuthorize(t, "key-3", gatewaytest.Purchase("30.20", map[string]any{"type": "cash"}))
	refuse(cash.ID, gateway.CodeNothingHeld)
	refund := s.MustAuthorize(t, "key-4", gatewaytest.Purchase("30.20", map[string]any{"type": "refund"}))
	refuse(refund.ID, gateway.CodeNothingHeld)
	whole := s.MustAuthorize(t, "key-5", gatewaytest.Purchase("30.20", nil))
	if _, err := askReversal(t.Context(), s, whole.ID, "rev-1", ""); err != nil {
		t.Fatal(err)
	}
	refuse(whole.ID, gateway.CodeReversalOwed)
	running := begin(t, s, "key-6", gatewaytest.Purchase("30.50", nil))
	var id uuid.UUID
	s.Eventually(t, "pending", func() bool {
		err := s.DB.Pool.QueryRow(t.Context(), `SELECT id FROM card_authorization WHERE amount_minor = 3050`).Scan(&id)
		return err == nil
	})
	if problem := refuse(id, gateway.CodeAuthorizationPending); problem.Retry() != gateway.RetryAfter || problem.RetryAfterSeconds < 1 {
		t.Fatalf("retry %s after %d", problem.Retry(), problem.RetryAfterSeconds)
	}
	<-running
	mustCapture(t, s, id, "", nil)
	refuse(id, gateway.CodeAuthorizationCaptured)
	if n := s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE endpoint = 'captures'`); n != 1 {
		t.Fatalf("%d claims of captures, want the winner's", n)
	}
}
