package gateway

import (
	"context"
	"errors"
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

// claimTries bounds how often a claim is begun again that needs more STANs than were taken for it.
const claimTries = 3

// claimDuties counts the attempts and journals their messages in one transaction, before a byte of them leaves. What turns out to
// be not due, since its original is still running, or not to be sent at all, since that was declined or never left, comes back with
// what is to be written down instead.
func (g *Gateway) claimDuties(ctx context.Context, l *cardLink, limit int) (duties []reversal.Duty, err error) {
	// A claim that was begun is brought to its end: a cancelled COMMIT would count an attempt that is never made.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	var stans []string
	for try := 1; ; try++ {
		var missing errSTANsMissing
		duties, err = g.claimWith(ctx, l, limit, stans)
		if !errors.As(err, &missing) || try == claimTries {
			break
		}
		// A lease has a connection of its own, for which no transaction may wait while it holds one.
		for range int(missing) {
			stan, _, err := l.references.Next(ctx, g.now())
			if err != nil {
				return nil, fmt.Errorf("claim duties of link %s: %w", l.name, err)
			}
			stans = append(stans, stan)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("claim duties of link %s: %w", l.name, err)
	}
	return duties, nil
}

// errSTANsMissing is how many more STANs a claim needs than it was given: nothing of it stays.
type errSTANsMissing int

func (n errSTANsMissing) Error() string { return fmt.Sprintf("%d STANs are missing", int(n)) }

func (g *Gateway) claimWith(ctx context.Context, l *cardLink, limit int, stans []string) (duties []reversal.Duty, err error) {
	now := g.now()
	until := now.Add(l.config.Silence.AnswerWithin.Std() + reversal.ClaimMargin)
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
		for i := range duties {
			duties[i].Premature = premature(originals[duties[i].AuthorizationID], duties[i])
		}
		if err := l.fixSTANs(ctx, tx, duties, stans); err != nil {
			return err
		}
		return g.journalAttempts(ctx, tx, l, duties, originals, now)
	})
	return duties, err
}

// premature is what stands against sending a duty now: its original is still running, or there is nothing of it at the scheme, unless
// an approval has come since.
func premature(original *Authorization, d reversal.Duty) reversal.Outcome {
	switch {
	case original.State == Pending:
		return reversal.AttemptUnsent
	case d.Reopened == 0 && (original.State == Declined || original.State == NotSent):
		return reversal.AttemptWithdrawn
	}
	return ""
}

// fixSTANs gives one of the STANs to each duty that needs one of its own and has none yet: captures, what undoes them or only a part, and
// every reversal where the profile wants new ones. It returns errSTANsMissing when they do not suffice.
func (l *cardLink) fixSTANs(ctx context.Context, tx pgx.Tx, duties []reversal.Duty, stans []string) error {
	var ids []uuid.UUID
	for i := range duties {
		d := &duties[i]
		if d.STAN != "" || d.Premature != "" || d.Number == 0 && l.config.Reversal.STAN == stanOriginal {
			continue
		}
		if len(ids) < len(stans) {
			d.STAN = stans[len(ids)]
		}
		ids = append(ids, d.ID)
	}
	switch missing := len(ids) - len(stans); {
	case missing > 0:
		return errSTANsMissing(missing)
	case len(ids) == 0:
		return nil
	}
	return reversal.FixSTANs(ctx, tx, ids, stans[:len(ids)])
}

func (g *Gateway) journalAttempts(ctx context.Context, tx pgx.Tx, l *cardLink, duties []reversal.Duty, originals map[uuid.UUID]*Authorization, now time.Time) error {
	var batch pgx.Batch
	for i := range duties {
		d := &duties[i]
		if d.Premature != "" {
			continue
		}
		original := originals[d.AuthorizationID]
		message, body, err := l.buildDuty(g.vault, original, *d)
		if err != nil {
			g.log.Error("message of a duty cannot be built", zap.Stringer("duty_id", d.ID), zap.String("kind", string(d.Kind)), zap.Error(err))
			continue
		}
		d.Body, d.Affinity = body, original.affinity()
		row := g.vault.journal(message, messageRequest, now)
		row.attempt = d.Attempt
		message.Wipe()
		queueAttempt(&batch, original, d.STAN, row)
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
		g.log.Error("attempt of a duty not written down", zap.Stringer("duty_id", duty.ID), zap.Int32("attempt", duty.Attempt), zap.Error(err))
		return
	}
	g.noteResolution(l, step)
}

func (g *Gateway) attempt(ctx context.Context, l *cardLink, duty reversal.Duty) *resolveStep {
	step := &resolveStep{duty: duty}
	defer clear(duty.Body)
	if duty.Premature != "" {
		step.at = g.now()
		step.outcome, step.nextAt = duty.Premature, step.at.Add(prematurePause)
		return step
	}
	if duty.Body == nil {
		step.at = g.now()
		step.unbuildable(l.config.Silence, "the stored record does not give a message; see the log")
		return step
	}
	deadline := time.Now().Add(l.config.Silence.AnswerWithin.Std())
	response, err := l.line.Exchange(ctx, link.Call{Body: duty.Body, SendBefore: deadline, Deadline: deadline, Affinity: duty.Affinity})
	step.at = g.now()
	switch {
	case link.NotSent(err) && notSentReason(err) == reasonNotBegun:
		// Not the state of the line but the message itself: the next try would end alike.
		g.log.Error("message of a duty cannot be sent", zap.Stringer("duty_id", duty.ID), zap.String("kind", string(duty.Kind)), zap.Error(err))
		step.unbuildable(l.config.Silence, "the link cannot send this message; see the log")
	case link.NotSent(err):
		step.outcome, step.nextAt = reversal.AttemptUnsent, step.at.Add(unsentPause)
	case err != nil:
		step.silent(l.config.Silence)
	default:
		g.judgeDuty(l, step, response)
	}
	return step
}

// unbuildable is an attempt of which nothing can leave until a person has seen to it; it is looked at again from time to time.
func (s *resolveStep) unbuildable(policy *reversal.Policy, detail string) {
	s.outcome, s.nextAt = reversal.AttemptUnsent, s.at.Add(policy.MaxGap.Std())
	s.attention, s.exception, s.detail = true, string(s.duty.Kind)+unbuildable, detail
}

// prematurePause is how long a duty rests whose original is still running; the end of the original wakes it earlier.
const prematurePause = 500 * time.Millisecond

// unsentPause is how long a duty rests when the link could not take it after all.
const unsentPause = time.Second

// silent is an attempt without a usable answer: counted, repeated later, and a person's matter past the threshold.
func (s *resolveStep) silent(policy *reversal.Policy) {
	s.outcome, s.nextAt = reversal.AttemptSilent, s.at.Add(policy.Gap(s.duty.Attempt))
	if int(s.duty.Attempt) >= policy.AttentionAttempts {
		s.attention, s.exception = true, s.duty.Kind.Unacknowledged()
		s.detail = fmt.Sprintf("%d attempts without an acknowledgement; the attempts go on", s.duty.Attempt)
	}
}

// judgeDuty acts on DE 39 of a duty's own response by the profile's tables.
func (g *Gateway) judgeDuty(l *cardLink, step *resolveStep, response []byte) {
	message, err := l.spec.Decode(response)
	if err != nil {
		unreadable := malformedRow(step.at, err)
		step.response = &unreadable
		step.silent(l.config.Silence)
		return
	}
	row := g.vault.journal(message, messageResponse, step.at)
	step.response, step.responseCode = &row, message.Get(iso8583.ResponseCode)
	switch outcome := l.dutyOutcome(step.duty.Kind, step.responseCode); outcome {
	case reversal.AttemptSilent:
		step.silent(l.config.Silence)
	case reversal.AttemptRefused:
		step.outcome, step.attention, step.exception = outcome, true, string(step.duty.Kind)+refused
		step.detail = "the scheme refused it; what is held or moved stays until a person decides"
	default:
		step.outcome = outcome
	}
}

// dutyOutcome is what a response code says about a duty. A capture cannot be declined for business reasons: what is neither taken
// nor to be tried later is a person's matter.
func (l *cardLink) dutyOutcome(kind reversal.Kind, code string) reversal.Outcome {
	action := l.spec.ReversalAction(code)
	if kind == reversal.Capture {
		if l.approves(code) || l.done[code] {
			return reversal.AttemptAcknowledged
		}
		if action == iso8583.NothingToUndo {
			return reversal.AttemptRefused
		}
	}
	switch action {
	case iso8583.ReversalAcknowledged:
		return reversal.AttemptAcknowledged
	case iso8583.NothingToUndo:
		return reversal.AttemptNothingToUndo
	case iso8583.RetryLater:
		return reversal.AttemptSilent
	}
	return reversal.AttemptRefused
}

// noteResolution logs and counts what an attempt came to.
func (g *Gateway) noteResolution(l *cardLink, step *resolveStep) {
	g.metrics.reversalAttempts.WithLabelValues(l.name, string(step.duty.Kind), string(step.outcome)).Inc()
	if step.ledgerHit {
		g.reportLedgerHit(step.duty.AuthorizationID)
	}
	if !step.won {
		return
	}
	kind := string(step.duty.Kind)
	fields := []zap.Field{zap.Stringer("duty_id", step.duty.ID), zap.Stringer("authorization_id", step.duty.AuthorizationID),
		zap.String("link", l.name), zap.Int32("attempt", step.duty.Attempt), zap.String("response_code", step.responseCode)}
	switch {
	case step.state == reversal.Acknowledged:
		g.log.Info(kind+" acknowledged", fields...)
	case step.state == reversal.Suspended:
		g.log.Error(kind+" suspended", fields...)
	case step.attention:
		g.log.Warn(kind+" needs attention", fields...)
	}
}
