package gateway

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/ledger/pgtest"
	"github.com/schemegate/schemegate/reversal"
)

var allStates = []State{Pending, Approved, Declined, NotSent, TimedOut, Captured, Reversed, Expired}

func TestAuthorizationMachine(t *testing.T) {
	t.Parallel()
	moves := map[State]map[Event]State{
		Pending:  {EventApproved: Approved, EventDeclined: Declined, EventWriteNotBegun: NotSent, EventAbandoned: TimedOut},
		Approved: {EventReversalAcknowledged: Reversed, EventCaptured: Captured, EventHoldExpired: Expired},
		TimedOut: {EventReversalAcknowledged: Reversed},
	}
	events := []Event{EventApproved, EventDeclined, EventWriteNotBegun, EventAbandoned, EventReversalAcknowledged, EventCaptured, EventHoldExpired, "unheard of"}
	for _, state := range append(allStates, "unheard of") {
		for _, event := range events {
			want, allowed := moves[state][event]
			got, err := next(state, event)
			if allowed && (err != nil || got != want) {
				t.Errorf("%s on %s gives %s, %v, want %s", state, event, got, err, want)
			}
			if !allowed && (err == nil || got != state) {
				t.Errorf("%s on %s gives %s, %v, want a refusal", state, event, got, err)
			}
		}
	}
}

// TestWhatAStateMeans: the outcome, the advice, what is known of the wire and the status of the stored answer.
func TestWhatAStateMeans(t *testing.T) {
	t.Parallel()
	want := map[State]string{
		Pending:  "unknown same_key unknown 202",
		Approved: "succeeded never yes 201",
		Declined: "failed new_key yes 201",
		NotSent:  "failed new_key no 503",
		TimedOut: "unknown never unknown 201",
		Captured: "succeeded never yes 201",
		Reversed: "failed new_key unknown 201",
		Expired:  "failed new_key yes 201",
	}
	for _, state := range allStates {
		a := &Authorization{State: state, ResponseCode: "00", Currency: "EUR"}
		got := fmt.Sprintf("%s %s %s %d", state.Outcome(), state.retry(), a.sent(), state.answerStatus())
		if got != want[state] {
			t.Errorf("%s means %q, want %q", state, got, want[state])
		}
	}
}

func TestReasonOfNotSent(t *testing.T) {
	t.Parallel()
	for reason, err := range map[string]error{
		"link_signed_off": link.ErrSignedOff, "rate_limited": link.ErrRateLimited, "link_down": link.ErrDown, "link_not_signed_on": link.ErrNotSignedOn, "link_shutting_down": link.ErrShuttingDown,
		"key_in_flight": link.ErrKeyInFlight, "too_many_pending": link.ErrTooManyPending, "send_time_passed": link.ErrExpired,
		"write_not_begun": errors.New("another one"),
	} {
		if got := notSentReason(fmt.Errorf("exchange: %w", err)); got != reason {
			t.Errorf("%v is %s, want %s", err, got, reason)
		}
	}
}

func TestContradictions(t *testing.T) {
	t.Parallel()
	spec, err := iso8583.DefaultSpecConfig().Build()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code, amount, currency string
		contradicts            bool
	}{
		"nothing repeated":             {"00", "", "", false},
		"the same":                     {"00", "000000001000", "978", false},
		"less without being partial":   {"00", "000000000999", "978", true},
		"more":                         {"00", "000000001001", "978", true},
		"approval of nothing":          {"00", "000000000000", "978", true},
		"decline of nothing":           {"05", "000000000000", "978", false},
		"decline of something else":    {"05", "000000000500", "978", true},
		"partial":                      {"10", "000000000500", "978", false},
		"partial by the other code":    {"32", "000000000500", "978", false},
		"partial of more":              {"10", "000000001500", "978", true},
		"another currency":             {"00", "000000001000", "840", true},
		"another currency, no amount":  {"05", "", "840", true},
		"unlisted code and its amount": {"Z9", "000000001000", "978", false},
	} {
		m := spec.NewMessage(iso8583.MTIAuthorizationResponse)
		for e, value := range map[iso8583.Element]string{iso8583.ResponseCode: c.code, iso8583.AmountTransaction: c.amount, iso8583.CurrencyTransaction: c.currency} {
			if value == "" {
				continue
			}
			if err := m.Set(e, value); err != nil {
				t.Fatal(err)
			}
		}
		got := contradicts(&Authorization{AmountMinor: 1000, Currency: "EUR"}, m, spec.AuthorizationAction(c.code))
		if (got != "") != c.contradicts {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// bench is a database with one pending authorisation, for the statements alone.
type bench struct {
	db       *pgtest.DB
	link     *cardLink
	original *Authorization
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{db: pgtest.NewDB(t)}
	policy := new(reversal.Policy)
	policy.SetDefaults()
	policy.ReversalDelay = configs.Duration(time.Hour)
	b.link = &cardLink{name: "visa-a", config: LinkConfig{Silence: policy}}
	accounts := ledger.NewAccounts(b.db.Pool)
	euro, _ := ledger.CurrencyByAlpha("EUR")
	customer, err := accounts.ID(t.Context(), "bank-a", "visa-a", ledger.Customer, euro)
	if err != nil {
		t.Fatal(err)
	}
	settlement, err := accounts.ID(t.Context(), "bank-a", "visa-a", ledger.Settlement, euro)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	b.original = &Authorization{
		ID: newID(), Tenant: "bank-a", ClientReference: "ref-1", Link: "visa-a", Type: Purchase, State: Pending, StateVersion: 1, MTI: "0100",
		STAN: "000001", RRN: "000000000001", TransmissionDateTime: now.Format(transmissionDateTimeLayout), AmountMinor: 1000, Currency: "EUR",
		PANMasked: "411111******1111", PANSealed: []byte{1}, PANKeyID: "k1", PANHash: []byte{1}, Elements: "{}",
		CustomerAccount: customer, SettlementAccount: settlement, OwnerEpoch: 1, CreatedAt: now, DeadlineAt: now, UpdatedAt: now,
	}
	step := &recordStep{authorization: b.original, endpoint: endpointAuthorizations, idempotencyKey: "key-1", digest: []byte{1},
		request: journalRow{id: newID(), at: now, kind: messageRequest, mti: "0100", image: "0100", digest: []byte{1}}}
	b.run(t, queueRecords, step)
	if !step.won {
		t.Fatal("the original was not recorded")
	}
	return b
}

// run is one transaction of one kind of step.
func (b *bench) run(t *testing.T, queue func(*pgx.Batch, []commit.Step), steps ...commit.Step) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		queue(&batch, steps)
		return tx.SendBatch(t.Context(), &batch).Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) count(t *testing.T, query string, args ...any) int {
	t.Helper()
	var n int
	if err := b.db.Pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// giveUp and answer are the two decisions that can meet at a row.
func (b *bench) giveUp(t *testing.T) *decideStep {
	t.Helper()
	step, err := b.link.abandon(b.original, reversal.Swept, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return step
}

func (b *bench) answer(t *testing.T) *decideStep {
	t.Helper()
	step, err := decision(b.original, EventDeclined, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	step.authorization.ResponseCode = "05"
	step.response = &journalRow{id: newID(), kind: messageResponse, mti: "0110", responseCode: "05", image: "0110", digest: []byte{1}}
	return step.seal()
}

// TestDecisionsMeetInOneBatch: whatever their order, the answer decides and nothing is lost.
func TestDecisionsMeetInOneBatch(t *testing.T) {
	t.Parallel()
	for name, answerFirst := range map[string]bool{"answer first": true, "giving up first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			answer, given := b.answer(t), b.giveUp(t)
			steps := []commit.Step{given, answer}
			if answerFirst {
				steps = []commit.Step{answer, given}
			}
			b.run(t, queueDecisions, steps...)
			if !answer.won || answer.ledgerHit || given.won {
				t.Fatalf("answer won %t, giving up won %t", answer.won, given.won)
			}
			if n := b.count(t, `SELECT count(*) FROM card_authorization WHERE state = 'declined' AND response_code = '05' AND state_version = 2`); n != 1 {
				t.Fatal("the answer does not stand")
			}
			if n := b.count(t, `SELECT count(*) FROM duty`); n != 0 {
				t.Fatalf("%d reversals of a decline", n)
			}
			if n := b.count(t, `SELECT count(*) FROM message WHERE kind = 'response'`); n != 1 {
				t.Fatalf("%d answers kept", n)
			}
		})
	}
}

// TestLosingAnswerMovesNothing: an answer that finds the row decided knows it, and a batch that runs again adds nothing.
func TestLosingAnswerMovesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	given, answer := b.giveUp(t), b.answer(t)
	b.run(t, queueDecisions, given)
	b.run(t, queueDecisions, answer)
	if !given.won || answer.won {
		t.Fatalf("giving up won %t, answer won %t", given.won, answer.won)
	}
	b.run(t, queueDecisions, answer, given)
	if given.won || answer.won {
		t.Fatalf("again: giving up won %t, answer won %t", given.won, answer.won)
	}
	for _, query := range []string{
		`SELECT count(*) FROM duty WHERE state = 'owed'`,
		`SELECT count(*) FROM state_history WHERE subject = 'reversal'`,
	} {
		if n := b.count(t, query); n != 1 {
			t.Errorf("%d for %s", n, query)
		}
	}
}

// TestResolutionsMeetInOneBatch: an acknowledgement decides over silence of a later attempt, and both messages are kept.
func TestResolutionsMeetInOneBatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	given := b.giveUp(t)
	b.run(t, queueDecisions, given)
	duty := reversal.Duty{ID: given.owed.ID, AuthorizationID: b.original.ID, Attempt: 2}
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE duty SET attempts = 2`); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	message := func(code string) *journalRow {
		return &journalRow{id: newID(), kind: messageResponse, mti: "0430", responseCode: code, image: "0430", digest: []byte{1}}
	}
	later := &resolveStep{duty: duty, outcome: reversal.AttemptSilent, responseCode: "96", at: now, nextAt: now.Add(time.Hour), response: message("96")}
	duty.Attempt = 1
	acknowledged := &resolveStep{duty: duty, outcome: reversal.AttemptAcknowledged, responseCode: "00", at: now, response: message("00")}
	b.run(t, queueResolutions, later, acknowledged)
	if !acknowledged.won || acknowledged.state != reversal.Acknowledged || acknowledged.ledgerHit || later.won {
		t.Fatalf("acknowledgement %+v, silence %+v", acknowledged, later)
	}
	for query, want := range map[string]int{
		`SELECT count(*) FROM card_authorization WHERE state = 'reversed'`:                                                   1,
		`SELECT count(*) FROM message WHERE kind = 'response' AND response_code = '00'`:                                      1,
		`SELECT count(*) FROM message WHERE kind = 'late' AND response_code = '96'`:                                          1,
		`SELECT count(*) FROM ledger_posting WHERE step = 2`:                                                                 1,
		`SELECT count(*) FROM state_history WHERE subject = 'reversal' AND from_state = 'owed'`:                              1,
		`SELECT count(*) FROM duty WHERE state = 'acknowledged' AND response_code = '00' AND attempts = 2`:                   1,
		`SELECT count(*) FROM state_history WHERE subject = 'authorization' AND to_state = 'reversed' AND state_version = 3`: 1,
	} {
		if n := b.count(t, query); n != want {
			t.Errorf("%d for %s", n, query)
		}
	}
}

// TestResultOfAnOldAttemptMovesNothing: only the latest attempt moves the schedule.
func TestResultOfAnOldAttemptMovesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	given := b.giveUp(t)
	b.run(t, queueDecisions, given)
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE duty SET attempts = 3`); err != nil {
		t.Fatal(err)
	}
	var until time.Time
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT next_at FROM duty`).Scan(&until); err != nil {
		t.Fatal(err)
	}
	old := &resolveStep{duty: reversal.Duty{ID: given.owed.ID, AuthorizationID: b.original.ID, Attempt: 2, NextAt: until}, outcome: reversal.AttemptRefused,
		responseCode: "30", at: time.Now(), attention: true, exception: "reversal_refused",
		response: &journalRow{id: uuid.New(), kind: messageResponse, mti: "0430", responseCode: "30", image: "0430", digest: []byte{1}}}
	b.run(t, queueResolutions, old)
	if old.won {
		t.Fatal("an old attempt's result was written")
	}
	if n := b.count(t, `SELECT count(*) FROM duty WHERE state = 'owed' AND attempts = 3 AND NOT needs_attention`); n != 1 {
		t.Fatal("an old attempt's result moved the duty")
	}
	if n := b.count(t, `SELECT count(*) FROM message WHERE kind = 'late' AND response_code = '30'`); n != 1 || b.count(t, `SELECT count(*) FROM exception`) != 0 {
		t.Fatalf("%d rows of its message", n)
	}
}
