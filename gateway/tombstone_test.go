package gateway_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/iso8583"
)

// TestReversalOfAnUnknownReferenceRefusesTheOriginal: whatever key it comes under, nothing is recorded, held or sent.
func TestReversalOfAnUnknownReferenceRefusesTheOriginal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	reference := map[string]any{"client_reference": "ref-early"}
	first, err := s.Reverse("undo-1", uuid.Nil, reference)
	if err != nil {
		t.Fatal(err)
	}
	r := gatewaytest.DecodeReversal(t, first)
	if r.State != "acknowledged" || r.ClosedAs != "withdrawn" || r.ClientReference != "ref-early" || r.AuthorizationID != uuid.Nil || r.ID == uuid.Nil {
		t.Fatalf("answer %s", first.Body)
	}
	for _, key := range []string{"key-1", "key-1", "undo-1"} {
		_, err := s.Authorize(t, key, gatewaytest.Purchase("12.34", reference))
		if e := code(t, err); e.Code != gateway.CodeReversedBefore || e.Status() != 409 || e.Sent() != gateway.SentNo || e.Retry() != gateway.RetryNever {
			t.Fatalf("the original under %s: %v", key, err)
		}
	}
	again, err := s.Reverse("undo-1", uuid.Nil, reference)
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) {
		t.Fatalf("repeat got %s, %v", again.Body, err)
	}
	if joined := s.MustReverse(t, "undo-2", uuid.Nil, reference); joined.ID != r.ID || joined.ClosedAs != "withdrawn" {
		t.Fatalf("joined %+v", joined)
	}
	if _, err := s.Reverse("undo-3", uuid.Nil, map[string]any{"client_reference": "ref-other", "amount": "1.00"}); code(t, err).Code != gateway.CodeNotFound {
		t.Fatalf("a part of what is unknown: %v", err)
	}
	if n := s.Count(t, `SELECT (SELECT count(*) FROM card_authorization) + (SELECT count(*) FROM ledger_posting) + (SELECT count(*) FROM duty)`); n != 0 {
		t.Fatalf("%d rows", n)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest) + s.Sent(iso8583.MTIReversalAdvice); n != 0 {
		t.Fatalf("%d messages", n)
	}
	if v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.34", nil)); v.State != "approved" {
		t.Fatalf("another reference: %+v", v)
	}
}

// TestReversalAndOriginalArriveAtOnce: in either order, by two daemons, they end in one of two ways, never in both.
func TestReversalAndOriginalArriveAtOnce(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = "daemon-b" }})
	stands := []*gatewaytest.Stand{s, other}
	const pairs, reversers = 20, 3
	buried, undone := 0, 0
	for i := range pairs {
		reference := "ref-" + uuid.NewString()
		var racing sync.WaitGroup
		start := make(chan struct{})
		var authorized gateway.Answer
		var refusedAs error
		racing.Go(func() {
			<-start
			authorized, refusedAs = stands[i%2].Authorize(t, "key-"+reference, gatewaytest.Purchase("12.34", map[string]any{"client_reference": reference}))
		})
		answers, errs := make([]gateway.Answer, reversers), make([]error, reversers)
		for n := range reversers {
			racing.Go(func() {
				<-start
				answers[n], errs[n] = stands[n%2].Reverse(uuid.NewString(), uuid.Nil, map[string]any{"client_reference": reference})
			})
		}
		close(start)
		racing.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		ids := map[uuid.UUID]bool{}
		for _, answer := range answers {
			ids[gatewaytest.DecodeReversal(t, answer).ID] = true
		}
		if len(ids) != 1 {
			t.Fatalf("%d reversals of one reference", len(ids))
		}
		tombs := s.Count(t, `SELECT count(*) FROM tombstone WHERE client_reference = $1`, reference)
		rows := s.Count(t, `SELECT count(*) FROM card_authorization WHERE client_reference = $1`, reference)
		if tombs+rows != 1 {
			t.Fatalf("%d tombstones and %d authorisations of one reference", tombs, rows)
		}
		if tombs == 1 {
			buried++
			if code(t, refusedAs).Code != gateway.CodeReversedBefore {
				t.Fatalf("the original heard %v", refusedAs)
			}
			continue
		}
		undone++
		if refusedAs != nil {
			t.Fatal(refusedAs)
		}
		v := gatewaytest.Decode(t, authorized.Body)
		s.AwaitState(t, v.ID, "reversed")
		if sent := checkReversals(t, s, v); len(sent) != 1 || wholes(t, s, v.ID) != 1 {
			t.Fatalf("%d messages, %d duties", len(sent), wholes(t, s, v.ID))
		}
	}
	t.Logf("%d refused before they came, %d recorded and reversed", buried, undone)
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != undone {
		t.Errorf("%d requests left, want %d", n, undone)
	}
	s.CheckBooks(t)
}
