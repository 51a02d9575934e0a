package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// ReversalRequest is the body of POST /v1/authorizations/{id}/reversals and of POST /v1/reversals. Without amount and capture_id it
// undoes the whole authorisation.
type ReversalRequest struct {
	ClientReference string          `json:"client_reference,omitempty"` // of the authorisation, by reference only
	Amount          string          `json:"amount,omitempty"`           // to take back of the hold; the rest stands
	CaptureID       string          `json:"capture_id,omitempty"`       // the capture to undo
	Reason          reversal.Reason `json:"reason,omitempty"`           // customer_cancellation, or answer_undelivered

	capture uuid.UUID
}

// ParseReversalRequest decodes and validates the body; every fault is reported at once. byReference is POST /v1/reversals, whose body
// names the authorisation.
func ParseReversalRequest(body []byte, byReference bool) (ReversalRequest, error) {
	var req ReversalRequest
	if len(body) > MaxBodyBytes {
		return req, Errorf(CodeBodyTooLarge, nil, "at most %d bytes", MaxBodyBytes)
	}
	faults, err := decodeStrict(body, &req)
	if err != nil {
		return req, err
	}
	known := make(map[string]bool, len(faults))
	for _, f := range faults {
		known[f.Field] = true
	}
	check := func(field string, ok bool, rule string) {
		if !ok && !known[field] {
			faults = append(faults, FieldFault{field, rule})
		}
	}
	if byReference {
		check("client_reference", reference.MatchString(req.ClientReference), "required: 1 to 64 printable characters without spaces")
	} else {
		check("client_reference", req.ClientReference == "", "the path names the authorization already")
	}
	check("amount", req.Amount == "" || amountText.MatchString(req.Amount), "decimal text, such as \"10.50\" (DE 4); leave it out for the whole")
	check("amount", req.Amount == "" || !amountText.MatchString(req.Amount) || plainAmount(req.Amount) != "0", "must be above zero")
	if req.CaptureID != "" {
		req.capture, err = uuid.Parse(req.CaptureID)
		check("capture_id", err == nil && len(req.CaptureID) == uuidLength, "the id of a capture")
		check("capture_id", req.Amount == "", "a capture is undone as a whole; leave amount out")
		req.CaptureID = req.capture.String()
	}
	if req.Reason == "" {
		req.Reason = reversal.Customer
	}
	check("reason", req.Reason == reversal.Customer || req.Reason == reversal.Undelivered, "customer_cancellation or answer_undelivered")
	req.Amount = plainAmount(req.Amount)
	if len(faults) > maxFaults {
		faults = faults[:maxFaults]
	}
	if len(faults) > 0 {
		return req, &Error{Code: CodeValidationFailed, Detail: fmt.Sprintf("%d faults", len(faults)), Faults: faults}
	}
	return req, nil
}

// uuidLength is the only form of a UUID that is taken.
const uuidLength = 36

// plainAmount is decimal text without needless zeros, so that two ways to write an amount are one content.
func plainAmount(text string) string {
	if text == "" {
		return ""
	}
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	text = strings.TrimLeft(text, "0")
	if text == "" || text[0] == '.' {
		text = "0" + text
	}
	return text
}

// ReverseCall is one reversal as the HTTP side hands it over.
type ReverseCall struct {
	Tenant         string
	IdempotencyKey string
	Authorization  uuid.UUID       // the nil UUID: the request names a client_reference
	Request        ReversalRequest // from ParseReversalRequest
}

// reversalTries bounds how often a reference is looked up again that an authorisation took meanwhile.
const reversalTries = 5

// errReferenceTaken ends a transaction that meant to leave a tombstone where there is an authorisation by now.
var errReferenceTaken = &Error{Code: CodeOutcomeUnknown, Detail: "the client_reference is being recorded"}

// Reverse owes what the client asks to be undone, and answers at once: claim, duty and answer commit in one transaction. What exists
// already is joined. It may come before, while and after the authorisation is answered; one that is not known here yet is refused
// when it comes. A call that repeats an earlier one gets that one's answer.
func (g *Gateway) Reverse(ctx context.Context, call ReverseCall) (Answer, error) {
	op := operation{tenant: call.Tenant, endpoint: endpointReversals, idempotencyKey: call.IdempotencyKey, reference: call.IdempotencyKey,
		digest: g.operationDigest(call.Tenant, endpointReversals, call.Authorization, &call.Request)}
	for try := 1; ; try++ {
		target, err := g.reversalTarget(ctx, call)
		if err != nil {
			return Answer{}, err
		}
		var view DutyView
		answer, err := g.operate(ctx, op, func(ctx context.Context, tx pgx.Tx, now time.Time) (answer Answer, err error) {
			if target.authorization == nil {
				return g.reverseUnknown(ctx, tx, call, target, now)
			}
			answer, view, err = g.reverseKnown(ctx, tx, call, target.authorization.ID, now)
			return answer, err
		})
		if errors.Is(err, errReferenceTaken) && try < reversalTries {
			continue
		}
		if a := target.authorization; err == nil && !answer.Replayed && a != nil {
			g.wake(a.Link)
			g.log.Info("reversal asked for", zap.Stringer("authorization_id", a.ID), zap.Stringer("duty_id", view.ID), zap.String("link", a.Link),
				zap.Int16("number", view.Number), zap.String("reason", string(call.Request.Reason)))
		}
		return answer, err
	}
}

// reversalTarget is what a request speaks of: an authorisation, the tombstone of one, or neither.
type reversalTarget struct {
	authorization *Authorization
	tombstone     uuid.UUID
}

func (g *Gateway) reversalTarget(ctx context.Context, call ReverseCall) (target reversalTarget, err error) {
	id := call.Authorization
	if id == uuid.Nil {
		claim, found, err := g.claimOfReference(ctx, call.Tenant, call.Request.ClientReference)
		switch {
		case err != nil:
			return target, &Error{Code: CodeDatabaseUnavailable, RetryAfterSeconds: 1, cause: err}
		case !found:
			return target, nil
		case isTombstone(claim):
			return reversalTarget{tombstone: claim.resourceID}, nil
		}
		id = claim.resourceID
	}
	target.authorization, err = g.subject(ctx, call.Tenant, id, call.IdempotencyKey, "")
	return target, err
}

func (g *Gateway) claimOfReference(ctx context.Context, tenant, clientReference string) (claimRow, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return selectClaim(ctx, g.db, tenant, endpointAuthorizations, "", clientReference)
}

// reverseKnown owes what is asked for of an authorisation that is there, under the lock of its row.
func (g *Gateway) reverseKnown(ctx context.Context, tx pgx.Tx, call ReverseCall, id uuid.UUID, now time.Time) (Answer, DutyView, error) {
	a, err := selectForUpdate(ctx, tx, call.Tenant, id)
	if err != nil {
		return Answer{}, DutyView{}, err
	}
	if _, err := g.linkOf(a); err != nil {
		return Answer{}, DutyView{}, err
	}
	now = a.notBefore(now)
	var view DutyView
	switch req := call.Request; {
	case req.capture != uuid.Nil:
		view, err = a.undoCapture(ctx, tx, req.capture, req.Reason, now)
	case req.Amount != "":
		view, err = g.takeBackText(ctx, tx, a, req, now)
	default:
		view, err = g.reverseWhole(ctx, tx, a, req.Reason, now)
	}
	if err != nil {
		return Answer{}, DutyView{}, err
	}
	return Answer{Status: http.StatusCreated, Body: view.json(a), Resource: resourceOf(a.ID, endpointReversals, view.ID)}, view, nil
}

func (g *Gateway) takeBackText(ctx context.Context, tx pgx.Tx, a *Authorization, req ReversalRequest, now time.Time) (DutyView, error) {
	currency, _ := ledger.CurrencyByAlpha(a.Currency)
	money, err := ledger.ParseMoney(req.Amount, currency)
	if err != nil {
		rule := fmt.Sprintf("decimal text with at most %d decimals and 12 digits, such as \"10.50\" (DE 4)", currency.Exponent)
		return DutyView{}, &Error{Code: CodeValidationFailed, Faults: []FieldFault{{"amount", rule}}}
	}
	return g.takeBack(ctx, tx, a, money.Minor, req.Reason, now)
}

// reverseWhole owes the reversal of the whole, or joins the one that exists.
func (g *Gateway) reverseWhole(ctx context.Context, tx pgx.Tx, a *Authorization, reason reversal.Reason, now time.Time) (DutyView, error) {
	if a.Reversal == nil {
		owing, err := g.owingOf(ctx, tx, a, reason, now)
		if err != nil {
			return DutyView{}, err
		}
		if err := insertWhole(ctx, tx, a, owing, now); err != nil {
			return DutyView{}, err
		}
		if a.State == Pending {
			g.flights.hint(a.ID) // before the commit: the row's lock keeps the decision behind it
		}
	}
	view, err := selectWhole(ctx, tx, a)
	if err == nil && a.Reversal == nil {
		a.Reversal = view.whole() // nothing of the hold remains to be captured, and the answer says so
	}
	return view, err
}

// wholeOwing is a reversal of the whole that is to be owed.
type wholeOwing struct {
	reason   reversal.Reason
	due      time.Time
	reopened int16 // 1 when it undoes an approval that came after another decision
}

// owingOf says when the reversal of the whole is due, or why there is none to owe. While the authorisation runs, the reversal waits for
// its answer or for its deadline; whoever decides it makes the reversal due.
func (g *Gateway) owingOf(ctx context.Context, tx pgx.Tx, a *Authorization, reason reversal.Reason, now time.Time) (wholeOwing, error) {
	l, err := g.linkOf(a)
	if err != nil {
		return wholeOwing{}, err
	}
	owing := wholeOwing{reason: reason, due: dueAtOnce()}
	nothingToUndo := &Error{Code: CodeNothingToUndo, Detail: "the authorization is " + string(a.State), Resource: a.Path()}
	if a.effect() == nothing && !l.config.Types[a.Type].ReverseOnSilence {
		nothingToUndo.Detail = "an authorization of this type moves nothing"
		return owing, nothingToUndo
	}
	switch a.State {
	case Pending:
		owing.due = a.DeadlineAt.Add(sweepGrace)
		return owing, nil
	case Approved:
		if a.effect() != holds || a.CapturedMinor == 0 {
			return owing, nil
		}
		return owing, errCaptured(a)
	case Captured:
		return owing, errCaptured(a)
	}
	// What the scheme approved after it had been given up here was told to nobody: that much can be undone.
	unheld, err := selectUnheld(ctx, tx, a.ID)
	switch {
	case err != nil:
		return owing, err
	case !unheld:
		return owing, nothingToUndo
	}
	owing.reopened = 1
	return owing, nil
}

func errCaptured(a *Authorization) error {
	return &Error{Code: CodeCaptured, Detail: "name the capture_id to undo, or the amount to take back of what is still held", Resource: a.Path()}
}
