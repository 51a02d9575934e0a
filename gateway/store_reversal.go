package gateway

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// resolveStep writes down what one attempt of a reversal came to: the duty's state and schedule, the authorisation's state,
// the hold, history, journal line and the exception for a person, in one statement. Of two results of one duty in a batch an
// acknowledgement decides, else the later claim; the other's message is kept as a late one.
type resolveStep struct {
	duty         reversal.Duty
	outcome      reversal.Outcome
	responseCode string
	nextAt       time.Time
	at           time.Time
	attention    bool
	exception    string // kind of exception to open when attention is asked for
	detail       string // why, for the person
	response     *journalRow

	won        bool // the duty moved: closed, suspended or rescheduled
	state      reversal.State
	releaseHit bool // the ledger's own guard fired: a bug upstream
}

func (*resolveStep) Kind() *commit.Kind { return resolveReversalKind }

func lessResolve(a, b commit.Step) bool {
	return lessID(a.(*resolveStep).duty.ID, b.(*resolveStep).duty.ID)
}

// The kinds of exception of this path.
const (
	exceptionUnacknowledged = reversal.ExceptionUnacknowledged
	exceptionRefused        = "reversal_refused"
	exceptionUnbuildable    = "reversal_unbuildable"
	exceptionContradiction  = "answer_contradicts_decision"
)

var resolveSQL = `
WITH u AS (
	SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int4[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::bool[],
		$9::uuid[], $10::text[], $11::text[], $12::uuid[], $13::text[], $14::text[], $15::bytea[], $17::text[],
		$18::timestamptz[])
	WITH ORDINALITY AS u(id, authorization_id, attempt, outcome, response_code, next_at, at, attention,
		exception_id, exception_kind, detail, message_id, message_mti, image, message_digest, message_kind, claimed_until, ordinal)
), first AS (
	SELECT DISTINCT ON (id) * FROM u ORDER BY id, outcome <> 'acknowledged', attempt DESC, claimed_until DESC NULLS LAST, ordinal
), resolved AS (
	` + reversal.ResolveFrom("first", "$1::uuid[]") + `
), history AS (
	INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, response_code, at)
	SELECT id, state_version, 'reversal', from_state, state, outcome, response_code, at FROM resolved WHERE outcome IN ('acknowledged', 'refused')
), reversed AS (
	UPDATE card_authorization a SET state = 'reversed', state_version = a.state_version + 1, updated_at = r.at
	FROM resolved r WHERE a.id = ANY($2::uuid[]) AND a.id = r.authorization_id AND r.state = 'acknowledged' AND a.state = 'timed_out'
	RETURNING a.id, a.state_version, a.tenant, a.client_reference, a.rrn, a.currency, a.amount_minor, a.customer_account, a.settlement_account, a.updated_at
), reversed_history AS (
	INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
	SELECT id, state_version, 'authorization', 'timed_out', 'reversed', 'reversal_acknowledged', updated_at FROM reversed
), release AS (
	SELECT id AS intent, 0::int2 AS transaction, ` + int2Literal(ledger.Release) + ` AS step, 1::int2 AS number, ` + int2Literal(ledger.Pending) + ` AS layer,
		settlement_account AS debit_account, customer_account AS credit_account, amount_minor, currency,
		(updated_at AT TIME ZONE 'UTC')::date AS value_date, updated_at AS booked_at, rrn AS source_ref, false AS correction, tenant, client_reference
	FROM reversed
), posted AS (
	` + ledger.PostFrom("release") + `
), journal AS (
	INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, attempt, response_code, image, digest)
	SELECT u.message_id, u.at, a.link, 'in', CASE WHEN resolved.id IS NULL OR u.ordinal <> first.ordinal THEN 'late' ELSE u.message_kind END, u.message_mti,
		a.stan, a.rrn, a.id, u.attempt, u.response_code, u.image, u.message_digest
	FROM u JOIN first ON first.id = u.id JOIN card_authorization a ON a.id = ANY($2::uuid[]) AND a.id = u.authorization_id
	LEFT JOIN resolved ON resolved.id = u.id
	WHERE u.message_id IS NOT NULL
	ON CONFLICT DO NOTHING
), opened AS (
	INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
	SELECT u.exception_id, u.exception_kind, r.tenant, r.link, r.id, u.detail, r.at
	FROM first u JOIN resolved r ON r.id = u.id WHERE u.attention AND u.exception_kind IS NOT NULL
	ON CONFLICT (kind, subject_id) WHERE closed_at IS NULL DO NOTHING
	RETURNING tenant, subject_id, kind, opened_at
), called AS (
	INSERT INTO event (at, tenant, kind, subject_id, detail)
	SELECT opened_at, tenant, 'reversal.needs_attention', subject_id, kind FROM opened
), closed AS (
	UPDATE exception e SET closed_at = r.at FROM resolved r
	WHERE r.state = 'acknowledged' AND e.subject_id = ANY($1::uuid[]) AND e.subject_id = r.id AND e.closed_at IS NULL AND e.kind = ANY($16::text[])
)
SELECT first.ordinal, resolved.state, reversed.id IS NOT NULL AND posted.intent IS NULL
FROM resolved JOIN first ON first.id = resolved.id LEFT JOIN reversed ON reversed.id = resolved.authorization_id LEFT JOIN posted ON posted.intent = reversed.id`

func queueResolutions(batch *pgx.Batch, steps []commit.Step) {
	for _, step := range steps {
		s := step.(*resolveStep)
		s.won, s.releaseHit, s.state = false, false, ""
	}
	kinds := pgtype.FlatArray[string]{exceptionUnacknowledged, exceptionRefused, exceptionUnbuildable}
	batch.Queue(resolveSQL,
		column(steps, func(s *resolveStep) pgtype.UUID { return pgUUID(s.duty.ID) }),
		column(steps, func(s *resolveStep) pgtype.UUID { return pgUUID(s.duty.AuthorizationID) }),
		column(steps, func(s *resolveStep) pgtype.Int4 { return pgInt4(s.duty.Attempt) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgText(string(s.outcome)) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.responseCode) }),
		column(steps, func(s *resolveStep) pgtype.Timestamptz { return pgTime(s.nextAt) }),
		column(steps, func(s *resolveStep) pgtype.Timestamptz { return pgTime(s.at) }),
		column(steps, func(s *resolveStep) pgtype.Bool { return pgtype.Bool{Bool: s.attention, Valid: true} }),
		column(steps, func(s *resolveStep) pgtype.UUID { return pgUUID(newID()) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.exception) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgText(s.detail) }),
		column(steps, func(s *resolveStep) pgtype.UUID { return pgUUID(s.message().id) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.message().mti) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgText(s.message().image) }),
		column(steps, func(s *resolveStep) []byte { return s.message().digest }),
		kinds,
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.message().kind) }),
		column(steps, func(s *resolveStep) pgtype.Timestamptz { return pgTime(s.duty.NextAt) }),
	).Query(func(rows pgx.Rows) error {
		var ordinal int64
		var state reversal.State
		var hit bool
		_, err := pgx.ForEachRow(rows, []any{&ordinal, &state, &hit}, func() error {
			s := steps[ordinal-1].(*resolveStep)
			s.won, s.state, s.releaseHit = true, state, hit
			return nil
		})
		return err
	})
}

func (s *resolveStep) message() journalRow {
	if s.response == nil {
		return journalRow{}
	}
	return *s.response
}
