package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

// together runs n calls at the same time and gives their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	calls.Wait()
	return errs
}

// tally counts what calls came to: "" for those that were taken, else the refusal's code.
func tally(t testing.TB, errs []error) map[gateway.Code]int {
	t.Helper()
	counts := map[gateway.Code]int{}
	for _, err := range errs {
		var problem *gateway.Error
		switch {
		case err == nil:
			counts[""]++
		case errors.As(err, &problem) && problem.Status() == 409:
			counts[problem.Code]++
		default:
			t.Errorf("a loser got %v", err)
		}
	}
	return counts
}

// sums are what an authorisation's row and its postings say of its money.
type sums struct {
	state                                  string
	approved, captured, reversed, returned int64
	held, posted                           int64 // of the ledger: held now, and moved away from the customer
}

func selectSums(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) (v sums) {
	t.Helper()
	err := s.DB.Pool.QueryRow(context.Background(), `SELECT a.state, coalesce(a.approved_minor, 0), a.captured_minor, a.reversed_minor, a.returned_minor,
		coalesce(sum(p.amount_minor * CASE WHEN p.debit_account = a.customer_account THEN 1 ELSE -1 END) FILTER (WHERE p.layer = 1), 0)::int8,
		coalesce(sum(p.amount_minor * CASE WHEN p.debit_account = a.customer_account THEN 1 ELSE -1 END) FILTER (WHERE p.layer = 2), 0)::int8
		FROM card_authorization a LEFT JOIN ledger_posting p ON p.intent = a.id WHERE a.id = $1 GROUP BY a.id`, id).
		Scan(&v.state, &v.approved, &v.captured, &v.reversed, &v.returned, &v.held, &v.posted)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// checkSums holds an authorisation at rest against the rules: never above the approved amount, what was captured and not undone is
// posted, and what is held is what remains.
func checkSums(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) sums {
	t.Helper()
	v := selectSums(t, s, id)
	remains := int64(0)
	if v.state == "approved" {
		remains = v.approved - v.captured - v.reversed
	}
	if v.captured+v.reversed > v.approved || v.posted != v.captured-v.returned || v.held != remains {
		t.Errorf("sums %+v, want %d held and %d posted", v, remains, v.captured-v.returned)
	}
	if n := s.Count(t, `SELECT count(*) FROM (SELECT state_version - lag(state_version, 1, 0) OVER (ORDER BY state_version) AS step FROM state_history WHERE subject_id = $1) h WHERE step <> 1`, id); n != 0 {
		t.Errorf("%d gaps in the history", n)
	}
	return v
}

// checkScheme holds an authorisation at rest against the scheme's own books: the same amount posted, and the same held, unless the hold
// ended here by its time or by a final completion of less, neither of which a message of 1987 tells.
func checkScheme(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) {
	t.Helper()
	v := selectSums(t, s, id)
	known := s.Scheme.Books().ByRRN(s.Read(t, id).RRN)
	if len(known) != 1 {
		t.Fatalf("the scheme knows %d originals", len(known))
	}
	told := v.state == "approved" || v.state == "reversed" || v.captured+v.reversed == v.approved
	if h := known[0]; h.PostedMinor-h.CreditedMinor != v.posted || told && h.HeldMinor != v.held {
		t.Errorf("the scheme has %+v, the ledger %+v", h, v)
	}
	for _, r := range s.Scheme.Journal() {
		if r.Violation != "" {
			t.Errorf("the scheme complains about %s %s: %s", r.MTI, r.STAN, r.Violation)
		}
	}
}

func TestOneOfManyCapturesOfTheWholeWins(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	counts := tally(t, together(24, func(i int) error {
		_, err := capture(context.Background(), s, v.ID, fmt.Sprintf("cap-%d", i), captureBody("", nil))
		return err
	}))
	if counts[""] != 1 || counts[gateway.CodeAuthorizationCaptured] != 23 {
		t.Fatalf("%v", counts)
	}
	awaitDuties(t, s, v.ID)
	if sum := checkSums(t, s, v.ID); sum.state != "captured" || sum.captured != 2000 {
		t.Fatalf("%+v", sum)
	}
	if n := s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE endpoint = 'captures'`); n != 1 || s.Count(t, `SELECT count(*) FROM stored_answer`) != 1 {
		t.Fatalf("%d claims: losers left a trace", n)
	}
	verifyLedger(t, s)
}

func TestCopiesOfOneCaptureGetOneAnswer(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	body := captureBody("6.00", nil)
	answers := make([]gateway.Answer, 24)
	for _, err := range together(len(answers), func(i int) (err error) {
		answers[i], err = capture(context.Background(), s, v.ID, "cap-1", body)
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	first := 0
	for _, answer := range answers {
		if !answer.Replayed {
			first++
		}
		if answer.Status != 201 || string(answer.Body) != string(answers[0].Body) {
			t.Fatalf("one got %s, another %s", answer.Body, answers[0].Body)
		}
	}
	awaitDuties(t, s, v.ID)
	if sum := checkSums(t, s, v.ID); first != 1 || sum.captured != 600 {
		t.Fatalf("%d first answers, %+v", first, sum)
	}
	verifyLedger(t, s)
}

func TestCapturesNeverExceedWhatWasApproved(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	counts := tally(t, together(20, func(i int) error {
		_, err := capture(context.Background(), s, v.ID, fmt.Sprintf("cap-%d", i), captureBody("3.00", new(false)))
		return err
	}))
	if counts[""] != 6 || counts[gateway.CodeAmountExceedsRemaining] != 14 {
		t.Fatalf("%v", counts)
	}
	awaitDuties(t, s, v.ID)
	if sum := checkSums(t, s, v.ID); sum.state != "approved" || sum.captured != 1800 {
		t.Fatalf("%+v", sum)
	}
	checkScheme(t, s, v.ID)
	verifyLedger(t, s)
}

func TestCaptureReversalAndExpiryRaceForOneHold(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	outcomes := map[string]int{}
	for round := range 12 {
		v := s.MustAuthorize(t, fmt.Sprintf("key-%d", round), twenty(nil))
		errs := together(9, func(i int) (err error) {
			key := fmt.Sprintf("%d-%d", round, i)
			switch i % 3 {
			case 0:
				_, err = capture(context.Background(), s, v.ID, "cap-"+key, captureBody("", nil))
			case 1:
				_, err = askReversal(context.Background(), s, v.ID, "rev-"+key, "")
			default:
				_, err = s.Gateway.ExpireHolds(context.Background(), gatewaytest.LinkName, time.Now().Add(7*24*time.Hour+time.Minute))
			}
			return err
		})
		captured, reversed := tally(t, []error{errs[0], errs[3], errs[6]})[""], tally(t, []error{errs[1], errs[4], errs[7]})[""]
		awaitDuties(t, s, v.ID)
		sum := checkSums(t, s, v.ID)
		checkScheme(t, s, v.ID)
		outcomes[sum.state]++
		// Reversals of the whole join each other; captures do not.
		if captured > 1 || captured == 1 != (sum.state == "captured") || reversed > 0 != (sum.state == "reversed") || sum.state == "approved" {
			t.Fatalf("%d captures and %d reversals were taken: %+v", captured, reversed, sum)
		}
	}
	t.Logf("winners: %v", outcomes)
	verifyLedger(t, s)
}

// TestEverythingAtOnceOnOneAuthorization: captures, partial reversals and reversals of captures, while their messages go out.
func TestEverythingAtOnceOnOneAuthorization(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("100.00", nil))
	var known sync.Map // ids of captures
	counts := tally(t, together(60, func(i int) error {
		key, amount := fmt.Sprint(i), fmt.Sprintf("%d.%02d", 1+i%7, i)
		switch i % 3 {
		case 0:
			answer, err := capture(context.Background(), s, v.ID, "cap-"+key, captureBody(amount, new(false)))
			if err == nil {
				known.Store(answer.Resource[len(answer.Resource)-36:], true)
			}
			return err
		case 1:
			_, err := askReversal(context.Background(), s, v.ID, "rev-"+key, `"amount":"`+amount+`"`)
			return err
		}
		var err error
		known.Range(func(id, _ any) bool {
			_, err = askReversal(context.Background(), s, v.ID, "undo-"+key, `"capture_id":"`+id.(string)+`"`)
			return false
		})
		return err
	}))
	if counts[""] < 20 {
		t.Fatalf("%v", counts)
	}
	awaitDuties(t, s, v.ID)
	checkSums(t, s, v.ID)
	checkScheme(t, s, v.ID)
	if failed := s.Logs.FilterMessage("reversals not claimed").All(); len(failed) > 0 {
		t.Errorf("a claim failed: %v", failed[0].ContextMap())
	}
	if n := s.Count(t, `SELECT duties - (SELECT count(DISTINCT number) FROM duty WHERE authorization_id = a.id AND number BETWEEN 1 AND a.duties) FROM card_authorization a WHERE id = $1`, v.ID); n != 0 {
		t.Fatalf("%d numbers are missing", n)
	}
	verifyLedger(t, s)
}

// TestCallerThatLeavesChangesNothing: a capture whose caller leaves at any moment is there wholly or not at all, and its key tells which.
func TestCallerThatLeavesChangesNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("100.00", nil))
	bodies := make([][]byte, 16)
	for i := range bodies {
		bodies[i] = captureBody("1.00", nil)
	}
	together(len(bodies), func(i int) error {
		ctx, leave := context.WithTimeout(context.Background(), time.Duration(rand.IntN(15_000))*time.Microsecond)
		defer leave()
		_, err := capture(ctx, s, v.ID, fmt.Sprintf("cap-%d", i), bodies[i])
		return err
	})
	for i, body := range bodies {
		if _, err := capture(t.Context(), s, v.ID, fmt.Sprintf("cap-%d", i), body); err != nil {
			t.Fatalf("the repeat got %v", err)
		}
	}
	awaitDuties(t, s, v.ID)
	if sum := checkSums(t, s, v.ID); sum.captured != 1600 {
		t.Fatalf("%+v", sum)
	}
	verifyLedger(t, s)
}

// TestCaptureIsWholeOrNotAtAll: whichever of its rows cannot be written, none is, and the same key carries it out afterwards.
func TestCaptureIsWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	owner, err := pgx.Connect(t.Context(), s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := owner.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$`)
	body := captureBody("5.00", nil)
	before, sumsBefore := effects(t, s), selectSums(t, s, v.ID)
	for _, table := range []string{"idempotency_claim", "duty", "state_history", "ledger_posting", "stored_answer"} {
		exec(`CREATE TRIGGER refuse_row BEFORE INSERT ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION refuse_row()`)
		_, err := capture(t.Context(), s, v.ID, "cap-1", body)
		mustRefuse(t, err, gateway.CodeDatabaseUnavailable, 503)
		if after := effects(t, s); after != before || selectSums(t, s, v.ID) != sumsBefore || s.Count(t, `SELECT count(*) FROM stored_answer`) != 0 {
			t.Fatalf("%s refused: before %s, after %s", table, before, after)
		}
		exec(`DROP TRIGGER refuse_row ON ` + table)
	}
	if answer, err := capture(t.Context(), s, v.ID, "cap-1", body); err != nil || answer.Replayed {
		t.Fatalf("afterwards %+v, %v", answer, err)
	}
	awaitDuties(t, s, v.ID)
	checkSums(t, s, v.ID)
	verifyLedger(t, s)
}

// TestDutiesOfOneAuthorizationAreBounded: the numbers end, and the refusal says so.
func TestDutiesOfOneAuthorizationAreBounded(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	c := mustCapture(t, s, v.ID, "1.00", nil)
	awaitDuties(t, s, v.ID)
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET duties = 998 WHERE id = $1`, v.ID); err != nil {
		t.Fatal(err)
	}
	if last := mustCapture(t, s, v.ID, "1.00", nil); last.Number != 999 {
		t.Fatalf("number %d", last.Number)
	}
	_, err := capture(t.Context(), s, v.ID, "cap-2", captureBody("1.00", nil))
	mustRefuse(t, err, gateway.CodeTooManyDuties, 409)
	_, err = askReversal(t.Context(), s, v.ID, "rev-1", `"amount":"1.00"`)
	mustRefuse(t, err, gateway.CodeTooManyDuties, 409)
	_, err = askReversal(t.Context(), s, v.ID, "rev-2", `"capture_id":"`+c.ID.String()+`"`)
	mustRefuse(t, err, gateway.CodeTooManyDuties, 409)
	verifyLedger(t, s)
}

// TestClaimHoldsNoTransactionWhileItWaitsForSTANs: with a worker for each of many links, every connection may be in a claim's hands when
// the leases run out together, at the turn of an hour.
func TestClaimHoldsNoTransactionWhileItWaitsForSTANs(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	for range s.DB.Pool.Config().MaxConns - 1 {
		taken, err := s.DB.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(taken.Release)
	}
	s.Gateway.DropLease(gatewaytest.LinkName)
	mustCapture(t, s, v.ID, "12.34", nil)
	awaitDuties(t, s, v.ID)
	if n := s.Logs.FilterMessage("reversals not claimed").Len(); n != 0 {
		t.Fatalf("%d claims failed", n)
	}
}
