package gateway_test

import (
	"bytes"
	"testing"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/iso8583"
)

func TestApprovalIsRecordedAnsweredAndReplayed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("12.34", nil)
	first, err := s.Authorize(t, "key-1", body)
	if err != nil {
		t.Fatal(err)
	}
	v := gatewaytest.Decode(t, first.Body)
	if first.Status != 201 || v.State != "approved" || v.Outcome != "succeeded" || v.ResponseCode != "00" || v.ApprovedAmount != "12.34" || v.StateVersion != 2 {
		t.Fatalf("answer %d %s", first.Status, first.Body)
	}
	again, err := s.Authorize(t, "key-1", body)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Replayed || again.Status != first.Status || !bytes.Equal(again.Body, first.Body) {
		t.Fatalf("repeat got %d %s", again.Status, again.Body)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme, want 1", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting`); n != 1 {
		t.Fatalf("%d postings, want the hold alone", n)
	}
}

func TestS01_SilenceIsReversed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	if v.State != "timed_out" || v.Outcome != "unknown" || v.Retry != "never" || v.Reversal == nil || v.Reversal.State != "owed" || v.ResponseCode != "91" {
		t.Fatalf("answer %+v", v)
	}
	s.AwaitState(t, v.ID, "reversed")
	for _, h := range s.Scheme.Holds() {
		if h.HeldMinor != 0 {
			t.Fatalf("scheme still holds %d", h.HeldMinor)
		}
	}
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE step = 2`); n != 1 {
		t.Fatalf("%d releases, want 1", n)
	}
}
