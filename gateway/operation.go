package gateway

import (
	"bytes"
	"context"
	"errors"
	"path"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// The endpoint parts of the claims of requests about an authorisation that is there already.
const (
	endpointCaptures  = "captures"
	endpointReversals = "reversals"
	endpointLinks     = "links"
)

// operation is one request about an authorisation that is there already: a capture, a reversal. Its effect is rows alone; what has
// to be sent for it is a duty among them. So claim, effect and answer commit in one transaction, and the answer is final at once.
type operation struct {
	tenant         string
	endpoint       string
	idempotencyKey string
	reference      string // the client's own name for it, unique for ever; the key where the route has none
	digest         []byte
}

// effectOf does an operation's work in tx and gives its answer. An *Error refuses: nothing stays, the claim included.
type effectOf func(ctx context.Context, tx pgx.Tx, now time.Time) (Answer, error)

const (
	// operationTries bounds how often a transaction that lost against another is begun again.
	operationTries = 5
	operationPause = 10 * time.Millisecond
)

// operate claims the key, does the work and stores the answer, all or nothing. A repeat gets the stored answer. It ends within
// readTimeout; a caller that leaves does not end it, since a cancelled COMMIT would leave its outcome unknown.
func (g *Gateway) operate(ctx context.Context, op operation, work effectOf) (Answer, error) {
	select {
	case <-g.ready:
	default:
		return Answer{}, &Error{Code: CodeShuttingDown, RetryAfterSeconds: 1}
	}
	switch ok, full := g.inFlight.take(); {
	case full:
		return Answer{}, &Error{Code: CodeOverloaded, RetryAfterSeconds: 1}
	case !ok:
		return Answer{}, &Error{Code: CodeShuttingDown, RetryAfterSeconds: 1}
	}
	defer g.inFlight.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	for try := 1; ; try++ {
		answer, repeat, err := g.operateOnce(ctx, op, work)
		switch {
		case repeat:
			return g.replayOperation(ctx, op)
		case err == nil:
			return answer, nil
		case isConflict(err) && try < operationTries:
			time.Sleep(operationPause)
		default:
			return Answer{}, err
		}
	}
}

// errRepeat ends a transaction whose claim belongs to an earlier request.
var errRepeat = errors.New("the claim is held")

func (g *Gateway) operateOnce(ctx context.Context, op operation, work effectOf) (answer Answer, repeat bool, err error) {
	tx, err := g.db.Begin(ctx)
	if err != nil {
		return Answer{}, false, &Error{Code: CodeDatabaseUnavailable, RetryAfterSeconds: 1, cause: err}
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	answer, err = g.operateIn(ctx, tx, op, work)
	var refusal *Error
	switch {
	case errors.Is(err, errRepeat):
		return Answer{}, true, nil
	case errors.As(err, &refusal), isConflict(err):
		return Answer{}, false, err
	case err != nil:
		g.log.Error("request not carried out", zap.String("endpoint", op.endpoint), zap.Error(err))
		return Answer{}, false, &Error{Code: CodeDatabaseUnavailable, RetryAfterSeconds: 1, cause: err}
	}
	if err := tx.Commit(ctx); err != nil {
		if isConflict(err) {
			return Answer{}, false, err
		}
		return Answer{}, false, &Error{Code: CodeOutcomeUnknown, Detail: "the database did not confirm the commit", cause: err}
	}
	return answer, false, nil
}

func (g *Gateway) operateIn(ctx context.Context, tx pgx.Tx, op operation, work effectOf) (Answer, error) {
	now := g.now()
	won, err := insertClaim(ctx, tx, op, newID(), now)
	if err != nil {
		return Answer{}, err
	}
	if !won {
		return Answer{}, errRepeat
	}
	answer, err := work(ctx, tx, now)
	if err != nil {
		return Answer{}, err
	}
	return answer, insertAnswer(ctx, tx, op, answer)
}

// replayOperation answers a request whose key or reference is taken.
func (g *Gateway) replayOperation(ctx context.Context, op operation) (Answer, error) {
	claim, found, err := selectClaim(ctx, g.db, op.tenant, op.endpoint, op.idempotencyKey, op.reference)
	if err != nil || !found {
		return Answer{}, Errorf(CodeOutcomeUnknown, err, "the database did not say who holds the key")
	}
	answer, err := selectStoredAnswer(ctx, g.db, op.tenant, op.endpoint, claim.idempotencyKey)
	if err != nil {
		return Answer{}, Errorf(CodeOutcomeUnknown, err, "the database did not give the answer")
	}
	switch {
	case claim.idempotencyKey != op.idempotencyKey:
		g.repeated("duplicate_reference", op.tenant, op.endpoint, op.idempotencyKey, originalOf(answer, claim))
		return Answer{}, &Error{Code: CodeDuplicateReference, Resource: answer.Resource}
	case !bytes.Equal(claim.digest, op.digest):
		g.repeated("key_reuse", op.tenant, op.endpoint, op.idempotencyKey, originalOf(answer, claim))
		return Answer{}, &Error{Code: CodeKeyReuse, Detail: "no effect and no answer of the first request"}
	case answer.Body == nil:
		return Answer{}, &Error{Code: CodeAnswerExpired, Resource: answer.Resource}
	}
	g.repeated("replayed", op.tenant, op.endpoint, op.idempotencyKey, originalOf(answer, claim))
	answer.Replayed = true
	return answer, nil
}

// originalOf is what a repeat repeats: the duty that its answer's resource names, else the claim's own id.
func originalOf(answer Answer, claim claimRow) uuid.UUID {
	if id, err := uuid.Parse(path.Base(answer.Resource)); err == nil {
		return id
	}
	return claim.resourceID
}

// isConflict tells a transaction that lost against another one and may be begun again.
func isConflict(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == "40001" || refused.Code == "40P01")
}

// resourceOf is the path that an operation's answer speaks of.
func resourceOf(authorization uuid.UUID, collection string, id uuid.UUID) string {
	return AuthorizationPath(authorization) + "/" + collection + "/" + id.String()
}
