package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/reversal"
)

// DutyView is what a caller sees of a capture or a reversal. Amounts are decimal text in Currency.
type DutyView struct {
	ID              uuid.UUID       `json:"id"`
	AuthorizationID uuid.UUID       `json:"authorization_id"`
	Kind            reversal.Kind   `json:"kind"`
	Number          int16           `json:"number"`                     // among the authorisation's duties, from 1; 0 is the reversal of the whole
	ClientReference string          `json:"client_reference,omitempty"` // of a capture
	Amount          string          `json:"amount,omitempty"`           // captured or taken back; none for the reversal of the whole
	StandingAmount  string          `json:"standing_amount,omitempty"`  // of a partial reversal: what it leaves of the approved amount
	Currency        string          `json:"currency"`
	Final           bool            `json:"final"`            // of a capture: no other one follows
	Undoes          *uuid.UUID      `json:"undoes,omitempty"` // of a reversal: the capture it undoes
	Reason          reversal.Reason `json:"reason"`
	STAN            string          `json:"stan,omitempty"` // where it is not the original's, from the first attempt on
	State           reversal.State  `json:"state"`
	ClosedAs        string          `json:"closed_as,omitempty"` // of an acknowledged one: acknowledged, nothing_to_undo or withdrawn
	Attempts        int32           `json:"attempts"`
	NextAt          *time.Time      `json:"next_at"` // nil unless it is owed
	ResponseCode    string          `json:"response_code,omitempty"`
	NeedsAttention  bool            `json:"needs_attention,omitempty"`
	CreatedAt       time.Time       `json:"created_at"`
	UpdatedAt       time.Time       `json:"updated_at"`

	amountMinor, standingMinor *int64
}

// name writes the amounts out in the authorisation's currency.
func (d *DutyView) name(a *Authorization) {
	d.Currency = a.Currency
	if d.amountMinor != nil {
		d.Amount = a.text(*d.amountMinor)
	}
	if d.standingMinor != nil {
		d.StandingAmount = a.text(*d.standingMinor)
	}
}

// whole is the reversal of the whole as its authorisation shows it.
func (d DutyView) whole() *ReversalView {
	return &ReversalView{ID: d.ID, State: string(d.State), ClosedAs: d.ClosedAs, Attempts: d.Attempts, NextAt: d.NextAt, Reason: string(d.Reason),
		ResponseCode: d.ResponseCode, NeedsAttention: d.NeedsAttention}
}

// authorizationSummary is how an authorisation stands after a capture or reversal of it was recorded.
type authorizationSummary struct {
	State           State  `json:"state"`
	StateVersion    int32  `json:"state_version"`
	CapturedAmount  string `json:"captured_amount"`
	ReversedAmount  string `json:"reversed_amount"`
	RemainingAmount string `json:"remaining_amount"`
}

// json is the body that answers the request for this duty, with its authorisation as it then stood.
func (d DutyView) json(a *Authorization) []byte {
	body, err := json.Marshal(struct {
		DutyView
		Authorization authorizationSummary `json:"authorization"`
	}{d, authorizationSummary{State: a.State, StateVersion: a.StateVersion, CapturedAmount: a.text(a.CapturedMinor),
		ReversedAmount: a.text(a.ReversedMinor), RemainingAmount: a.text(a.remaining())}})
	if err != nil { // plain fields only
		panic(fmt.Sprintf("marshal duty: %v", err))
	}
	return body
}

// readNumbered fills in what an authorisation has had besides the reversal of the whole.
func (g *Gateway) readNumbered(ctx context.Context, a *Authorization) error {
	if a.Duties == 0 {
		return nil
	}
	duties, err := selectDuties(ctx, g.db, a)
	if err != nil {
		return err
	}
	a.NumberedDuties = slices.DeleteFunc(duties, func(d DutyView) bool { return d.Number == 0 })
	return nil
}

// Duties lists the captures and reversals of one of the tenant's authorisations, in the order of their numbers: the reversal of the
// whole, number 0, first.
func (g *Gateway) Duties(ctx context.Context, tenant string, authorization uuid.UUID) ([]DutyView, error) {
	a, err := selectAuthorization(ctx, g.db, tenant, authorization)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	if a == nil {
		return nil, &Error{Code: CodeNotFound}
	}
	duties, err := selectDuties(ctx, g.db, a)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return duties, nil
}
