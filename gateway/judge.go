package gateway

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// judge turns what an exchange came to into the one decision that is committed: answered, certainly not sent, or unknown.
func (g *Gateway) judge(f *flight, response []byte, exchangeErr error) (*decideStep, error) {
	now := g.now()
	if exchangeErr != nil {
		if link.NotSent(exchangeErr) {
			step, err := decision(f.authorization, EventWriteNotBegun, now)
			if err != nil {
				return nil, err
			}
			step.authorization.Reason = notSentReason(exchangeErr)
			return step.seal(), nil
		}
		return f.link.abandon(f.authorization, silenceReason(exchangeErr), now, nil)
	}
	message, err := f.link.spec.Decode(response)
	if err != nil {
		unreadable := malformedRow(now, err)
		return f.link.abandon(f.authorization, reversal.Undecodable, now, &unreadable)
	}
	row := g.vault.journal(message, messageResponse, now)
	if contradiction := contradicts(f.authorization, message, f.link.spec.AuthorizationAction(message.Get(iso8583.ResponseCode))); contradiction != "" {
		row.kind, row.note = messageMismatch, contradiction
		return f.link.abandon(f.authorization, reversal.Contradiction, now, &row)
	}
	return f.link.judgeCode(f, message, row, now)
}

// judgeCode acts on DE 39 by the profile's table. A code the table does not know is no decline: what it means is unknown.
func (l *cardLink) judgeCode(f *flight, m *iso8583.Message, row journalRow, now time.Time) (*decideStep, error) {
	a := f.authorization
	switch l.spec.AuthorizationAction(m.Get(iso8583.ResponseCode)) {
	case iso8583.Approved:
		return decided(a, EventApproved, m, &row, a.AmountMinor, now)
	case iso8583.PartiallyApproved:
		approved, err := strconv.ParseInt(m.Get(iso8583.AmountTransaction), 10, 64)
		if err != nil || approved <= 0 || approved > a.AmountMinor {
			row.kind, row.note = messageMismatch, "a partial approval without a usable DE 4"
			return l.abandon(a, reversal.Contradiction, now, &row)
		}
		if !f.partial {
			known := *a
			known.ApprovedMinor, known.ApprovalCode = &approved, strings.TrimSpace(m.Get(iso8583.ApprovalCode))
			return l.abandon(&known, reversal.UnrequestedPartialApproval, now, &row)
		}
		return decided(a, EventApproved, m, &row, approved, now)
	case iso8583.Declined, iso8583.NotSignedOn:
		return decided(a, EventDeclined, m, &row, 0, now)
	}
	return l.abandon(a, reversal.UnlistedCode, now, &row)
}

// decided is a final answer of the scheme. A partial approval releases what was not approved.
func decided(a *Authorization, event Event, m *iso8583.Message, row *journalRow, approved int64, now time.Time) (*decideStep, error) {
	step, err := decision(a, event, now)
	if err != nil {
		return nil, err
	}
	moved := step.authorization
	moved.ResponseCode, moved.ApprovalCode = m.Get(iso8583.ResponseCode), strings.TrimSpace(m.Get(iso8583.ApprovalCode))
	if event == EventApproved {
		moved.ApprovedMinor, moved.AdditionalAmounts = &approved, m.Get(iso8583.AdditionalAmounts)
		switch a.effect() {
		case holds:
			step.release = a.AmountMinor - approved
		case debits:
			step.release, step.debit, moved.CapturedMinor = a.AmountMinor, approved, approved
		case credits:
			step.credit = approved
		}
	}
	step.response = row
	return step.seal(), nil
}

// abandon gives an authorisation up whose outcome is unknown: timed_out and the reversal in one step, before the caller
// hears anything. The hold stays until the reversal is acknowledged. What moved no money, like a balance inquiry, is undone only
// where the profile asks for it.
func (l *cardLink) abandon(a *Authorization, reason reversal.Reason, now time.Time, response *journalRow) (*decideStep, error) {
	step, err := decision(a, EventAbandoned, now)
	if err != nil {
		return nil, err
	}
	step.response = response
	moved := step.authorization
	moved.Reason, moved.ResponseCode = string(reason), l.config.Silence.ResponseCode
	if a.effect() == nothing && !l.config.Types[a.Type].ReverseOnSilence {
		return step.seal(), nil
	}
	due := now.Add(l.config.Silence.ReversalDelay.Std())
	if stillSendable := a.CreatedAt.Add(l.config.SendWithin.Std()); reason == reversal.Recovered && due.Before(stillSendable) {
		due = stillSendable // should the former daemon live after all, its request cannot leave behind the reversal
	}
	step.owed = &reversal.Duty{ID: reversal.WholeID(a.ID), AuthorizationID: a.ID, NextAt: due}
	if a.Reversal == nil { // else its client asked for it while it was running, and the timeout joins that one
		moved.Reversal = &ReversalView{ID: step.owed.ID, State: string(reversal.Owed), Reason: string(reason), NextAt: &due}
	}
	return step.seal(), nil
}

// contradicts names the element in which an answer speaks of other money than the request; it never quotes it. A partial
// approval may lower DE 4, and a decline may say that nothing was approved.
func contradicts(a *Authorization, m *iso8583.Message, action iso8583.ResponseAction) string {
	if m.Has(iso8583.AmountTransaction) {
		amount, err := strconv.ParseInt(m.Get(iso8583.AmountTransaction), 10, 64)
		lowered := action == iso8583.PartiallyApproved && amount < a.AmountMinor
		nothing := (action == iso8583.Declined || action == iso8583.NotSignedOn) && amount == 0
		if err != nil || (amount != a.AmountMinor && !lowered && !nothing) {
			return "DE 4 differs from the request's"
		}
	}
	currency, _ := ledger.CurrencyByAlpha(a.Currency)
	if m.Has(iso8583.CurrencyTransaction) && m.Get(iso8583.CurrencyTransaction) != currency.Numeric {
		return "DE 49 differs from the request's"
	}
	return ""
}

// silenceReason is why no usable answer came, of an error that does not prove that nothing was sent.
func silenceReason(err error) reversal.Reason {
	if lost := (*link.LinkLostError)(nil); errors.As(err, &lost) {
		return reversal.LinkLost
	}
	return reversal.Timeout
}

// reasonNotBegun stands for whatever the link refuses because of the message itself.
const reasonNotBegun = "write_not_begun"

// notSentReason is the word in the row for why no write was begun.
func notSentReason(err error) string {
	for reason, known := range map[string]error{
		"link_down": link.ErrDown, "link_not_signed_on": link.ErrNotSignedOn, "link_shutting_down": link.ErrShuttingDown,
		"link_signed_off": link.ErrSignedOff, "rate_limited": link.ErrRateLimited, "key_in_flight": link.ErrKeyInFlight, "too_many_pending": link.ErrTooManyPending, "send_time_passed": link.ErrExpired,
	} {
		if errors.Is(err, known) {
			return reason
		}
	}
	return reasonNotBegun
}

// malformedRow is the journal's row of a message that cannot be read: nothing of it is kept but why.
func malformedRow(at time.Time, err error) journalRow {
	return journalRow{id: newID(), at: at, kind: messageMalformed, image: "undecodable", note: err.Error()}
}

// noteDecision logs and counts a committed transition, once, where it was decided.
func (g *Gateway) noteDecision(step *decideStep) {
	a := step.authorization
	g.metrics.decided.WithLabelValues(a.Link, string(a.State)).Inc()
	g.metrics.authorizationSeconds.WithLabelValues(a.Link).Observe(a.UpdatedAt.Sub(a.CreatedAt).Seconds())
	if a.State == TimedOut && step.owed == nil {
		g.log.Info("authorization timed out, nothing to undo", zap.Stringer("authorization_id", a.ID), zap.String("link", a.Link), zap.String("reason", a.Reason))
	}
	if step.owed != nil {
		g.wake(a.Link)
		g.log.Info("authorization timed out", zap.Stringer("authorization_id", a.ID), zap.String("stan", a.STAN), zap.String("link", a.Link),
			zap.String("reason", a.Reason), zap.Stringer("reversal_id", step.owed.ID))
	}
}
