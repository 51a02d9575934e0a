package gateway

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// What history says of an authorisation's version that a recorded duty made.
const (
	eventCaptureRecorded         = "capture_recorded"
	eventPartialReversalRecorded = "partial_reversal_recorded"
	eventCaptureReversalRecorded = "capture_reversal_recorded"
)

// amountClaim is one duty to be owed, with what it claims of its authorisation's approved amount.
type amountClaim struct {
	duty          reversal.Duty
	reference     string // of a capture: the client's own name for it
	capturedMinor int64
	reversedMinor int64
	standingMinor *int64 // of a partial reversal: what it leaves of the approved amount
	undoes        *uuid.UUID
	to            State
	event         string
}

// dutyID derives the id of a capture or of a numbered reversal from its authorisation, so that it is the same however often it is made.
func dutyID(authorization uuid.UUID, kind reversal.Kind, number int16) uuid.UUID {
	return uuid.NewSHA1(authorization, fmt.Appendf(nil, "%s:%d", kind, number))
}

// nextDuty is the next duty of an authorisation whose row is locked; an error when it has had all that it may have.
func (a *Authorization) nextDuty(kind reversal.Kind, reason reversal.Reason, amountMinor int64, now time.Time) (reversal.Duty, error) {
	if a.Duties >= maxDutiesOfOne {
		return reversal.Duty{}, &Error{Code: CodeTooManyDuties, Detail: fmt.Sprintf("at most %d", maxDutiesOfOne), Resource: a.Path()}
	}
	number := a.Duties + 1
	return reversal.Duty{ID: dutyID(a.ID, kind, number), AuthorizationID: a.ID, Tenant: a.Tenant, Link: a.Link, Kind: kind, Number: number,
		AmountMinor: amountMinor, Reason: reason, NextAt: dueAtOnce()}, nil
}

// claimAmount owes a duty and claims its amount, by compare-and-set on the row that the caller has locked; a then stands as the row.
func (a *Authorization) claimAmount(ctx context.Context, tx pgx.Tx, c amountClaim, now time.Time) (DutyView, error) {
	created, err := insertNumberedDuty(ctx, tx, a, c, now)
	if err != nil {
		return DutyView{}, err
	}
	a.CapturedMinor, a.ReversedMinor, a.Duties = a.CapturedMinor+c.capturedMinor, a.ReversedMinor+c.reversedMinor, c.duty.Number
	a.State, a.StateVersion, a.UpdatedAt = c.to, a.StateVersion+1, now
	view := DutyView{ID: c.duty.ID, AuthorizationID: a.ID, Kind: c.duty.Kind, Number: c.duty.Number, ClientReference: c.reference,
		Final: c.duty.Final, Undoes: c.undoes, Reason: c.duty.Reason, State: reversal.Owed, amountMinor: &c.duty.AmountMinor,
		standingMinor: c.standingMinor, CreatedAt: created.UTC(), UpdatedAt: now}
	due := c.duty.NextAt.UTC()
	view.NextAt = &due
	view.name(a)
	return view, nil
}

// dueAtOnce is when a new duty is due: by this process's own clock, and not by a row's last change, which lies ahead of it where another
// daemon's clock does.
func dueAtOnce() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// notBefore is a moment, or that of the row's last change where it is later: the clock was read before the row was locked, or another
// daemon's is ahead. History goes forward all the same.
func (a *Authorization) notBefore(now time.Time) time.Time { return later(now, a.UpdatedAt.UTC()) }

// notHolding says why nothing can be captured or taken back of an authorisation, nil when its hold stands. One that is pending may be
// asked about again once it is decided.
func (a *Authorization) notHolding() error {
	refuse := &Error{Resource: a.Path()}
	switch {
	case a.State == Pending:
		refuse.Code, refuse.RetryAfterSeconds = CodeAuthorizationPending, max(1, int(time.Until(a.DeadlineAt).Seconds()+1))
	case a.State == TimedOut:
		refuse.Code = CodeAuthorizationTimedOut
	case a.State == Declined:
		refuse.Code = CodeAuthorizationDeclined
	case a.State == NotSent:
		refuse.Code = CodeAuthorizationNotSent
	case a.State == Captured:
		refuse.Code = CodeAuthorizationCaptured
	case a.State == Reversed:
		refuse.Code = CodeAuthorizationReversed
	case a.State == Expired:
		refuse.Code = CodeAuthorizationExpired
	case a.effect() != holds:
		refuse.Code = CodeNothingHeld
	case a.Reversal != nil:
		refuse.Code = CodeReversalOwed
	default:
		return nil
	}
	return refuse
}

// exceedsRemaining is the refusal of an amount above what is left; it names what is.
func (a *Authorization) exceedsRemaining() error {
	return &Error{Code: CodeAmountExceedsRemaining, Detail: "remaining: " + a.text(a.remaining()) + " " + a.Currency, Resource: a.Path()}
}

// textAboveZero is text, and empty for nothing.
func (a *Authorization) textAboveZero(minor int64) string {
	if minor <= 0 {
		return ""
	}
	return a.text(minor)
}

// text is an amount in the authorisation's currency as decimal text.
func (a *Authorization) text(minor int64) string {
	currency, ok := ledger.CurrencyByAlpha(a.Currency)
	if !ok { // the row was validated when it was recorded
		panic("authorization with a currency that is not in the table")
	}
	return ledger.Money{Minor: minor, Currency: currency}.Text()
}

// takeBack owes the reversal of a part of an approved hold and claims that part, so that no capture can have it any more. The part is
// released when the scheme acknowledges. a was read by selectForUpdate in tx; afterwards it stands as the row. The caller wakes the
// link's worker after the commit. It refuses with an *Error: the state's own code, partial_reversal_refused,
// amount_exceeds_remaining, too_many_duties.
func (g *Gateway) takeBack(ctx context.Context, tx pgx.Tx, a *Authorization, amountMinor int64, reason reversal.Reason, now time.Time) (DutyView, error) {
	l, err := g.linkOf(a)
	if err != nil {
		return DutyView{}, err
	}
	if err := a.notHolding(); err != nil {
		return DutyView{}, err
	}
	switch {
	case amountMinor <= 0:
		return DutyView{}, &Error{Code: CodeValidationFailed, Faults: []FieldFault{{"amount", "must be above zero"}}}
	case l.config.Reversal.Partial == partialRefuse:
		return DutyView{}, &Error{Code: CodePartialReversalRefused, Resource: a.Path()}
	case amountMinor > a.remaining():
		return DutyView{}, a.exceedsRemaining()
	}
	duty, err := a.nextDuty(reversal.Reversal, reason, amountMinor, now)
	if err != nil {
		return DutyView{}, err
	}
	standing := *a.ApprovedMinor - a.ReversedMinor - amountMinor
	duty.StandingMinor = standing
	return a.claimAmount(ctx, tx, amountClaim{duty: duty, reversedMinor: amountMinor, standingMinor: &standing, to: a.State,
		event: eventPartialReversalRecorded}, now)
}

// undoCapture owes the reversal of one capture, whose debit is mirrored when the scheme acknowledges; one that is owed or done already
// is joined. a was read by selectForUpdate in tx; afterwards it stands as the row. The caller wakes the link's worker after the commit.
func (a *Authorization) undoCapture(ctx context.Context, tx pgx.Tx, captureID uuid.UUID, reason reversal.Reason, now time.Time) (DutyView, error) {
	duties, err := selectDuties(ctx, tx, a)
	if err != nil {
		return DutyView{}, err
	}
	if i := slices.IndexFunc(duties, func(d DutyView) bool { return d.Undoes != nil && *d.Undoes == captureID }); i >= 0 {
		return duties[i], nil
	}
	i := slices.IndexFunc(duties, func(d DutyView) bool { return d.Kind == reversal.Capture && d.ID == captureID })
	if i < 0 {
		return DutyView{}, &Error{Code: CodeNotFound, Detail: "the authorization has no such capture", Resource: a.Path()}
	}
	duty, err := a.nextDuty(reversal.Reversal, reason, *duties[i].amountMinor, now)
	if err != nil {
		return DutyView{}, err
	}
	return a.claimAmount(ctx, tx, amountClaim{duty: duty, undoes: &captureID, to: a.State, event: eventCaptureReversalRecorded}, now)
}

// linkOf is the link that an authorisation went over; what is owed for it goes the same way.
func (g *Gateway) linkOf(a *Authorization) (*cardLink, error) {
	if l := g.links[a.Link]; l != nil {
		return l, nil
	}
	return nil, &Error{Code: CodeUnknownLink, Detail: "the authorization's link is not configured here", Resource: a.Path()}
}
