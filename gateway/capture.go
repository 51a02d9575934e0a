package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
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

// CaptureRequest is the body of POST /v1/authorizations/{id}/captures. The amount is decimal text in the authorisation's currency.
type CaptureRequest struct {
	ClientReference string `json:"client_reference"`
	Amount          string `json:"amount,omitempty"` // what remains, when left out
	Final           *bool  `json:"final,omitempty"`  // when left out: whether nothing remains afterwards
}

// ParseCaptureRequest decodes and validates the body; every fault is reported at once.
func ParseCaptureRequest(body []byte) (CaptureRequest, error) {
	var req CaptureRequest
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
	check("client_reference", reference.MatchString(req.ClientReference), "required: 1 to 64 printable characters without spaces")
	check("amount", req.Amount == "" || amountText.MatchString(req.Amount), "decimal text, such as \"10.50\" (DE 4); leave it out for what remains")
	check("amount", req.Amount == "" || strings.Trim(req.Amount, "0.") != "" || !amountText.MatchString(req.Amount), "must be above zero")
	if len(faults) > maxFaults {
		faults = faults[:maxFaults]
	}
	if len(faults) > 0 {
		return req, &Error{Code: CodeValidationFailed, Detail: fmt.Sprintf("%d faults", len(faults)), Faults: faults}
	}
	return req, nil
}

// CaptureCall is one POST /v1/authorizations/{id}/captures as the HTTP side hands it over.
type CaptureCall struct {
	Tenant         string
	IdempotencyKey string
	Authorization  uuid.UUID
	Request        CaptureRequest // from ParseCaptureRequest
}

// Capture completes an approved authorisation, wholly or in part: claim, money, the completion that is owed to the scheme (0220) and
// the answer commit in one transaction. The money moves with the commit, since a completion cannot be declined; the message is sent
// and repeated afterwards and is never reversed on silence. A call that repeats an earlier one gets that one's answer.
func (g *Gateway) Capture(ctx context.Context, call CaptureCall) (Answer, error) {
	a, err := g.subject(ctx, call.Tenant, call.Authorization, call.IdempotencyKey, call.Request.ClientReference)
	if err != nil {
		return Answer{}, err
	}
	amountMinor, err := a.captureAmount(&call.Request)
	if err != nil {
		return Answer{}, err
	}
	op := operation{tenant: call.Tenant, endpoint: endpointCaptures, idempotencyKey: call.IdempotencyKey, reference: call.Request.ClientReference,
		digest: g.operationDigest(call.Tenant, endpointCaptures, call.Authorization, &call.Request)}
	var view DutyView
	answer, err := g.operate(ctx, op, func(ctx context.Context, tx pgx.Tx, now time.Time) (answer Answer, err error) {
		a, err := selectForUpdate(ctx, tx, call.Tenant, call.Authorization)
		if err != nil {
			return Answer{}, err
		}
		if view, err = g.capture(ctx, tx, a, call.Request, amountMinor, a.notBefore(now)); err != nil {
			return Answer{}, err
		}
		return Answer{Status: http.StatusCreated, Body: view.json(a), Resource: resourceOf(a.ID, endpointCaptures, view.ID)}, nil
	})
	if err == nil && !answer.Replayed {
		g.wake(a.Link)
		g.log.Info("capture recorded", zap.Stringer("authorization_id", a.ID), zap.Stringer("duty_id", view.ID), zap.String("link", a.Link),
			zap.Int16("number", view.Number), zap.Bool("final", view.Final))
	}
	return answer, err
}

// subject reads the authorisation that a request is about, and holds what the request would store in clear against that card's number:
// before anything is written, since a claim that is rolled back leaves its bytes on the disk.
func (g *Gateway) subject(ctx context.Context, tenant string, id uuid.UUID, key, clientReference string) (*Authorization, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	a, err := selectAuthorization(ctx, g.db, tenant, id)
	switch {
	case err != nil:
		return nil, &Error{Code: CodeDatabaseUnavailable, RetryAfterSeconds: 1, cause: err}
	case a == nil:
		return nil, &Error{Code: CodeNotFound}
	}
	pan, err := g.vault.Open(a.ID, a.PANSealed, a.PANKeyID)
	switch {
	case err != nil: // neither could its message be built
		return nil, &Error{Code: CodeInternal, Resource: a.Path(), cause: err}
	case strings.Contains(key, pan.Reveal()):
		return nil, Errorf(CodeKeyMalformed, nil, "a key must not hold a card number")
	case strings.Contains(clientReference, pan.Reveal()):
		return nil, &Error{Code: CodeValidationFailed, Faults: []FieldFault{{"client_reference", ruleNoPAN}}}
	}
	return a, nil
}

// captureAmount is the request's amount in minor units, 0 for what remains; in the request it then stands with all its decimals, so
// that two ways to write it are one content.
func (a *Authorization) captureAmount(req *CaptureRequest) (int64, error) {
	if req.Amount == "" {
		return 0, nil
	}
	currency, _ := ledger.CurrencyByAlpha(a.Currency)
	money, err := ledger.ParseMoney(req.Amount, currency)
	if err != nil {
		rule := fmt.Sprintf("decimal text with at most %d decimals and 12 digits, such as \"10.50\" (DE 4)", currency.Exponent)
		return 0, &Error{Code: CodeValidationFailed, Faults: []FieldFault{{"amount", rule}}}
	}
	req.Amount = money.Text()
	return money.Minor, nil
}

// operationDigest is keyed over the decoded request about one authorisation: what two bodies mean decides whether they are the same.
func (g *Gateway) operationDigest(tenant, endpoint string, authorization uuid.UUID, request any) []byte {
	body, err := json.Marshal([]any{digestVersion, tenant, endpoint, authorization, request})
	if err != nil { // plain fields only
		panic(fmt.Sprintf("marshal request for its digest: %v", err))
	}
	mac := hmac.New(sha256.New, g.vault.digestKey)
	mac.Write(body)
	return append([]byte{digestVersion}, mac.Sum(nil)...)
}

// capture claims the amount, owes the completion and moves the money, all in tx. a was read by selectForUpdate; afterwards it stands as
// the row. amountMinor 0 is what remains.
func (g *Gateway) capture(ctx context.Context, tx pgx.Tx, a *Authorization, req CaptureRequest, amountMinor int64, now time.Time) (DutyView, error) {
	l, err := g.linkOf(a)
	if err != nil {
		return DutyView{}, err
	}
	if err := a.notHolding(); err != nil {
		return DutyView{}, err
	}
	remaining := a.remaining()
	if amountMinor == 0 {
		amountMinor = remaining
	}
	if amountMinor > remaining || remaining == 0 {
		return DutyView{}, a.exceedsRemaining()
	}
	duty, err := a.nextDuty(reversal.Capture, reversal.Completion, amountMinor, now)
	if err != nil {
		return DutyView{}, err
	}
	duty.Final = amountMinor == remaining
	if req.Final != nil {
		duty.Final = *req.Final
	}
	to := a.State
	if duty.Final || amountMinor == remaining {
		if to, err = next(a.State, EventCaptured); err != nil {
			return DutyView{}, err
		}
	}
	view, err := a.claimAmount(ctx, tx, amountClaim{duty: duty, reference: req.ClientReference, capturedMinor: amountMinor, to: to,
		event: eventCaptureRecorded}, now)
	if err != nil {
		return DutyView{}, err
	}
	return view, g.post(ctx, tx, a, l.capturePostings(a, duty, remaining-amountMinor, now), now)
}

// capturePostings are a capture's release and debit, and the release of the rest when the authorisation is captured with it.
func (l *cardLink) capturePostings(a *Authorization, d reversal.Duty, restMinor int64, now time.Time) []ledger.Posting {
	currency, _ := ledger.CurrencyByAlpha(a.Currency)
	base := ledger.Posting{Intent: a.ID, Transaction: transactionOwn, ValueDate: now, SourceRef: a.RRN, Tenant: a.Tenant, ClientReference: a.ClientReference}
	if day := l.control.date(); !day.IsZero() {
		base.ValueDate = day
	}
	release := func(number int16, minor int64) ledger.Posting {
		p := base
		p.Step, p.Number, p.Layer, p.Money = ledger.Release, number, ledger.Pending, ledger.Money{Minor: minor, Currency: currency}
		p.DebitAccount, p.CreditAccount = a.SettlementAccount, a.CustomerAccount
		return p
	}
	debit := base
	debit.Step, debit.Number, debit.Layer, debit.Money = ledger.Debit, d.Number, ledger.Posted, ledger.Money{Minor: d.AmountMinor, Currency: currency}
	debit.DebitAccount, debit.CreditAccount = a.CustomerAccount, a.SettlementAccount
	postings := []ledger.Posting{release(releaseOfDuty+d.Number, d.AmountMinor), debit}
	if a.State == Captured && restMinor > 0 {
		postings = append(postings, release(releaseOfRest, restMinor))
	}
	return postings
}

// post moves money that must move now: what the ledger has already is a fault upstream, and fails the transaction.
func (g *Gateway) post(ctx context.Context, tx pgx.Tx, a *Authorization, postings []ledger.Posting, now time.Time) error {
	hits, err := ledger.Post(ctx, tx, postings, now)
	if err != nil {
		return err
	}
	if hits > 0 {
		g.reportLedgerHit(a.ID)
		return &Error{Code: CodeInternal, Resource: a.Path()}
	}
	return nil
}
