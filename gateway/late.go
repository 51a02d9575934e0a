package gateway

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
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

// noteUnmatched keeps a message that answered nobody. A late answer is linked to its original and changes nothing there,
// with one exception: a late acknowledgement closes its reversal, since that is the reversal's own response.
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
	original, err := g.originalOf(ctx, u.Link, message)
	if err == nil && original != nil && original.State == Pending && u.Kind == link.Late {
		original, err = g.decidedOriginal(ctx, original)
	}
	if err != nil {
		return err
	}
	if original != nil {
		step.authorizationID, step.tenant = original.ID, original.Tenant
		if u.Kind == link.Late {
			row.kind = messageLate
			step.message = row
			if closed, err := g.closeByLateAcknowledgement(ctx, l, original, message, row); closed || err != nil {
				return err
			}
			g.noteLate(l, step, original, message)
		}
	}
	return g.committer.Do(ctx, step)
}

// unmatchedTimeout bounds finding one message's original and being taken by the committer.
const unmatchedTimeout = 10 * time.Second

// originalOf finds the authorisation a response belongs to. DE 7 of a reversal is its own, so there the RRN confirms.
func (g *Gateway) originalOf(ctx context.Context, linkName string, m *iso8583.Message) (*Authorization, error) {
	if !m.MTI().IsResponse() {
		return nil, nil
	}
	dateTime := m.Get(iso8583.TransmissionDateTime)
	switch m.MTI().Class() {
	case iso8583.MTIAuthorizationRequest.Class():
		if !slices.Contains(g.links[linkName].config.Correlation, iso8583.TransmissionDateTime) {
			dateTime = "" // a host that rewrites it
		}
	case iso8583.MTIReversalAdvice.Class():
		dateTime = ""
	default:
		return nil, nil
	}
	return selectOriginal(ctx, g.db, linkName, m.Get(iso8583.STAN), dateTime, m.Get(iso8583.RRN))
}

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

// noteLate says what an answer nobody waited for means to its authorisation, whose state it never changes.
func (g *Gateway) noteLate(l *cardLink, step *noteStep, original *Authorization, m *iso8583.Message) {
	if m.MTI().Class() != iso8583.MTIAuthorizationRequest.Class() {
		return
	}
	code := m.Get(iso8583.ResponseCode)
	fields := []zap.Field{zap.Stringer("authorization_id", original.ID), zap.String("link", original.Link),
		zap.String("response_code", code), zap.String("state", string(original.State))}
	answered := original.State == Approved || original.State == Declined || original.State == Captured
	switch {
	case answered && code == original.ResponseCode:
		step.message.kind = messageDuplicate
	case answered || original.State == NotSent:
		step.exception, step.detail = exceptionContradiction, "an answer with response code "+code+" contradicts what was decided"
		g.log.Error("late response contradicts a decision", fields...)
	default:
		step.event, step.detail = eventLateResponse, "response code "+code
		if l.closedWithoutEffect(original) && l.approves(code) {
			// The scheme knew nothing to undo and has approved since: what it holds is undone by nobody unless a person sees to it.
			step.exception, step.detail = exceptionContradiction, "approved with response code "+code+" after its reversal was closed with nothing to undo"
			g.log.Error("late approval after its reversal", fields...)
		}
		g.metrics.late.WithLabelValues(original.Link).Inc()
		g.log.Info("late response", fields...)
	}
}

// closedWithoutEffect tells whether the reversal was closed by an answer that says that the peer held nothing of the original.
func (l *cardLink) closedWithoutEffect(a *Authorization) bool {
	return a.Reversal != nil && a.Reversal.ClosedAs == string(reversal.AttemptNothingToUndo)
}

// approves tells whether a response code lets the peer hold money.
func (l *cardLink) approves(code string) bool {
	action := l.spec.AuthorizationAction(code)
	return action == iso8583.Approved || action == iso8583.PartiallyApproved
}

// closeByLateAcknowledgement closes an open reversal by its own response that came after the attempt's deadline.
func (g *Gateway) closeByLateAcknowledgement(ctx context.Context, l *cardLink, original *Authorization, m *iso8583.Message, row journalRow) (bool, error) {
	if m.MTI() != iso8583.MTIReversalAdvice.Response() || original.Reversal == nil ||
		original.Reversal.State == string(reversal.Acknowledged) || original.Reversal.Attempts == 0 {
		return false, nil // there is nothing this could be the response of
	}
	code := m.Get(iso8583.ResponseCode)
	outcome := l.dutyOutcome(reversal.Reversal, code)
	if !outcome.Closes() {
		return false, nil // a late refusal: the next attempt will hear it again
	}
	row.kind = messageResponse
	step := &resolveStep{
		duty:    reversal.Duty{ID: original.Reversal.ID, AuthorizationID: original.ID, Kind: reversal.Reversal, Attempt: original.Reversal.Attempts},
		outcome: outcome, responseCode: code, at: g.now(), response: &row,
	}
	if err := g.committer.Do(ctx, step); err != nil {
		return false, err
	}
	g.noteResolution(l, step)
	return true, nil
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
