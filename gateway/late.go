package gateway

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

const (
	// maxUnmatched bounds the messages waiting to be written down; past it a message is counted and logged, not kept.
	maxUnmatched = 4096
	// unmatchedWriters is how many are written down at once.
	unmatchedWriters = 8
)

// takeUnmatched is called by a link's reader and never blocks it.
func (g *Gateway) takeUnmatched(u link.Unmatched) {
	select {
	case g.unmatched <- u:
	default:
		g.metrics.unmatchedDropped.WithLabelValues(u.Link).Inc()
		g.log.Error("message not kept: too many are waiting", zap.String("link", u.Link), zap.String("kind", string(u.Kind)), zap.Stringer("mti", u.MTI))
	}
}

// keepUnmatched writes unmatched messages down until the channel is closed. While the database is away they wait for it, within
// the channel's bound; only after the end of ctx, which asks to finish, has each of them one attempt.
func (g *Gateway) keepUnmatched(ctx context.Context) {
	for u := range g.unmatched {
		fields := []zap.Field{zap.String("link", u.Link), zap.String("kind", string(u.Kind))}
		err := g.noteUnmatched(u)
		if err != nil && mayBeWrittenLater(err) && ctx.Err() == nil {
			g.log.Warn("message waits to be kept", append(fields, zap.Error(err))...)
		}
		for err != nil && mayBeWrittenLater(err) && ctx.Err() == nil {
			select {
			case <-time.After(unmatchedRetry):
			case <-ctx.Done():
			}
			err = g.noteUnmatched(u)
		}
		if err != nil {
			g.metrics.unmatchedDropped.WithLabelValues(u.Link).Inc()
			g.log.Error("message not kept", append(fields, append(g.links[u.Link].traceFields(u.Body), zap.Error(err))...)...)
		}
		clear(u.Body)
	}
}

// traceFields tell in a log which message was lost: its type and references, which are no card data.
func (l *cardLink) traceFields(body []byte) []zap.Field {
	m, err := l.spec.Decode(body)
	if err != nil {
		return nil
	}
	return []zap.Field{zap.Stringer("mti", m.MTI()), zap.String("stan", m.Get(iso8583.STAN)), zap.String("rrn", m.Get(iso8583.RRN)),
		zap.String("response_code", m.Get(iso8583.ResponseCode))}
}

// unmatchedRetry is the pause before another attempt to write a message down.
const unmatchedRetry = 200 * time.Millisecond

// mayBeWrittenLater tells that a message is certainly not written down yet, and that this is not its own fault.
func mayBeWrittenLater(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, commit.ErrUnavailable) || errors.Is(err, commit.ErrConflict) {
		return true
	}
	var refused *commit.StatementError
	return !errors.Is(err, commit.ErrUnknown) && !errors.As(err, &refused)
}

// noteUnmatched keeps a message that answered nobody. A late answer is linked to its original and changes nothing there, but for the
// following: a late acknowledgement closes its duty, since that is the duty's own response; an approval of what was given up with nothing
// to undo is undone after all; and a late decline withdraws an unsent reversal where the profile says so.
func (g *Gateway) noteUnmatched(u link.Unmatched) error {
	ctx, cancel := context.WithTimeout(context.Background(), unmatchedTimeout)
	defer cancel()
	at := u.ReceivedAt.UTC().Truncate(time.Microsecond)
	l := g.links[u.Link]
	message, err := l.spec.Decode(u.Body)
	if err != nil {
		row := malformedRow(at, err)
		if u.Diagnostic != "" {
			row.note = u.Diagnostic
		}
		return g.committer.Do(ctx, &noteStep{link: u.Link, message: row})
	}
	row := g.vault.journal(message, messageUnmatched, at)
	row.note = u.Diagnostic
	step := &noteStep{link: u.Link, stan: message.Get(iso8583.STAN), rrn: message.Get(iso8583.RRN)}
	if u.Kind == link.ConfirmMismatch {
		row.kind = messageMismatch
	}
	step.message = row
	found, err := g.findLate(ctx, l, message, at)
	if err == nil && found.duty == nil && found.original != nil && found.original.State == Pending && u.Kind == link.Late {
		found.original, err = g.decidedOriginal(ctx, found.original)
	}
	if err != nil {
		return err
	}
	if len(found.fits) > 0 {
		step.tenant, step.exception, step.detail = found.tenant, exceptionAmbiguous, found.ambiguity()
		g.log.Error("response fits more than one", zap.String("link", u.Link), zap.Stringer("mti", message.MTI()), zap.Int("fits", len(found.fits)))
	}
	if found.original != nil {
		step.authorizationID, step.tenant = found.original.ID, found.original.Tenant
	}
	if found.original != nil && u.Kind == link.Late {
		step.message.kind = messageLate
		if kept, err := g.takeLate(ctx, l, step, found, message); kept || err != nil {
			return err
		}
	}
	return g.committer.Do(ctx, step)
}

// exceptionAmbiguous is a response that fits more than one request or duty.
const exceptionAmbiguous = "answer_ambiguous"

// unmatchedTimeout bounds finding one message's original and being taken by the committer.
const unmatchedTimeout = 10 * time.Second

// decidedOriginal waits for a decision that is being committed: only then can a late answer be told from a second copy of the
// one that decided.
func (g *Gateway) decidedOriginal(ctx context.Context, original *Authorization) (*Authorization, error) {
	if done := g.flights.done(original.ID); done != nil {
		timer := time.NewTimer(readTimeout)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
	return selectAuthorization(ctx, g.db, original.Tenant, original.ID)
}

// takeLate acts on a late response; kept tells that its message is written down with that already.
func (g *Gateway) takeLate(ctx context.Context, l *cardLink, step *noteStep, found lateSubject, m *iso8583.Message) (kept bool, err error) {
	if found.duty != nil {
		return g.closeByLateAnswer(ctx, l, found.original, found.duty, m, step.message)
	}
	a, code := found.original, m.Get(iso8583.ResponseCode)
	approves, answered := l.approves(code), l.answered(a)
	fields := []zap.Field{zap.Stringer("authorization_id", a.ID), zap.String("link", a.Link), zap.String("response_code", code), zap.String("state", string(a.State))}
	step.event, step.detail = eventLateResponse, "response code "+code
	switch {
	case answered && code == a.ResponseCode:
		step.message.kind, step.event = messageDuplicate, ""
		g.answerRepeated(l, m, a)
		return false, nil
	case approves && a.effect() != nothing && (a.State == Declined || a.State == NotSent || closedWithoutEffect(a)):
		g.metrics.late.WithLabelValues(a.Link).Inc()
		g.log.Error("late approval of what was given up", fields...)
		return true, g.bookLateApproval(ctx, l, step, a, m)
	case answered || a.State == NotSent:
		step.event, step.exception, step.detail = "", exceptionContradiction, "an answer with response code "+code+" contradicts what was decided"
		g.log.Error("late response contradicts a decision", fields...)
		return false, nil
	}
	g.metrics.late.WithLabelValues(a.Link).Inc()
	g.log.Info("late response", fields...)
	if approves && a.effect() != nothing && a.State == TimedOut {
		kept, err := g.outdateAttempts(ctx, step, a)
		if kept || err != nil {
			return kept, err
		}
		return true, g.bookLateApproval(ctx, l, step, a, m) // its reversal was closed with nothing undone a moment ago
	}
	if !l.config.Silence.LateDeclineWithdraws || a.State != TimedOut || l.spec.AuthorizationAction(code) != iso8583.Declined {
		return false, nil
	}
	return g.withdrawByLateDecline(ctx, step, a, code)
}

// answered tells whether an answer of the scheme decided the authorisation. What was reversed may have been approved before, or not.
func (l *cardLink) answered(a *Authorization) bool {
	switch a.State {
	case Approved, Declined, Captured, Expired:
		return true
	case Reversed:
		return l.approves(a.ResponseCode)
	}
	return false
}

// closedWithoutEffect tells whether the reversal of the whole was over at some time with nothing undone: the peer held nothing of the
// original, or the original was declined. An approval that comes then is the first of that, or a copy of the one that reopened it.
func closedWithoutEffect(a *Authorization) bool {
	if a.State != Reversed || a.Reversal == nil {
		return false
	}
	return a.Reversal.reopened > 0 || a.Reversal.ClosedAs == string(reversal.AttemptNothingToUndo) || a.Reversal.ClosedAs == string(reversal.AttemptWithdrawn)
}

// approves tells whether a response code lets the peer hold money.
func (l *cardLink) approves(code string) bool {
	action := l.spec.AuthorizationAction(code)
	return action == iso8583.Approved || action == iso8583.PartiallyApproved
}

// closeByLateAnswer closes an open duty by its own response that came after the attempt's deadline.
func (g *Gateway) closeByLateAnswer(ctx context.Context, l *cardLink, original *Authorization, found *lateDuty, m *iso8583.Message, row journalRow) (bool, error) {
	code := m.Get(iso8583.ResponseCode)
	outcome := l.dutyOutcome(found.Kind, code)
	if found.state == reversal.Acknowledged && outcome.Closes() {
		g.answerRepeated(l, m, original)
	}
	if found.state == reversal.Acknowledged || !outcome.Closes() {
		return false, nil // there is nothing to close, or it is a late refusal: the next attempt will hear it again
	}
	row.kind = messageResponse
	step := &resolveStep{duty: found.Duty, outcome: outcome, responseCode: code, at: g.now(), response: &row}
	if err := g.committer.Do(ctx, step); err != nil {
		return false, err
	}
	g.noteResolution(l, step)
	return true, nil
}
