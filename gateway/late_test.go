package gateway_test

import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// journaled counts the kept incoming messages of one kind about an authorisation.
func journaled(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, mti, kind string) int {
	t.Helper()
	return s.Count(t, `SELECT count(*) FROM message WHERE authorization_id = $1 AND direction = 'in' AND mti = $2 AND kind = $3`, id, mti, kind)
}

// lateDelay is well past the fixture's deadlines, so that what it delays is late.
const lateDelay = 800 * time.Millisecond

func TestS02_LateAnswerIsKeptAndSignalledAndChangesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ amount, code string }{"approval": {"10.92", "00"}, "decline": {"10.98", "05"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(time.Hour) })})
			body := gatewaytest.Purchase(c.amount, nil)
			told, err := s.Authorize(t, "key-1", body)
			if err != nil {
				t.Fatal(err)
			}
			v := gatewaytest.Decode(t, told.Body)
			if v.State != "timed_out" {
				t.Fatalf("answer %+v", v)
			}
			s.Eventually(t, "late answer kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
			if n := s.Count(t, `SELECT count(*) FROM message WHERE authorization_id = $1 AND kind = 'late' AND response_code = $2 AND stan = $3 AND rrn = $4`,
				v.ID, c.code, v.STAN, v.RRN); n != 1 {
				t.Fatalf("the late answer's row does not say what it was")
			}
			if n := s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.late_response' AND subject_id = $1 AND tenant = $2 AND detail LIKE '%' || $3`,
				v.ID, gatewaytest.Tenant, c.code); n != 1 {
				t.Fatalf("%d events", n)
			}
			if n := s.Metric(t, "schemegate_late_responses_total"); n != 1 {
				t.Fatalf("counter at %v", n)
			}
			now := s.Read(t, v.ID)
			if now.State != "timed_out" || now.StateVersion != v.StateVersion || now.ResponseCode != v.ResponseCode || now.Reversal.State != "owed" {
				t.Fatalf("the late answer moved it to %+v", now)
			}
			again, err := s.Authorize(t, "key-1", body)
			if err != nil || !again.Replayed || !bytes.Equal(again.Body, told.Body) {
				t.Fatalf("repeat got %s, %v", again.Body, err)
			}
		})
	}
}

func TestS03_LateDeclineDoesNotCancelTheReversal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(2 * lateDelay) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.98", nil))
	if v.State != "timed_out" {
		t.Fatalf("answer %+v", v)
	}
	s.Eventually(t, "late decline kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
	if now := s.Read(t, v.ID); now.Reversal.State != "owed" || now.State != "timed_out" {
		t.Fatalf("after the late decline: %+v", now.Reversal)
	}
	done := s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 1 || done.Reversal.ResponseCode != "21" {
		t.Fatalf("%d reversals, closed with %s", len(sent), done.Reversal.ResponseCode)
	}
	s.CheckBooks(t)
}

func TestS04_ReversalClosesOnlyOnIts0430(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: sim.Action{Delay: configs.Duration(2 * lateDelay)}}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(10 * time.Second) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.92", nil))
	s.Eventually(t, "0420 at the scheme", func() bool { return len(received(s, v.STAN, iso8583.MTIReversalAdvice)) == 1 })
	s.Eventually(t, "late 0110 kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
	now := s.Read(t, v.ID)
	if acknowledgements := sentBack(s, v.STAN, iso8583.MTIReversalAdviceResponse); len(acknowledgements) == 0 && (now.Reversal.State != "owed" || now.State != "timed_out") {
		t.Fatalf("the late 0110 closed the reversal: %+v", now.Reversal)
	}
	done := s.AwaitState(t, v.ID, "reversed")
	acknowledgements := sentBack(s, v.STAN, iso8583.MTIReversalAdviceResponse)
	if len(acknowledgements) != 1 || done.Reversal.State != "acknowledged" || done.Reversal.Attempts != 1 {
		t.Fatalf("closed as %+v with %d acknowledgements", done.Reversal, len(acknowledgements))
	}
	var closedAt time.Time
	if err := s.DB.Pool.QueryRow(t.Context(), `SELECT at FROM state_history WHERE subject_id = $1 AND to_state = 'acknowledged'`, v.Reversal.ID).Scan(&closedAt); err != nil {
		t.Fatal(err)
	}
	if closedAt.Before(acknowledgements[0].At.Truncate(time.Microsecond)) {
		t.Fatalf("closed at %s, before its 0430 of %s", closedAt, acknowledgements[0].At)
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 || sent[0].STAN != v.STAN {
		t.Fatalf("reversals %+v", sent)
	}
	s.CheckBooks(t)
}

// sentBack lists the answers that the scheme sent for one STAN.
func sentBack(s *gatewaytest.Stand, stan string, mti iso8583.MTI) []sim.Record {
	var records []sim.Record
	for _, r := range s.Scheme.Journal() {
		if r.Direction == sim.Out && r.MTI == mti.String() && r.STAN == stan {
			records = append(records, r)
		}
	}
	return records
}

func TestLateAcknowledgementClosesTheDuty(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: sim.Action{Delay: configs.Duration(lateDelay)}}),
		Link: silence(func(p *reversal.Policy) {
			p.AnswerWithin, p.FirstGap, p.MaxGap, p.AttentionAttempts = configs.Duration(100*time.Millisecond), configs.Duration(time.Hour), configs.Duration(time.Hour), 1
		}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "silent attempt counted", func() bool { return openExceptions(t, s, v.Reversal.ID, "reversal_unacknowledged") == 1 })
	done := s.AwaitState(t, v.ID, "reversed")
	if done.Reversal.State != "acknowledged" || done.Reversal.Attempts != 1 || done.Reversal.ResponseCode != "00" || done.Reversal.NeedsAttention {
		t.Fatalf("closed as %+v", done.Reversal)
	}
	if journaled(t, s, v.ID, "0430", "response") != 1 || held(t, s, v.ID) != 0 || openExceptions(t, s, v.Reversal.ID, "reversal_unacknowledged") != 0 {
		t.Fatalf("%d acknowledgements kept, %d held", journaled(t, s, v.ID, "0430", "response"), held(t, s, v.ID))
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 {
		t.Fatalf("%d reversals", len(sent))
	}
	s.CheckBooks(t)
}

func TestSuspendedReversalIsClosedByALateAcknowledgement(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(
			sim.Rule{When: sim.Match{MTI: reversals, First: 1}, Then: sim.Action{Delay: configs.Duration(2 * lateDelay)}},
			sim.Rule{When: sim.Match{MTI: reversals}, Then: refused("30")}),
		Link: silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(50 * time.Millisecond) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "suspended", func() bool { return s.Read(t, v.ID).Reversal.State == "suspended" })
	s.AwaitState(t, v.ID, "reversed")
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND from_state = 'suspended' AND to_state = 'acknowledged' AND state_version = 3`, v.Reversal.ID); n != 1 {
		t.Fatalf("history does not say that it was suspended before")
	}
	if n := openExceptions(t, s, v.Reversal.ID, "reversal_refused"); n != 0 || held(t, s, v.ID) != 0 {
		t.Fatalf("%d exceptions open, %d held", n, held(t, s, v.ID))
	}
	s.CheckBooks(t)
}

// TestSecondCopyOfTheDecidingAnswerIsADuplicate: it comes while the first is still being committed, and is no late answer.
func TestSecondCopyOfTheDecidingAnswerIsADuplicate(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for range 5 {
		v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase("10.93", nil))
		if v.State != "approved" {
			t.Fatalf("answer %+v", v)
		}
		s.Eventually(t, "second copy kept", func() bool { return journaled(t, s, v.ID, "0110", "duplicate") == 1 })
		if now := s.Read(t, v.ID); now.State != "approved" || now.StateVersion != v.StateVersion {
			t.Fatalf("moved to %+v", now)
		}
	}
	if n := s.Count(t, `SELECT count(*) FROM event`) + s.Count(t, `SELECT count(*) FROM exception`); n != 0 || s.Metric(t, "schemegate_late_responses_total") != 0 {
		t.Fatalf("%d events and exceptions for second copies", n)
	}
	s.Eventually(t, "dedup journal", func() bool {
		list, err := s.Gateway.Duplicates(t.Context(), gatewaytest.Tenant, uuid.Nil, 10)
		return err == nil && len(list) == 5 && list[0].Source == "scheme" && list[0].Reason == "answer_repeated" && list[0].OriginalID != nil
	})
	s.CheckBooks(t)
}

func TestS36_AnswerWithoutAKeyElementIsNamedKeptAndReversed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.85", nil))
	if v.State != "timed_out" {
		t.Fatalf("answer %+v", v)
	}
	var note string
	if err := s.DB.Pool.QueryRow(t.Context(), `SELECT note FROM message WHERE authorization_id = $1 AND kind = 'unmatched' AND mti = '0110'`, v.ID).Scan(&note); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(note, "DE 41") {
		t.Fatalf("kept with the note %q", note)
	}
	named := s.Logs.Filter(func(e observer.LoggedEntry) bool {
		for _, field := range e.Context {
			if field.Key == "diagnostic" && strings.Contains(field.String, "DE 41") {
				return e.Level >= zap.WarnLevel
			}
		}
		return false
	})
	if named.Len() != 1 {
		t.Fatalf("the diagnostic was logged %d times", named.Len())
	}
	s.AwaitState(t, v.ID, "reversed")
	checkReversals(t, s, v)
	s.CheckBooks(t)
}

// TestInterimAnswerDecidesNothing: DE 39 = 09 is kept and the wait goes on.
func TestInterimAnswerDecidesNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: refused("09")}),
		Link:   func(c *gateway.LinkConfig) { c.Silence.ReversalDelay = configs.Duration(time.Hour) },
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("60.09", nil))
	if v.State != "timed_out" || v.Reason != "timeout" {
		t.Fatalf("answer %+v", v)
	}
	s.Eventually(t, "interim answer kept", func() bool { return journaled(t, s, v.ID, "0110", "unmatched") == 1 })
}

// TestS37_LateAnswerIsFoundByTheKeyOfItsExchange: what the profile leaves out of that key, the host may have rewritten.
func TestS37_LateAnswerIsFoundByTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key       []iso8583.Element
		rewritten map[iso8583.Element]string
	}{
		"without DE 7":           {[]iso8583.Element{iso8583.STAN, iso8583.TerminalID}, map[iso8583.Element]string{iso8583.TransmissionDateTime: "0102030405"}},
		"without DE 7 and DE 11": {[]iso8583.Element{iso8583.RRN}, map[iso8583.Element]string{iso8583.TransmissionDateTime: "0102030405", iso8583.STAN: "999998"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gatewaytest.New(t, gatewaytest.Options{
				Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: lost}),
				Link: func(l *gateway.LinkConfig) {
					l.Correlations = map[iso8583.MTI][]iso8583.Element{iso8583.MTIAuthorizationRequest: c.key}
					l.Silence.ReversalDelay = configs.Duration(time.Hour)
				},
			})
			v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
			elements := map[iso8583.Element]string{iso8583.PAN: gatewaytest.PAN, iso8583.AmountTransaction: "000000001234", iso8583.STAN: v.STAN,
				iso8583.TransmissionDateTime: v.DateTime, iso8583.RRN: v.RRN, iso8583.ResponseCode: "00", iso8583.TerminalID: "TERM0001"}
			maps.Copy(elements, c.rewritten)
			s.Gateway.TakeLate(gatewaytest.LinkName, answerOf(t, s, iso8583.MTIAuthorizationResponse, elements))
			s.Eventually(t, "answer kept", func() bool {
				return s.Count(t, `SELECT count(*) FROM message WHERE direction = 'in' AND mti = '0110'`) == 1
			})
			if journaled(t, s, v.ID, "0110", "late") != 1 {
				t.Fatal("the answer was not taken for its original's")
			}
		})
	}
}
