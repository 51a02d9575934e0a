package gateway_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// copies inserts pending copies of an authorisation, owned by an epoch, with deadlines and a link of their own.
func copies(t *testing.T, s *gatewaytest.Stand, of uuid.UUID, n int, link, prefix string, epoch int64, deadline time.Time) {
	t.Helper()
	_, err := s.DB.Pool.Exec(t.Context(), `
		INSERT INTO card_authorization (id, tenant, client_reference, link, type, state, state_version, mti, stan, rrn, transmission_date_time,
			amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account, settlement_account, owner_epoch,
			created_at, deadline_at, updated_at)
		SELECT gen_random_uuid(), tenant, $2 || i, $3, type, 'pending', 1, mti, stan, $2 || i, transmission_date_time,
			amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account, settlement_account, $4,
			$5, $5, $5
		FROM card_authorization, generate_series(1, $6::int) i WHERE id = $1`, of, prefix, link, epoch, deadline, n)
	if err != nil {
		t.Fatal(err)
	}
}

// A page full of rows that this daemon cannot take must not hide those that it can.
func TestSweepIsNotStoppedByLinksOfOthers(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	now := time.Now()
	copies(t, s, v.ID, 600, "gone", "g", 99, now.Add(-10*time.Minute))
	copies(t, s, v.ID, 1, gatewaytest.LinkName, "v", 99, now.Add(-5*time.Minute))
	s.Eventually(t, "the row behind them is given up", func() bool {
		return s.Count(t, `SELECT count(*) FROM card_authorization WHERE rrn = 'v1' AND state <> 'pending'`) == 1
	})
	if n := s.Count(t, `SELECT count(*) FROM card_authorization WHERE link = 'gone' AND state = 'pending'`); n != 600 {
		t.Errorf("%d of the other link's rows are pending, want 600", n)
	}
}

// A life whose clock was behind the sweep's mark recorded deadlines before it.
func TestRecoveryFindsWhatAClockBehindTheMarkRecorded(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-5 * time.Hour)
	for _, statement := range []string{
		`INSERT INTO sweep_mark VALUES ('card_authorization', now() - interval '90 minutes') ON CONFLICT (name) DO UPDATE SET through_at = excluded.through_at`,
		`INSERT INTO daemon (instance, started_at, seen_at) VALUES ('schemegate', now() - interval '6 hours', now() - interval '5 hours')`,
	} {
		if _, err := s.DB.Pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	epoch := s.Count(t, `SELECT max(epoch) FROM daemon`)
	copies(t, s, v.ID, 1, gatewaytest.LinkName, "w", int64(epoch), then)
	s.Start(t)
	s.Eventually(t, "the row is given up", func() bool {
		return s.Count(t, `SELECT count(*) FROM card_authorization WHERE rrn = 'w1' AND state <> 'pending'`) == 1
	})
}

// A reversal that the link cannot frame is a person's matter at once, not an endless silent loop.
func TestReversalThatCannotBeSentCallsAPerson(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.Correlation = []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.ExpirationDate} // the 0420 has no DE 14
		l.Silence.FirstGap, l.Silence.MaxGap = configs.Duration(time.Minute), configs.Duration(time.Minute)
	}})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "an exception is open", func() bool {
		return s.Count(t, `SELECT count(*) FROM exception WHERE kind = 'reversal_unbuildable' AND closed_at IS NULL`) == 1
	})
	now := s.Read(t, v.ID)
	if now.State != "timed_out" || now.Reversal.Attempts != 0 || !now.Reversal.NeedsAttention {
		t.Errorf("%s, reversal %+v", now.State, now.Reversal)
	}
	if n := s.Count(t, `SELECT count(*) FROM message WHERE mti = '0420'`); n != 1 {
		t.Errorf("%d journal rows of the attempt, want 1", n)
	}
	if n := len(s.Received(iso8583.MTIReversalAdvice)); n != 0 {
		t.Errorf("the scheme received %d", n)
	}
}

// A repeat whose first request has its answer hears it, even when the repeat itself cannot be taken.
func TestRepeatThatCannotBeTakenHearsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("12.34", nil)
	v := s.MustAuthorize(t, "key-1", body)
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Unready: true, Gateway: func(c *gateway.Config) { c.Instance = "other" },
		Link: func(l *gateway.LinkConfig) { l.Address = "127.0.0.1:1" }})
	s.Eventually(t, "the other daemon answers", func() bool {
		again, err := other.Authorize(t, "key-1", body)
		return err == nil && again.Replayed && gatewaytest.Decode(t, again.Body).ID == v.ID
	})
	_, err := other.Authorize(t, "key-2", gatewaytest.Purchase("12.34", nil))
	if refusal := gateway.AsError(err); refusal.Code != gateway.CodeLinkUnavailable || refusal.Sent() != gateway.SentNo {
		t.Errorf("a first request got %v", err)
	}
	// A link that the configuration no longer has: the repeat still finds its answer.
	named := gatewaytest.Purchase("12.34", map[string]any{"link": "gone"})
	if _, err := s.Authorize(t, "key-3", named); gateway.AsError(err).Code != gateway.CodeUnknownLink {
		t.Errorf("an unknown link got %v", err)
	}
}

// Repeats of one client use no STAN and no RRN of the traffic.
func TestRepeatsUseNoSTAN(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("12.34", nil)
	first := s.MustAuthorize(t, "key-1", body)
	for range 20 {
		s.MustAuthorize(t, "key-1", body)
	}
	second := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.34", nil))
	if first.STAN != "000001" || second.STAN != "000002" {
		t.Errorf("STANs %s and %s, want 000001 and 000002", first.STAN, second.STAN)
	}
}

// Two daemons under one name would give up each other's work: the earlier one ends in order and says why.
func TestDaemonEndsWhenItsInstanceNameIsTaken(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = s.Config.Instance }})
	s.Eventually(t, "the earlier daemon takes nothing more", func() bool {
		_, err := s.Authorize(t, "key-"+uuid.NewString(), gatewaytest.Purchase("12.34", nil))
		return err != nil && gateway.AsError(err).Sent() == gateway.SentNo
	})
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "instance") {
		t.Errorf("it ended with %v", err)
	}
	other.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.34", nil))
}

// A reversal names the card by its PAN, so a track of another card cannot be undone.
func TestTrack2MustBeTheCardsOwn(t *testing.T) {
	t.Parallel()
	for track, ok := range map[string]bool{
		gatewaytest.PAN + "=30121010000000000": true, gatewaytest.PAN + "D3012101": true,
		"4000000000000002=30121010000000000": false, gatewaytest.PAN + "1=3012101": false,
	} {
		_, err := gateway.ParseAuthorizationRequest(gatewaytest.Purchase("12.34", map[string]any{
			"card": map[string]any{"pan": gatewaytest.PAN, "track2": track}}))
		var refusal *gateway.Error
		if ok != (err == nil) || !ok && (!errors.As(err, &refusal) || refusal.Faults[0].Field != "card.track2") {
			t.Errorf("own track %t: %v", ok, err)
		}
	}
}

// A host that rewrites DE 7: its late answer still finds its original, by the RRN.
func TestLateAnswerWithAnotherDateTimeIsLinked(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{Amount: "20.07"}, Then: sim.Action{Delay: configs.Duration(1200 * time.Millisecond),
			Set: map[iso8583.Element]string{iso8583.TransmissionDateTime: "0101000000"}}}),
		Link: func(l *gateway.LinkConfig) {
			l.Correlation = []iso8583.Element{iso8583.STAN, iso8583.TerminalID}
		},
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.07", nil))
	if v.State != "timed_out" {
		t.Fatalf("state %s", v.State)
	}
	s.Eventually(t, "the late answer is linked", func() bool {
		return s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.late_response' AND subject_id = $1`, v.ID) == 1
	})
}

// A link that is down makes no attempts: a person is called by the duty's age.
func TestOldReversalOfADownLinkCallsAPerson(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.Silence.AttentionAfter = configs.Duration(50 * time.Millisecond)
		l.Silence.FirstGap, l.Silence.MaxGap = configs.Duration(time.Minute), configs.Duration(time.Minute)
	}, Scheme: scheme(sim.Rule{When: sim.Match{MTI: []string{"0100", "0420", "0421"}}, Then: sim.Action{Answer: sim.AnswerLost}})})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	s.Eventually(t, "an exception is open", func() bool {
		return s.Count(t, `SELECT count(*) FROM exception WHERE kind = 'reversal_unacknowledged' AND subject_id = $1`, v.Reversal.ID) == 1
	})
	if now := s.Read(t, v.ID); !now.Reversal.NeedsAttention || now.Reversal.State != "owed" {
		t.Errorf("reversal %+v", now.Reversal)
	}
}

// The ledger's second guard: a reference that has had its effect is refused before anything is sent, even when every guard
// before it was lost.
func TestReferenceWithAHoldIsNeverSentAgain(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", map[string]any{"client_reference": "ref-1"}))
	owner, err := pgx.Connect(t.Context(), s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(t.Context())
	if _, err := owner.Exec(t.Context(), `SET session_replication_role = replica; DELETE FROM idempotency_claim`); err != nil {
		t.Fatal(err)
	}
	_, err = s.Authorize(t, "key-2", gatewaytest.Purchase("12.34", map[string]any{"client_reference": "ref-1"}))
	if refusal := gateway.AsError(err); refusal.Code != gateway.CodeInternal || refusal.Sent() != gateway.SentNo {
		t.Errorf("got %v", err)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Errorf("%d requests reached the scheme, want 1", n)
	}
	if n := s.Metric(t, "schemegate_ledger_unique_index_hits_total"); n != 1 {
		t.Errorf("%v hits counted, want 1", n)
	}
}

// A card's own number stands in no text that is stored; a number that merely has a right check digit is nobody's card.
func TestOwnCardNumberIsInNoStoredText(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	const numeric = "20261201000000006" // a right check digit by chance
	if !iso8583.LuhnValid(numeric) {
		t.Fatal("the reference proves nothing")
	}
	if v := s.MustAuthorize(t, numeric, gatewaytest.Purchase("12.34", map[string]any{"client_reference": numeric})); v.State != "approved" {
		t.Errorf("a numeric key and reference: %s", v.State)
	}
	_, err := s.Authorize(t, "key-"+gatewaytest.PAN, gatewaytest.Purchase("12.34", nil))
	if refusal := gateway.AsError(err); refusal.Code != gateway.CodeKeyMalformed {
		t.Errorf("a key with the card number: %v", err)
	}
	for _, field := range []string{"client_reference", "order_reference"} {
		_, err := s.Authorize(t, "key-1", gatewaytest.Purchase("12.34", map[string]any{field: "x" + gatewaytest.PAN}))
		if refusal := gateway.AsError(err); refusal.Code != gateway.CodeValidationFailed || refusal.Faults[0].Field != field {
			t.Errorf("%s with the card number: %v", field, err)
		}
	}
}
