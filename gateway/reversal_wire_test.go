package gateway_test

import (
	"bytes"
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

// TestReversalsBy0400: the profile names the request 0400; its repeats are 0401, and its own 0410 closes it, also late.
func TestReversalsBy0400(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]sim.Rule{
		"answer lost": {When: sim.Match{MTI: []string{"0400", "0401"}, First: 2}, Then: lost},
		"answer late": {When: sim.Match{MTI: []string{"0400"}}, Then: sim.Action{Delay: configs.Duration(lateDelay)}},
	} {
		for _, stan := range []string{"original", "new"} {
			t.Run(name+", STAN "+stan, func(t *testing.T) {
				t.Parallel()
				var tap *wiretap
				s := gatewaytest.New(t, gatewaytest.Options{
					Scheme: scheme(rule, sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}),
					Link: tapped(t, &tap, func(c *gateway.LinkConfig) {
						c.Reversal.MTI, c.Reversal.STAN = "0400", stan
						c.Silence.AnswerWithin = configs.Duration(200 * time.Millisecond)
						if name == "answer late" {
							c.Silence.FirstGap, c.Silence.MaxGap = configs.Duration(time.Hour), configs.Duration(time.Hour)
						}
					})})
				v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
				now := s.AwaitState(t, v.ID, "reversed")
				messages, bodies := tap.sent(t, "0400", "0401", "0420", "0421")
				want := map[string]int{"answer lost": 3, "answer late": 1}[name]
				if len(messages) < want || now.Reversal.ClosedAs != "acknowledged" || messages[0].MTI().String() != "0400" {
					t.Fatalf("%d messages, closed as %+v", len(messages), now.Reversal)
				}
				for i, m := range messages {
					if own := m.Get(iso8583.STAN) != v.STAN; own != (stan == "new") || m.Get(iso8583.STAN) != messages[0].Get(iso8583.STAN) {
						t.Errorf("message %d has STAN %s, the original %s", i, m.Get(iso8583.STAN), v.STAN)
					}
					if original := m.Get(iso8583.OriginalData); !strings.HasPrefix(original, "0100"+v.STAN+v.DateTime) {
						t.Errorf("message %d names %s", i, original)
					}
					if i > 0 && (m.MTI().String() != "0401" || !bytes.Equal(bodies[i][4:], bodies[0][4:])) {
						t.Errorf("message %d is %s and not the first but for its type", i, m.MTI())
					}
				}
				s.CheckBooks(t)
			})
		}
	}
}

// TestPartialReversalOnTheWire: what the profile says of a partial reversal's amounts; it has a STAN of its own.
func TestPartialReversalOnTheWire(t *testing.T) {
	t.Parallel()
	for form, want := range map[string]struct{ de4, de30, de95 string }{
		"de95": {"000000001234", "", "000000001000" + strings.Repeat("0", 30)},
		"de30": {"000000001000", "000000001234" + strings.Repeat("0", 12), ""},
		"de4":  {"000000000234", "", ""},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			var tap *wiretap
			s := gatewaytest.New(t, gatewaytest.Options{
				Scheme: func(c *sim.CardConfig) {
					if form == "de30" { // in 1987 it is a fee
						c.Spec.Elements = map[iso8583.Element]iso8583.ElementConfig{iso8583.AmountsOriginal: {Format: "n", Length: 24, Prefix: "fixed"}}
					}
				},
				Link: tapped(t, &tap, func(c *gateway.LinkConfig) {
					patient(c)
					c.Reversal.Partial = form
				})})
			v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
			r := s.MustReverse(t, "undo-1", v.ID, map[string]any{"amount": "2.34"})
			if r.Number != 1 || r.Amount != "2.34" || r.State != "owed" {
				t.Fatalf("answer %+v", r)
			}
			s.Eventually(t, "acknowledged", func() bool { return held(t, s, v.ID) == 1000 })
			messages, _ := tap.sent(t, "0420")
			if len(messages) != 1 || messages[0].Get(iso8583.STAN) == v.STAN || messages[0].Get(iso8583.RRN) != v.RRN {
				t.Fatalf("sent %v", messages)
			}
			m := messages[0]
			if m.Get(iso8583.AmountTransaction) != want.de4 || m.Get(iso8583.AmountsOriginal) != want.de30 || m.Get(iso8583.ReplacementAmounts) != want.de95 {
				t.Fatalf("DE 4 %s, DE 30 %s, DE 95 %s", m.Get(iso8583.AmountTransaction), m.Get(iso8583.AmountsOriginal), m.Get(iso8583.ReplacementAmounts))
			}
			if now := s.Read(t, v.ID); now.State != "approved" {
				t.Fatalf("now %s", now.State)
			}
		})
	}
}

// TestCaptureIsUndoneUnderItsOwnSTAN: DE 90 of the 0420 names the 0220.
func TestCaptureIsUndoneUnderItsOwnSTAN(t *testing.T) {
	t.Parallel()
	var tap *wiretap
	s := gatewaytest.New(t, gatewaytest.Options{Link: tapped(t, &tap, patient)})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	answer, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "capture-1", Authorization: v.ID,
		Request: gateway.CaptureRequest{ClientReference: "capture-1", Amount: "5.00"}})
	if err != nil {
		t.Fatal(err)
	}
	capture := gatewaytest.DecodeReversal(t, answer)
	r := s.MustReverse(t, "undo-1", v.ID, map[string]any{"capture_id": capture.ID.String()})
	s.Eventually(t, "acknowledged", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND state = 'acknowledged'`, r.ID) == 1
	})
	completions, _ := tap.sent(t, "0220")
	undone, _ := tap.sent(t, "0420")
	if len(completions) != 1 || len(undone) != 1 || undone[0].Get(iso8583.STAN) == completions[0].Get(iso8583.STAN) || undone[0].Get(iso8583.STAN) == v.STAN {
		t.Fatalf("%d completions, %d reversals", len(completions), len(undone))
	}
	want := "0220" + completions[0].Get(iso8583.STAN) + completions[0].Get(iso8583.TransmissionDateTime)
	if original := undone[0].Get(iso8583.OriginalData); !strings.HasPrefix(original, want) {
		t.Fatalf("DE 90 %s, want %s...", original, want)
	}
	if e := refusal(t, s, v.ID, map[string]any{"capture_id": uuid.NewString()}); e.Status() != 404 {
		t.Errorf("a capture that is none: %v", e)
	}
}

// TestS85_ReversalAfterCutoverCarriesTheOriginalsDate: what is in flight keeps its business date.
func TestS85_ReversalAfterCutoverCarriesTheOriginalsDate(t *testing.T) {
	t.Parallel()
	var tap *wiretap
	s := gatewaytest.New(t, gatewaytest.Options{Link: tapped(t, &tap, func(c *gateway.LinkConfig) {
		patient(c)
		c.SendSettlementDate = true
	})})
	today := time.Now().UTC().Truncate(24 * time.Hour)
	tomorrow := today.AddDate(0, 0, 1)
	s.Gateway.CutOver(gatewaytest.LinkName, today.Format("0102"))
	before := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	s.Gateway.CutOver(gatewaytest.LinkName, tomorrow.Format("0102"))
	after := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.35", nil))
	s.MustReverse(t, "undo-1", before.ID, nil)
	s.AwaitState(t, before.ID, "reversed")
	requests, _ := tap.sent(t, "0100")
	undone, _ := tap.sent(t, "0420")
	if len(requests) != 2 || len(undone) != 1 {
		t.Fatalf("%d requests, %d reversals", len(requests), len(undone))
	}
	for i, want := range []time.Time{today, tomorrow} {
		if got := requests[i].Get(iso8583.SettlementDate); got != want.Format("0102") {
			t.Errorf("request %d has DE 15 %s", i, got)
		}
	}
	if got := undone[0].Get(iso8583.SettlementDate); got != today.Format("0102") {
		t.Errorf("the reversal has DE 15 %s", got)
	}
	for id, want := range map[uuid.UUID]time.Time{before.ID: today, after.ID: tomorrow} {
		if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1 AND value_date <> $2`, id, want); n != 0 {
			t.Errorf("%d postings of another value date", n)
		}
	}
	s.CheckBooks(t)
}

// TestPartialReversalByDE30NeedsTheElement: the table of 1987 has no room for two amounts there.
func TestPartialReversalByDE30NeedsTheElement(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Down: true})
	l := s.Config.Links[gatewaytest.LinkName]
	l.Reversal.Partial = "de30"
	var faults configs.Faults
	l.Validate("links.x", &faults)
	if len(faults) != 1 || faults[0].Path != "links.x.reversal.partial" {
		t.Fatalf("faults %v", faults)
	}
}

// TestMessageTypesKeepTheirFunctions: by it an answer to a capture is told from an answer to an authorisation.
func TestMessageTypesKeepTheirFunctions(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Down: true})
	l := s.Config.Links[gatewaytest.LinkName]
	l.Captures.MTI, l.Reversal.MTI = "0200", "0440"
	l.Types[gateway.Purchase] = gateway.TypeConfig{MTI: "0220", ProcessingCode: "000000"}
	var faults configs.Faults
	l.Validate("links.x", &faults)
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.Path)
	}
	if want := []string{"links.x.types.purchase.mti", "links.x.reversal.mti", "links.x.captures.mti"}; !slices.Equal(paths, want) {
		t.Fatalf("faults %v", paths)
	}
}

// TestLateAcknowledgementOfACaptureClosesIt: by its own STAN, however the profile answers it.
func TestLateAcknowledgementOfACaptureClosesIt(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: []string{"0220"}}, Then: sim.Action{Delay: configs.Duration(lateDelay)}}),
		Link: func(c *gateway.LinkConfig) {
			patient(c)
			c.Silence.AnswerWithin, c.Silence.FirstGap, c.Silence.MaxGap = configs.Duration(100*time.Millisecond), configs.Duration(time.Hour), configs.Duration(time.Hour)
		}})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	answer, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "capture-1", Authorization: v.ID,
		Request: gateway.CaptureRequest{ClientReference: "capture-1"}})
	if err != nil {
		t.Fatal(err)
	}
	id := gatewaytest.DecodeReversal(t, answer).ID
	s.Eventually(t, "acknowledged", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE id = $1 AND state = 'acknowledged' AND attempts = 1 AND response_code = '00'`, id) == 1
	})
	if n := journaled(t, s, v.ID, "0230", "response"); n != 1 {
		t.Fatalf("%d acknowledgements kept", n)
	}
	s.CheckBooks(t)
}
