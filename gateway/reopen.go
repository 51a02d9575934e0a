package gateway

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// exceptionApprovedAfterReversal is an approval that came after its reversal had been answered with "nothing to undo", or withdrawn.
const exceptionApprovedAfterReversal = "approved_after_reversal"

// bookLateApproval books an approval that came after the authorisation had been given up with nothing held at the scheme, or so it
// seemed: against suspense, since nothing is held for it here any more, and never refused. In the same transaction it is undone, where
// nobody was told of it:
//
//	reversed, its reversal closed as nothing to undo or withdrawn   the reversal is owed again
//	not sent, so it was said                                        a reversal is owed
//	declined, by the scheme itself                                  a person decides between two answers; a reversal can be asked for
//
// A further copy of the approval is a duplicate. It returns an error that may pass, or a commit.StatementError that does not.
func (g *Gateway) bookLateApproval(ctx context.Context, l *cardLink, step *noteStep, original *Authorization, m *iso8583.Message) error {
	currency, _ := ledger.CurrencyByAlpha(original.Currency)
	suspense, err := g.accounts.ID(ctx, original.Tenant, original.Link, ledger.Suspense, currency)
	if err != nil {
		return err
	}
	posting := unheldPosting(original, suspense, ledger.Money{Minor: l.lateAmount(original, m), Currency: currency}, g.now())
	var undone bool
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		undone, err = g.bookUnheld(ctx, tx, step, original, posting)
		return err
	})
	if err != nil {
		return permanent(err)
	}
	if undone {
		g.wake(original.Link)
	}
	return nil
}

// lateAmount is what a late approval moved: what was asked for, or the part that was approved.
func (l *cardLink) lateAmount(a *Authorization, m *iso8583.Message) int64 {
	if l.spec.AuthorizationAction(m.Get(iso8583.ResponseCode)) == iso8583.PartiallyApproved {
		if part, err := strconv.ParseInt(m.Get(iso8583.AmountTransaction), 10, 64); err == nil && part > 0 && part < a.AmountMinor {
			return part
		}
	}
	return a.AmountMinor
}

// unheldPosting moves an approved amount between suspense and the scheme: for a refund the other way round.
func unheldPosting(a *Authorization, suspense int32, money ledger.Money, now time.Time) ledger.Posting {
	p := ledger.Posting{Intent: a.ID, Transaction: transactionUnheld, Step: ledger.Debit, Number: 1, Layer: ledger.Posted,
		DebitAccount: suspense, CreditAccount: a.SettlementAccount, Money: money, ValueDate: now, SourceRef: a.RRN, Tenant: a.Tenant,
		ClientReference: a.ClientReference}
	if !a.SettlementDate.IsZero() {
		p.ValueDate = a.SettlementDate
	}
	if a.effect() == credits {
		p.Step, p.DebitAccount, p.CreditAccount = ledger.Return, a.SettlementAccount, suspense
	}
	return p
}

// bookUnheld is the transaction of bookLateApproval; undone tells whether a reversal is owed for it. The reversal is locked before its
// authorisation, as by whoever resolves it.
func (g *Gateway) bookUnheld(ctx context.Context, tx pgx.Tx, step *noteStep, original *Authorization, posting ledger.Posting) (undone bool, err error) {
	whole, owed, err := selectWholeForUpdate(ctx, tx, original.ID)
	if err != nil {
		return false, err
	}
	a, err := selectForUpdate(ctx, tx, original.Tenant, original.ID)
	if err != nil {
		return false, err
	}
	now := a.notBefore(g.now())
	booked, err := selectUnheld(ctx, tx, a.ID)
	if err != nil {
		return false, err
	}
	note := *step
	if booked {
		note.message.kind = messageDuplicate
	}
	fresh, err := insertLateMessage(ctx, tx, &note)
	undoes := a.State == NotSent || owed
	moot := owed && (whole.closedAs == reversal.AttemptAcknowledged || a.State == TimedOut || a.State == Pending) // the scheme has undone it, or will
	if err != nil || !fresh || booked || moot {
		return false, err
	}
	kind := exceptionContradiction
	switch {
	case owed:
		to := reversal.Owed
		if whole.state == reversal.Acknowledged {
			if to, err = reversal.Next(whole.state, reversal.EventReopened); err != nil {
				return false, err
			}
		}
		kind = exceptionApprovedAfterReversal
		err = updateReopened(ctx, tx, a.ID, whole.state, to, now)
	case undoes:
		err = insertWhole(ctx, tx, a, wholeOwing{reason: reversal.LateApproval, due: dueAtOnce(), reopened: 1}, now)
	}
	if err != nil {
		return false, err
	}
	if err := insertException(ctx, tx, a, kind, lateApprovalDetail(a, undoes), now); err != nil {
		return false, err
	}
	hits, err := ledger.Post(ctx, tx, []ledger.Posting{posting}, now)
	if hits > 0 {
		g.reportLedgerHit(a.ID)
	}
	return undoes, err
}

// outdateAttempts keeps a late approval of what timed out, whose reversal is under way. "Nothing to undo", said of an attempt that was made
// before the approval came, is older than it and no longer closes the reversal: another attempt asks again. done is false when the
// reversal was closed with nothing undone before: then the approval reopens it.
func (g *Gateway) outdateAttempts(ctx context.Context, step *noteStep, original *Authorization) (done bool, err error) {
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		whole, owed, err := selectWholeForUpdate(ctx, tx, original.ID)
		if err != nil || owed && whole.state == reversal.Acknowledged && whole.closedAs != reversal.AttemptAcknowledged {
			return err
		}
		fresh, err := insertLateMessage(ctx, tx, step)
		if err == nil && fresh && owed && whole.state != reversal.Acknowledged && whole.attempts > 0 {
			err = updateOutdated(ctx, tx, original.ID)
		}
		done = err == nil
		return err
	})
	if err != nil {
		return false, permanent(err)
	}
	return done, nil
}

// lateApprovalDetail is what a person reads.
func lateApprovalDetail(a *Authorization, undoes bool) string {
	if undoes {
		return "the scheme approved it while it was " + string(a.State) + "; the amount stands in suspense until the reversal, which is owed, is acknowledged"
	}
	return "the scheme approved it while it was " + string(a.State) + "; the amount stands in suspense, and nothing undoes it unless a reversal is asked for"
}

// withdrawByLateDecline closes a reversal of which nothing was sent by the decline of its original that came late, where the profile
// says so; the hold is let go. done is false when there was no such reversal any more: then the decline is news like any other.
func (g *Gateway) withdrawByLateDecline(ctx context.Context, step *noteStep, original *Authorization, code string) (done bool, err error) {
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		whole, owed, err := selectWholeForUpdate(ctx, tx, original.ID)
		if err != nil || !owed || whole.state != reversal.Owed || whole.attempts > 0 || whole.claimed {
			return err
		}
		a, err := selectForUpdate(ctx, tx, original.Tenant, original.ID)
		if err != nil || a.State != TimedOut {
			return err
		}
		to, err := next(a.State, EventReversalAcknowledged)
		if err != nil {
			return err
		}
		if _, err := insertLateMessage(ctx, tx, step); err != nil {
			return err
		}
		hit, err := updateWithdrawn(ctx, tx, a, to, code, a.notBefore(g.now()))
		if hit {
			g.reportLedgerHit(a.ID)
		}
		done = err == nil
		return err
	})
	if err != nil {
		return false, permanent(err)
	}
	if done {
		g.log.Info("reversal withdrawn by a late decline", zap.Stringer("authorization_id", original.ID), zap.String("link", original.Link))
	}
	return done, nil
}

// permanent turns what the database refuses for good into an error that is not tried again.
func permanent(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || isConflict(err) {
		return err
	}
	switch refused.Code[:2] {
	case "08", "53", "57": // connection, resources, an operator's shutdown
		return err
	}
	return &commit.StatementError{SQLState: refused.Code, Severity: refused.Severity, Table: refused.TableName, Constraint: refused.ConstraintName}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
