package gateway_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// What a profile cannot carry fails alone, with every field named and nothing recorded; the line stays up for the others.
func TestS67_UnpackableRequestFailsAlone(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	before := effects(t, s)
	for name, test := range map[string]struct {
		changes map[string]any
		fields  []string
	}{
		"text too long":      {map[string]any{"elements": map[string]any{"47": strings.Repeat("x", 1000)}}, []string{"elements.47"}},
		"fixed length":       {map[string]any{"elements": map[string]any{"53": "123"}}, []string{"elements.53"}},
		"not digits":         {map[string]any{"elements": map[string]any{"53": strings.Repeat("x", 16)}}, []string{"elements.53"}},
		"not hexadecimal":    {map[string]any{"elements": map[string]any{"96": "zz"}}, []string{"elements.96"}},
		"not ASCII":          {map[string]any{"elements": map[string]any{"48": "\u00fc"}}, []string{"elements.48"}},
		"two at once":        {map[string]any{"elements": map[string]any{"53": "1", "47": strings.Repeat("x", 1000)}}, []string{"elements.47", "elements.53"}},
		"unknown in dialect": {map[string]any{"elements": map[string]any{"66": "xy"}}, []string{"elements.66"}},
	} {
		good := make(chan error, 4)
		for range cap(good) { // at the same time, on the same line
			body := gatewaytest.Purchase("20.00", nil)
			go func() { _, err := ask(t.Context(), s, uuid.NewString(), nil, body); good <- err }()
		}
		body := gatewaytest.Purchase("20.00", test.changes)
		_, err := s.Authorize(t, "key-"+name, body)
		problem := mustRefuse(t, err, gateway.CodeValidationFailed, 422)
		var fields []string
		for _, f := range problem.Faults {
			fields = append(fields, f.Field)
		}
		if !slices.Equal(fields, test.fields) || problem.Sent() != gateway.SentNo {
			t.Errorf("%s: fields %q, sent %s", name, fields, problem.Sent())
		}
		for range cap(good) {
			if err := <-good; err != nil {
				t.Errorf("beside %s: %v", name, err)
			}
		}
		if n := s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE idempotency_key = $1`, "key-"+name); n != 0 {
			t.Errorf("%s left a claim", name)
		}
		// The key is not burnt: put right, the same key and reference go through.
		if v := s.MustAuthorize(t, "key-"+name, changed(t, body, map[string]any{"elements": map[string]any{}})); v.State != "approved" {
			t.Errorf("%s put right is %s", name, v.State)
		}
	}
	if s.Scheme.Connections() != 1 || s.Scheme.Counts().Malformed != 0 {
		t.Fatal("the line was disturbed")
	}
	connections := 0
	for _, r := range s.Scheme.Journal() {
		if r.Note == "connected" {
			connections++
		}
	}
	if connections != 1 {
		t.Fatalf("%d connections", connections)
	}
	if effects(t, s) == before {
		t.Fatal("the others did not proceed")
	}
	s.CheckBooks(t)
}

func TestExhaustedReferencesAreRefusedWithoutATrace(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", nil)
	if _, err := s.DB.Pool.Exec(t.Context(), `INSERT INTO link_sequence (link, next_value, period, period_first) VALUES ($1, 950000, now() + interval '1 hour', 1)`, gatewaytest.LinkName); err != nil {
		t.Fatal(err)
	}
	before := effects(t, s)
	_, err := s.Authorize(t, "key-1", body)
	if problem := mustRefuse(t, err, gateway.CodeReferenceExhausted, 503); problem.Sent() != gateway.SentNo || problem.Retry() != gateway.RetryAfter || problem.RetryAfterSeconds == 0 {
		t.Fatalf("refused with %+v", problem)
	}
	if after := effects(t, s); after != before {
		t.Fatalf("left something: %s, before %s", after, before)
	}
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE link_sequence SET period_first = next_value`); err != nil {
		t.Fatal(err)
	}
	if v := s.MustAuthorize(t, "key-1", body); v.State != "approved" {
		t.Fatalf("then %s", v.State)
	}
}

// The scheme's answer must come back under the same DE 7, or it is none of ours.
func TestS40_DateAndTimeOfTransmissionBelongToTheKey(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations, Amount: "20.00"},
		Then: sim.Action{Set: map[iso8583.Element]string{iso8583.TransmissionDateTime: "0101000000"}}})})
	if v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("20.00", nil)); v.State != "timed_out" || v.Reason != "timeout" {
		t.Fatalf("an answer of another day decided: %+v", v)
	}
	if v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("20.01", nil)); v.State != "approved" {
		t.Fatalf("next %+v", v)
	}
}

func TestMoreThanMayBeInFlightIsRefused(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: slow(300 * time.Millisecond), Gateway: func(c *gateway.Config) { c.MaxInFlight = 3 }})
	var sending sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		sending.Go(func() {
			_, errs[i] = ask(t.Context(), s, fmt.Sprintf("key-%d", i), nil, gatewaytest.Purchase("20.00", nil))
		})
	}
	sending.Wait()
	taken := 0
	for _, err := range errs {
		if err == nil {
			taken++
			continue
		}
		if problem := mustRefuse(t, err, gateway.CodeOverloaded, 503); problem.Sent() != gateway.SentNo || problem.Retry() != gateway.RetryAfter {
			t.Fatalf("refused with %+v", problem)
		}
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); taken < 3 || n != taken || s.Count(t, `SELECT count(*) FROM idempotency_claim`) != taken {
		t.Fatalf("%d taken, %d sent", taken, n)
	}
}

// TestTypeThatTheLinkDoesNotTakeIsRefused: the profile lists what its scheme takes, and nothing is recorded of anything else.
func TestTypeThatTheLinkDoesNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) {
		l.Types = map[gateway.AuthorizationType]gateway.TypeConfig{gateway.Purchase: l.Types[gateway.Purchase]}
	}})
	_, err := s.Authorize(t, "key-1", gatewaytest.Purchase("12.00", map[string]any{"type": "cash"}))
	if e := code(t, err); e.Code != gateway.CodeValidationFailed || e.Sent() != gateway.SentNo || len(e.Faults) != 1 || e.Faults[0].Field != "type" {
		t.Fatalf("refused with %+v", e)
	}
	if n := s.Count(t, `SELECT count(*) FROM idempotency_claim`); n != 0 {
		t.Errorf("%d claims", n)
	}
	if v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.00", nil)); v.State != "approved" {
		t.Errorf("the key is used up: %s", v.State)
	}
}

// TestOwnCardNumberInGroupsIsRefusedAsAKey: keys are kept in clear.
func TestOwnCardNumberInGroupsIsRefusedAsAKey(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for _, key := range []string{"4111 1111 1111 1111", "4111-1111-1111-1111", "x4111111111111111"} {
		if _, err := s.Authorize(t, key, gatewaytest.Purchase("12.00", nil)); code(t, err).Code != gateway.CodeKeyMalformed {
			t.Errorf("%v", err)
		}
	}
}
