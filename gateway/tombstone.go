package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/reversal"
)

// tombstone is a reversal that came before its original. It holds the original's reference, so that the original is refused when it
// comes: of two things that arrive at once, one has the reference and the other hears of it.
type tombstone struct {
	id              uuid.UUID
	clientReference string
	reason          reversal.Reason
	createdAt       time.Time
}

// tombstoneKey begins the idempotency key under which a tombstone claims a reference. No client's key has a control character.
const tombstoneKey = "\ttombstone:"

func isTombstone(claim claimRow) bool { return strings.HasPrefix(claim.idempotencyKey, tombstoneKey) }

// reverseUnknown leaves a tombstone for a reference that nobody has used, or joins the one that stands there. A part of what is not
// known cannot be undone.
func (g *Gateway) reverseUnknown(ctx context.Context, tx pgx.Tx, call ReverseCall, target reversalTarget, now time.Time) (Answer, error) {
	if call.Request.Amount != "" || call.Request.CaptureID != "" {
		return Answer{}, &Error{Code: CodeNotFound}
	}
	if target.tombstone != uuid.Nil {
		t, err := selectTombstone(ctx, tx, call.Tenant, target.tombstone)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Status: http.StatusCreated, Body: t.json()}, nil
	}
	t := tombstone{id: newID(), clientReference: call.Request.ClientReference, reason: call.Request.Reason, createdAt: now}
	won, err := insertClaim(ctx, tx, operation{tenant: call.Tenant, endpoint: endpointAuthorizations, idempotencyKey: tombstoneKey + t.id.String(),
		reference: t.clientReference, digest: g.operationDigest(call.Tenant, endpointAuthorizations, t.id, t.clientReference)}, t.id, now)
	switch {
	case err != nil:
		return Answer{}, err
	case !won:
		return Answer{}, errReferenceTaken
	}
	return Answer{Status: http.StatusCreated, Body: t.json()}, insertTombstone(ctx, tx, call.Tenant, t)
}

// json is the body of a tombstone: a reversal that is over, since nothing was sent and nothing will be.
func (t tombstone) json() []byte {
	body, err := json.Marshal(struct {
		ID              uuid.UUID        `json:"id"`
		Kind            reversal.Kind    `json:"kind"`
		ClientReference string           `json:"client_reference"`
		Reason          reversal.Reason  `json:"reason"`
		State           reversal.State   `json:"state"`
		ClosedAs        reversal.Outcome `json:"closed_as"`
		Attempts        int32            `json:"attempts"`
		NextAt          *time.Time       `json:"next_at"`
		CreatedAt       time.Time        `json:"created_at"`
	}{t.id, reversal.Reversal, t.clientReference, t.reason, reversal.Acknowledged, reversal.AttemptWithdrawn, 0, nil, t.createdAt.UTC()})
	if err != nil { // plain fields only
		panic(fmt.Sprintf("marshal tombstone: %v", err))
	}
	return body
}
