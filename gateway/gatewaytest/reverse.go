package gatewaytest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
)

// ReversalAnswer is what a client hears of a reversal. AuthorizationID is the nil UUID where the original is not known.
type ReversalAnswer struct {
	ID              uuid.UUID  `json:"id"`
	AuthorizationID uuid.UUID  `json:"authorization_id"`
	ClientReference string     `json:"client_reference"`
	Number          int        `json:"number"`
	Amount          string     `json:"amount"`
	Reason          string     `json:"reason"`
	State           string     `json:"state"`
	ClosedAs        string     `json:"closed_as"`
	Attempts        int        `json:"attempts"`
	NextAt          *time.Time `json:"next_at"`
}

// Reverse sends a reversal under a key: of an authorisation, or with the nil UUID of the one that body names by its client_reference.
func (s *Stand) Reverse(key string, authorization uuid.UUID, body map[string]any) (gateway.Answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return gateway.Answer{}, err
	}
	if body == nil {
		text = []byte("{}")
	}
	req, err := gateway.ParseReversalRequest(text, authorization == uuid.Nil)
	if err != nil {
		return gateway.Answer{}, err
	}
	return s.Gateway.Reverse(context.Background(), gateway.ReverseCall{Tenant: Tenant, IdempotencyKey: key, Authorization: authorization, Request: req})
}

// MustReverse is Reverse for a request that must be taken.
func (s *Stand) MustReverse(t testing.TB, key string, authorization uuid.UUID, body map[string]any) ReversalAnswer {
	t.Helper()
	answer, err := s.Reverse(key, authorization, body)
	if err != nil {
		t.Fatalf("reverse: %v", err)
	}
	return DecodeReversal(t, answer)
}

// DecodeReversal reads the body of a reversal's answer.
func DecodeReversal(t testing.TB, answer gateway.Answer) ReversalAnswer {
	t.Helper()
	var v ReversalAnswer
	if err := json.Unmarshal(answer.Body, &v); err != nil || answer.Status != 201 {
		t.Fatalf("answer %d %s: %v", answer.Status, answer.Body, err)
	}
	return v
}
