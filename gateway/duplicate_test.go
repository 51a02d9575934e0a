package gateway_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

// TestRepeatsAreJournaledWithWhatTheyRepeat: the authorisation, or the capture and not its claim.
func TestRepeatsAreJournaledWithWhatTheyRepeat(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("12.00", nil)
	v := s.MustAuthorize(t, "key-1", body)
	s.MustAuthorize(t, "key-1", body)
	request, err := gateway.ParseCaptureRequest([]byte(`{"client_reference":"ship-1","amount":"5.00"}`))
	if err != nil {
		t.Fatal(err)
	}
	call := gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "key-2", Authorization: v.ID, Request: request}
	first, err := s.Gateway.Capture(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	var capture struct {
		ID uuid.UUID `json:"id"`
	}
	if err := json.Unmarshal(first.Body, &capture); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Gateway.Capture(t.Context(), call); err != nil || !again.Replayed {
		t.Fatalf("repeat: %+v, %v", again, err)
	}
	var list []gateway.Duplicate
	s.Eventually(t, "two rows of the dedup journal", func() bool {
		if list, err = s.Gateway.Duplicates(t.Context(), gatewaytest.Tenant, uuid.Nil, 10); err != nil {
			t.Fatal(err)
		}
		return len(list) == 2
	})
	for _, d := range list {
		want, key := v.ID, "authorizations/key-1"
		if d.Key != key {
			want, key = capture.ID, "captures/key-2"
		}
		if d.Key != key || d.Source != "client" || d.Reason != "replayed" || d.OriginalID == nil || *d.OriginalID != want {
			t.Errorf("journal says %+v, want a repeat of %s", d, want)
		}
	}
}

// TestReversalOfTheWholeLeavesNothingToCapture, and its answer says so at once.
func TestReversalOfTheWholeLeavesNothingToCapture(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.00", nil))
	var body struct {
		Authorization struct {
			Remaining string `json:"remaining_amount"`
		} `json:"authorization"`
	}
	if err := json.Unmarshal(reverseAs(t, s, v.ID, `{}`).Body, &body); err != nil {
		t.Fatal(err)
	}
	if body.Authorization.Remaining != "0.00" {
		t.Errorf("remaining amount %q", body.Authorization.Remaining)
	}
}
