package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// worker is the reversal worker of one link: the package reversal knows when, this file knows what and writes it down.
func (g *Gateway) worker(l *cardLink) *reversal.Worker {
	return &reversal.Worker{
		Link: l.name, Policy: *l.config.Silence, Log: g.log,
		Ready:   func() bool { return l.line.State() == link.SignedOn },
		Claim:   func(ctx context.Context, limit int) ([]reversal.Duty, error) { return g.claimDuties(ctx, l, limit) },
		Deliver: func(ctx context.Context, duty reversal.Duty) { g.deliver(ctx, l, duty) },
		NextDue: func(ctx context.Context) (time.Time, error) { return reversal.NextDue(ctx, g.db, l.name) },
		Wake:    l.wake,
	}
}

// claimDuties counts the attempts and journals their messages in one transaction, before a byte of them leaves.
func (g *Gateway) claimDuties(ctx context.Context, l *cardLink, limit int) (duties []reversal.Duty, err error) {
	now := g.now()
	until := now.Add(l.config.Silence.AnswerWithin.Std() + reversal.ClaimMargin)
	// A claim that was begun is brought to its end: a cancelled COMMIT would count an attempt that is never made.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		if duties, err = reversal.Claim(ctx, tx, l.name, g.epoch, now, until, limit); err != nil || len(duties) == 0 {
			return err
		}
		ids := make([]uuid.UUID, len(duties))
		for i, d := range duties {
			ids[i] = d.AuthorizationID
		}
		originals, err := selectByIDs(ctx, tx, ids)
		if err != nil {
			return err
		}
		return g.journalAttempts(ctx, tx, l, duties, originals, now)
	})
	if err != nil {
		return nil, fmt.Errorf("claim reversals of link %s: %w", l.name, err)
	}
	return duties, nil
}

func (g *Gateway) journalAttempts(ctx context.Context, tx pgx.Tx, l *cardLink, duties []reversal.Duty, originals map[uuid.UUID]*Authorization, now time.Time) error {
	var batch pgx.Batch
	for i := range duties {
		d := &duties[i]
		original := originals[d.AuthorizationID]
		message, body, err := l.buildReversal(g.vault, original, *d)
		if err != nil {
			g.log.Error("reversal cannot be built", zap.Stringer("reversal_id", d.ID), zap.Error(err))
			continue
		}
		d.Body = body
		row := g.vault.journal(message, messageRequest, now)
		row.attempt = d.Attempt
		queueAttempt(&batch, original, row)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// deliver sends one attempt, waits for its own response, and writes down what came of it. It returns only when that is
// written or the database has refused for good; the claim then runs out and the next attempt follows.
func (g *Gateway) deliver(ctx context.Context, l *cardLink, duty reversal.Duty) {
	step := g.attempt(ctx, l, duty)
	if err := g.committer.Do(ctx, step); err != nil {
		g.log.Error("reversal attempt not written down", zap.Stringer("reversal_id", duty.ID), zap.Int32("attempt", duty.Attempt), zap.Error(err))
		return
	}
	g.noteResolution(l, step)
}

func (g *Gateway) attempt(ctx context.Context, l *cardLink, duty reversal.Duty) *resolveStep {
	step := &resolveStep{duty: duty}
	defer clear(duty.Body)
	if duty.Body == nil {
		step.at = g.now()
		step.unbuildable(l.config.Silence, "the stored record does not give a message; see the log")
		return step
	}
	deadline := time.Now().Add(l.config.Silence.AnswerWithin.Std())
	response, err := l.line.Exchange(ctx, link.Call{Body: duty.Body, SendBefore: deadline, Deadline: deadline})
	step.at = g.now()
	switch {
	case link.NotSent(err) && notSentReason(err) == reasonNotBegun:
		// Not the state of the line but the message itself: the next try would end alike.
		g.log.Error("reversal cannot be sent", zap.Stringer("reversal_id", duty.ID), zap.Error(err))
		step.unbuildable(l.config.Silence, "the link cannot send this message; see the log")
	case link.NotSent(err):
		step.outcome, step.nextAt = reversal.AttemptUnsent, step.at.Add(unsentPause)
	case err != nil:
		step.silent(l.config.Silence)
	default:
		g.judgeReversal(l, step, response)
	}
	return step
}

// unbuildable is an attempt of which nothing can leave until a person has seen to it; it is looked at again from time to time.
func (s *resolveStep) unbuildable(policy *reversal.Policy, detail string) {
	s.outcome, s.nextAt = reversal.AttemptUnsent, s.at.Add(policy.MaxGap.Std())
	s.attention, s.exception, s.detail = true, exceptionUnbuildable, detail
}

// unsentPause is how long a duty rests when the link could not take it after all.
const unsentPause = time.Second

// silent is an attempt without a usable answer: counted, repeated later, and a person's matter past the threshold.
func (s *resolveStep) silent(policy *reversal.Policy) {
	s.outcome, s.nextAt = reversal.AttemptSilent, s.at.Add(policy.Gap(s.duty.Attempt))
	if int(s.duty.Attempt) >= policy.AttentionAttempts {
		s.attention, s.exception = true, exceptionUnacknowledged
		s.detail = fmt.Sprintf("%d attempts without an acknowledgement; the attempts go on", s.duty.Attempt)
	}
}

// judgeReversal acts on DE 39 of a 0430 by the profile's table.
func (g *Gateway) judgeReversal(l *cardLink, step *resolveStep, response []byte) {
	message, err := l.spec.Decode(response)
	if err != nil {
		unreadable := malformedRow(step.at, err)
		step.response = &unreadable
		step.silent(l.config.Silence)
		return
	}
	row := g.vault.journal(message, messageResponse, step.at)
	step.response, step.responseCode = &row, message.Get(iso8583.ResponseCode)
	switch l.spec.ReversalAction(step.responseCode) {
	case iso8583.ReversalAcknowledged, iso8583.NothingToUndo:
		step.outcome = reversal.AttemptAcknowledged
	case iso8583.RetryLater:
		step.silent(l.config.Silence)
	default:
		step.outcome, step.attention, step.exception = reversal.AttemptRefused, true, exceptionRefused
		step.detail = "the scheme refused the reversal; the hold stays until a person decides"
	}
}

// noteResolution logs and counts what an attempt came to.
func (g *Gateway) noteResolution(l *cardLink, step *resolveStep) {
	g.metrics.reversalAttempts.WithLabelValues(l.name, string(step.outcome)).Inc()
	if step.releaseHit {
		g.reportLedgerHit(step.duty.AuthorizationID)
	}
	if !step.won {
		return
	}
	fields := []zap.Field{zap.Stringer("reversal_id", step.duty.ID), zap.Stringer("authorization_id", step.duty.AuthorizationID),
		zap.String("link", l.name), zap.Int32("attempt", step.duty.Attempt), zap.String("response_code", step.responseCode)}
	switch {
	case step.state == reversal.Acknowledged:
		g.log.Info("reversal acknowledged", fields...)
	case step.state == reversal.Suspended:
		g.log.Error("reversal suspended", fields...)
	case step.attention:
		g.log.Warn("reversal needs attention", fields...)
	}
}
