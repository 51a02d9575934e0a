package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/ledger"
)

// endpointAuthorizations is the endpoint part of a claim's key.
const endpointAuthorizations = "authorizations"

// AuthorizeCall is one POST /v1/authorizations as the HTTP side hands it over.
type AuthorizeCall struct {
	Tenant         string
	IdempotencyKey string
	Request        AuthorizationRequest // from ParseAuthorizationRequest
	Wait           *time.Duration       // Prefer: wait, nil when not given
}

// Answer is what goes back to a client: the stored bytes, or a provisional 202.
type Answer struct {
	Status   int
	Body     []byte
	Replayed bool
	Resource string
}

// Authorize records, exchanges and settles one card authorisation, and returns its stored answer. A call that repeats an
// earlier one gets that one's answer and sends nothing. ctx bounds only the caller's wait: once recorded, the authorisation
// runs to its end whether or not anybody listens.
func (g *Gateway) Authorize(ctx context.Context, call AuthorizeCall) (Answer, error) {
	if call.Request.holdsOwnPAN(call.IdempotencyKey) {
		return Answer{}, Errorf(CodeKeyMalformed, nil, "a key must not hold a card number")
	}
	l, err := g.linkFor(call.Request.Link)
	if err != nil { // the link may have been there when the first request came
		return g.repeatOr(ctx, call, call.Request.digest(g.vault.digestKey, call.Tenant, endpointAuthorizations, nil), err)
	}
	digest := call.Request.digest(g.vault.digestKey, call.Tenant, endpointAuthorizations, l.stored)
	if g.recent.seen(call.Tenant, call.IdempotencyKey) {
		if answer, err := g.repeatOr(ctx, call, digest, errNoClaim); !errors.Is(err, errNoClaim) {
			return answer, err
		}
	}
	if err := g.admit(l); err != nil {
		return g.repeatOr(ctx, call, digest, err)
	}
	f, err := g.prepare(ctx, l, call, digest)
	if err != nil {
		g.inFlight.Done()
		if known := (*Error)(nil); !errors.As(err, &known) {
			err = Errorf(CodeInternal, err, "") // nothing is recorded yet
		}
		return g.repeatOr(ctx, call, digest, err)
	}
	go func() {
		defer g.inFlight.Done()
		g.run(f)
	}()
	return g.await(ctx, call, digest, f)
}

// errNoClaim means that a key seen lately holds no claim yet, or that the database did not say: the way of a first request
// decides.
var errNoClaim = errors.New("no claim")

// flight is one authorisation on its way through this process.
type flight struct {
	link          *cardLink
	authorization *Authorization
	step          *recordStep
	body          []byte // the encoded 0100
	partial       bool   // the client takes a partial approval
	entered       time.Time
	sendBefore    time.Time
	deadline      time.Time
	latest        time.Time   // as far as interim answers may move the deadline
	undo          atomic.Bool // its client asked for its reversal; the database says whether that stands

	done    chan struct{} // closed when the following are set
	lost    bool          // the claim belongs to someone else
	refused bool          // certainly not recorded; err says why
	answer  Answer
	err     error
}

// prepare allocates STAN and RRN and packs the message: all that can fail without a trace comes before the claim.
func (g *Gateway) prepare(ctx context.Context, l *cardLink, call AuthorizeCall, digest []byte) (*flight, error) {
	entered := time.Now()
	req := &call.Request
	ctx, cancel := context.WithDeadline(ctx, entered.Add(l.config.SendWithin.Std())) // past it nothing may be sent anyway
	defer cancel()
	stan, rrn, err := l.references.Next(ctx, entered)
	if err != nil {
		return nil, beforeRecord(err)
	}
	customer, settlement, err := g.accountsFor(ctx, call.Tenant, l.name, req.money.Currency)
	if err != nil {
		return nil, beforeRecord(err)
	}
	id, now := newID(), entered.UTC().Truncate(time.Microsecond) // PostgreSQL's resolution, so that an answer and a read agree
	sealed, keyID := g.vault.Seal(id, req.Card.PAN)
	a := &Authorization{
		ID: id, Tenant: call.Tenant, ClientReference: req.ClientReference, OrderReference: req.OrderReference,
		Link: l.name, Type: req.Type, State: Pending, StateVersion: 1, MTI: l.config.Types[req.Type].MTI, STAN: stan, RRN: rrn,
		TransmissionDateTime: now.Format(transmissionDateTimeLayout), AmountMinor: req.money.Minor, Currency: req.money.Currency.Alpha,
		PANMasked: req.Card.PAN.String(), PANSealed: sealed, PANKeyID: keyID, PANHash: g.vault.HashPAN(req.Card.PAN),
		CustomerAccount: customer, SettlementAccount: settlement, OwnerEpoch: g.epoch,
		CreatedAt: now, DeadlineAt: now.Add(l.latest()), UpdatedAt: now,
		SettlementDate: l.control.date(),
	}
	message, body, err := l.buildRequest(req, a)
	if err != nil {
		return nil, err
	}
	defer message.Wipe() // its image and digest are made, its bytes are cleared after the exchange
	a.Elements = l.storedElements(message)
	return &flight{
		link: l, authorization: a, body: body, partial: req.PartialApproval,
		step: &recordStep{authorization: a, endpoint: endpointAuthorizations, idempotencyKey: call.IdempotencyKey, digest: digest,
			request: g.vault.journal(message, messageRequest, now)},
		entered: entered, sendBefore: entered.Add(l.config.SendWithin.Std()), deadline: entered.Add(l.config.AnswerWithin.Std()), latest: entered.Add(l.latest()),
		done: make(chan struct{}),
	}, nil
}

// latest is how long after a call's entry its answer may come at most, interim answers included.
func (l *cardLink) latest() time.Duration {
	return max(l.config.AnswerWithin.Std(), l.config.InterimMost.Std())
}

// affinity keeps the messages of one card in order: it is part of the card number's keyed hash.
func (a *Authorization) affinity() uint64 {
	if len(a.PANHash) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a.PANHash)
}

// run is the life of one authorisation: record, exchange, settle.
func (g *Gateway) run(f *flight) {
	defer close(f.done)
	defer clear(f.body) // track, PIN block and ICC data live no longer than the exchange
	if f.err = g.record(f); f.err != nil || f.lost {
		return
	}
	g.flights.add(f)
	defer g.flights.remove(f)
	response, err := f.link.line.Exchange(context.Background(), link.Call{Body: f.body, SendBefore: f.sendBefore, Deadline: f.deadline,
		Latest: f.latest, Affinity: f.authorization.affinity()})
	step, err := g.judge(f, response, err)
	if err != nil { // only a state the machine forbids, which pending never is
		f.err = Errorf(CodeInternalAfterRecorded, err, "")
		return
	}
	if f.undo.Load() {
		g.carryReversal(step)
	}
	f.answer, f.err = g.settle(f, step)
	if f.undo.Load() {
		g.hastenReversal(f.authorization)
	}
	if response != nil && (f.err != nil || !step.won && !bytes.Equal(f.answer.Body, step.answerBody)) {
		// The decision may not stand, or another one does. What the scheme said must not be lost with it.
		g.takeUnmatched(link.Unmatched{Link: f.link.name, ReceivedAt: time.Now(), Kind: link.Late, Body: bytes.Clone(response)})
	}
}

// record commits the intent. Afterwards f.lost tells whether another request holds the key or the reference.
func (g *Gateway) record(f *flight) error {
	ctx, cancel := context.WithDeadline(context.Background(), f.sendBefore)
	defer cancel()
	err := g.committer.Do(ctx, f.step)
	switch {
	case errors.Is(err, commit.ErrNotTaken), errors.Is(err, commit.ErrUnavailable), errors.Is(err, commit.ErrConflict):
		f.refused = true
		return beforeRecord(err)
	case errors.Is(err, commit.ErrUnknown):
		return Errorf(CodeOutcomeUnknown, err, "the database did not confirm the record")
	case err != nil:
		var refused *commit.StatementError
		if errors.As(err, &refused) && ledger.IsGuard(refused.Constraint) {
			g.reportLedgerHit(f.authorization.ID)
		}
		g.log.Error("authorization not recorded", zap.String("link", f.link.name), zap.Error(err))
		return Errorf(CodeInternal, err, "")
	}
	if !f.step.won {
		return g.loseOrOwn(f)
	}
	g.metrics.recorded.WithLabelValues(f.link.name).Inc()
	return nil
}

// loseOrOwn finds whose claim it is. After a COMMIT of unknown outcome the batch ran again under the same ids, so a claim
// that was there already may be our own.
func (g *Gateway) loseOrOwn(f *flight) error {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	claim, found, err := selectClaim(ctx, g.db, f.authorization.Tenant, f.step.endpoint, f.step.idempotencyKey, f.authorization.ClientReference)
	if err != nil {
		return Errorf(CodeOutcomeUnknown, err, "the database did not say who holds the key")
	}
	f.lost = !found || claim.resourceID != f.authorization.ID
	return nil
}

// settle commits the decision and gives its stored answer; when someone else decided first, theirs. While the database is
// away it tries again for as long as no sweep gives the authorisation up.
func (g *Gateway) settle(f *flight, step *decideStep) (Answer, error) {
	a := step.authorization
	err := g.committer.Do(context.Background(), step)
	for mayBeWrittenLater(err) && time.Until(f.latest) > -sweepGrace {
		time.Sleep(settleRetry)
		err = g.committer.Do(context.Background(), step)
	}
	if err != nil {
		g.log.Error("decision not committed", zap.Stringer("authorization_id", a.ID), zap.String("state", string(a.State)), zap.Error(err))
		return Answer{}, &Error{Code: CodeOutcomeUnknown, Detail: "the database did not confirm the decision", Resource: a.Path(), cause: err}
	}
	if step.ledgerHit {
		g.reportLedgerHit(a.ID)
	}
	if !step.won {
		return g.answerOf(a.ID)
	}
	g.noteDecision(step)
	return Answer{Status: step.answerStatus, Body: step.answerBody, Resource: a.Path()}, nil
}

// settleRetry is the pause before a decision that was certainly not committed is tried again.
const settleRetry = 100 * time.Millisecond

// errUndecided means that an authorisation is pending, so that it has no answer yet.
var errUndecided = errors.New("authorization is pending")

// answerOf reads the stored answer of a decided authorisation.
func (g *Gateway) answerOf(id uuid.UUID) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	stored, decided, err := selectAnswer(ctx, g.db, id)
	if err == nil && !decided {
		err = errUndecided
	}
	if err != nil {
		return Answer{}, &Error{Code: CodeOutcomeUnknown, Detail: "the database did not give the answer", Resource: AuthorizationPath(id), cause: err}
	}
	if stored.body == nil {
		return Answer{}, &Error{Code: CodeAnswerExpired, Resource: AuthorizationPath(id)}
	}
	return Answer{Status: stored.status, Body: stored.body, Resource: AuthorizationPath(id)}, nil
}

// await is the caller's side: it waits for the flight, the caller's patience or the caller's departure.
func (g *Gateway) await(ctx context.Context, call AuthorizeCall, digest []byte, f *flight) (Answer, error) {
	patience, stop := patience(call.Wait)
	defer stop()
	limit := time.NewTimer(time.Until(f.latest) + awaitGrace)
	defer limit.Stop()
	for extended := false; ; extended = true {
		select {
		case <-f.done:
			return g.landed(ctx, call, digest, f)
		case <-patience:
			return g.provisional(ctx, call, digest, f)
		case <-limit.C:
			if extended || g.flights.has(f.authorization.ID) {
				return Answer{}, errUnconfirmed(f)
			}
			limit.Reset(recordGrace) // whether it is recorded at all will be known soon
		case <-ctx.Done():
			return Answer{}, errCallerLeft(ctx)
		}
	}
}

const (
	// awaitGrace is how long past the scheme's deadline a caller waits for the database to confirm the decision.
	awaitGrace = 2 * time.Second
	// recordGrace is how much longer it waits to hear that nothing was recorded, which the committer says for certain once the
	// database has been away for a while.
	recordGrace = 6 * time.Second
)

func errUnconfirmed(f *flight) error {
	return &Error{Code: CodeOutcomeUnknown, Detail: "the database has not confirmed it yet", Resource: f.authorization.Path()}
}

func errCallerLeft(ctx context.Context) error {
	return &Error{Code: CodeOutcomeUnknown, Detail: "the caller left before the answer", cause: ctx.Err()}
}

// landed is the answer of a flight that is over. One that was certainly not recorded may still repeat an earlier request.
func (g *Gateway) landed(ctx context.Context, call AuthorizeCall, digest []byte, f *flight) (Answer, error) {
	switch {
	case f.lost:
		return g.repeat(ctx, call, digest)
	case f.refused:
		return g.repeatOr(ctx, call, digest, f.err)
	}
	return f.answer, f.err
}

// provisional is the 202 of an authorisation that is still running. One that is not recorded yet has nothing to show, and
// recording is quick, so that much is waited for.
func (g *Gateway) provisional(ctx context.Context, call AuthorizeCall, digest []byte, f *flight) (Answer, error) {
	limit := time.NewTimer(time.Until(f.latest) + awaitGrace + recordGrace)
	defer limit.Stop()
	for !g.flights.has(f.authorization.ID) {
		select {
		case <-f.done:
			return g.landed(ctx, call, digest, f)
		case <-limit.C:
			return Answer{}, errUnconfirmed(f)
		case <-ctx.Done():
			return Answer{}, errCallerLeft(ctx)
		case <-time.After(provisionalPoll):
		}
	}
	return Answer{Status: Pending.answerStatus(), Body: f.authorization.JSON(), Resource: f.authorization.Path()}, nil
}

// provisionalPoll is how often a caller whose patience is over looks whether its authorisation is recorded.
const provisionalPoll = 2 * time.Millisecond

// patience is a channel that fires when the caller's wait is over; never when it named none.
func patience(wait *time.Duration) (<-chan time.Time, func()) {
	if wait == nil {
		return nil, func() {}
	}
	timer := time.NewTimer(*wait)
	return timer.C, func() { timer.Stop() }
}

// repeatOr answers a call that cannot be taken: an earlier one's answer where there is one, else the refusal.
func (g *Gateway) repeatOr(ctx context.Context, call AuthorizeCall, digest []byte, refusal error) (Answer, error) {
	claim, found, err := g.claimFor(ctx, call)
	if err != nil || !found {
		return Answer{}, refusal
	}
	return g.replay(ctx, call, digest, claim)
}

// repeat answers a call whose key or reference is taken. It sends nothing.
func (g *Gateway) repeat(ctx context.Context, call AuthorizeCall, digest []byte) (Answer, error) {
	claim, found, err := g.claimFor(ctx, call)
	if err != nil || !found {
		return Answer{}, Errorf(CodeOutcomeUnknown, err, "the database did not say who holds the key")
	}
	return g.replay(ctx, call, digest, claim)
}

// claimFor reads who holds the call's key or reference; only the reading is bounded, the repeat itself may wait longer.
func (g *Gateway) claimFor(ctx context.Context, call AuthorizeCall) (claimRow, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return selectClaim(ctx, g.db, call.Tenant, endpointAuthorizations, call.IdempotencyKey, call.Request.ClientReference)
}

// replay answers a call from the claim that it repeats.
func (g *Gateway) replay(ctx context.Context, call AuthorizeCall, digest []byte, claim claimRow) (Answer, error) {
	resource := AuthorizationPath(claim.resourceID)
	if isTombstone(claim) {
		g.repeated("reversed_before", call.Tenant, endpointAuthorizations, call.IdempotencyKey, claim.resourceID)
		return Answer{}, &Error{Code: CodeReversedBefore, Detail: "nothing was recorded or sent, and nothing will be under this reference"}
	}
	if claim.idempotencyKey != call.IdempotencyKey {
		g.repeated("duplicate_reference", call.Tenant, endpointAuthorizations, call.IdempotencyKey, claim.resourceID)
		return Answer{}, &Error{Code: CodeDuplicateReference, Resource: resource}
	}
	if !bytes.Equal(claim.digest, digest) {
		g.repeated("key_reuse", call.Tenant, endpointAuthorizations, call.IdempotencyKey, claim.resourceID)
		return Answer{}, &Error{Code: CodeKeyReuse, Detail: "no effect and no answer of the first request"}
	}
	answer, err := g.storedOrRunning(ctx, call, claim.resourceID)
	if err == nil {
		g.repeated("replayed", call.Tenant, endpointAuthorizations, call.IdempotencyKey, claim.resourceID)
		answer.Replayed = true
	}
	return answer, err
}

// storedOrRunning gives the stored answer; while the first request runs, a repeat that said how long it would wait waits
// and may get a 202 of its own, any other gets 409.
func (g *Gateway) storedOrRunning(ctx context.Context, call AuthorizeCall, id uuid.UUID) (Answer, error) {
	patience, stop := patience(call.Wait)
	defer stop()
	for {
		answer, err := g.answerOf(id)
		if !errors.Is(err, errUndecided) {
			return answer, err
		}
		if call.Wait == nil {
			return Answer{}, g.running(ctx, call, id)
		}
		done := g.flights.done(id)
		poll := time.NewTimer(runningPoll) // another daemon may run it
		select {
		case <-done:
		case <-poll.C:
		case <-patience:
			poll.Stop()
			return g.presentOf(ctx, call.Tenant, id)
		case <-ctx.Done():
			poll.Stop()
			return Answer{}, errCallerLeft(ctx)
		}
		poll.Stop()
	}
}

// presentOf is the 202 of an authorisation that is pending, or its stored answer when it was decided a moment ago.
func (g *Gateway) presentOf(ctx context.Context, tenant string, id uuid.UUID) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	a, err := selectAuthorization(ctx, g.db, tenant, id)
	if err != nil || a == nil {
		return Answer{}, &Error{Code: CodeOutcomeUnknown, Resource: AuthorizationPath(id), cause: err}
	}
	if a.State != Pending {
		return g.answerOf(id)
	}
	return Answer{Status: Pending.answerStatus(), Body: a.JSON(), Resource: a.Path()}, nil
}

// runningPoll is how often a waiting repeat looks at an authorisation that another daemon is running.
const runningPoll = 100 * time.Millisecond

// running is the 409 of a repeat; its Retry-After comes from the running authorisation's own deadline.
func (g *Gateway) running(ctx context.Context, call AuthorizeCall, id uuid.UUID) error {
	g.repeated("in_progress", call.Tenant, endpointAuthorizations, call.IdempotencyKey, id)
	seconds := 1
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if a, err := selectAuthorization(ctx, g.db, call.Tenant, id); err == nil && a != nil {
		seconds = max(1, int(time.Until(a.DeadlineAt).Seconds()+1))
	}
	return &Error{Code: CodeInProgress, Resource: AuthorizationPath(id), RetryAfterSeconds: seconds}
}

// beforeRecord turns a failure that certainly left no record into what the client hears.
func beforeRecord(err error) error {
	code := CodeDatabaseUnavailable
	switch {
	case errors.Is(err, errReferencesExhausted):
		code = CodeReferenceExhausted
	case errors.Is(err, commit.ErrNotTaken), errors.Is(err, context.DeadlineExceeded):
		code = CodeOverloaded // the wait for a free number or a place in the queue outlasted the time to send
	}
	return &Error{Code: code, RetryAfterSeconds: 1, cause: err}
}
