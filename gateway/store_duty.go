package gateway

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// resolveStep writes down what one attempt of a duty came to: the duty's state and schedule, the authorisation's state, its money,
// history, journal line and the exception for a person, in one statement. Of two results of one duty in a batch an
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

	won       bool // the duty moved: closed, suspended or rescheduled
	state     reversal.State
	ledgerHit bool // the ledger's own guard fired: a bug upstream
}

func (*resolveStep) Kind() *commit.Kind { return resolveDutyKind }

func lessResolve(a, b commit.Step) bool {
	return lessID(a.(*resolveStep).duty.ID, b.(*resolveStep).duty.ID)
}

// refused and unbuildable end the kinds of exception about a duty, after its own kind.
const (
	refused                = "_refused"
	unbuildable            = "_unbuildable"
	exceptionContradiction = "answer_contradicts_decision"
)

// resolveSQL moves the duties first; the authorisation and its money follow from those that were acknowledged by this statement,
// each of which is acknowledged once.
var resolveSQL = `
WITH u AS (
	SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int4[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::bool[],
		$9::uuid[], $10::text[], $11::text[], $12::uuid[], $13::text[], $14::text[], $15::bytea[], $16::text[],
		$17::timestamptz[], $18::text[], $19::int2[])
	WITH ORDINALITY AS u(id, authorization_id, attempt, outcome, response_code, next_at, at, attention,
		exception_id, exception_kind, detail, message_id, message_mti, image, message_digest, message_kind, claimed_until, stan, capture_number, ordinal)
), first AS (
	SELECT DISTINCT ON (id) * FROM u ORDER BY id, outcome NOT IN ('acknowledged', 'nothing_to_undo'), attempt DESC, claimed_until DESC NULLS LAST, ordinal
), resolved AS (
	` + reversal.ResolveFrom("first", "$1::uuid[]") + `
), history AS (
	INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, response_code, at)
	SELECT id, state_version, kind, from_state, state, outcome, response_code, at FROM resolved WHERE state <> from_state
), undone AS (
	SELECT r.*, f.capture_number, r.number = 0 AS whole, r.number > 0 AND r.undoes IS NULL AS part
	FROM resolved r JOIN first f ON f.id = r.id WHERE r.kind = 'reversal' AND r.outcome IN ('acknowledged', 'nothing_to_undo')
), total AS (
	SELECT authorization_id AS id, bool_or(whole) AS whole, bool_or(part) AS part, max(at) AS at,
		coalesce(sum(amount_minor) FILTER (WHERE undoes IS NOT NULL), 0)::int8 AS returned_minor
	FROM undone GROUP BY authorization_id
), was AS MATERIALIZED (
	SELECT a.id, a.state, a.amount_minor, a.approved_minor, a.captured_minor, a.reversed_minor, ` + effectSQL + ` AS effect
	FROM card_authorization a WHERE a.id = ANY($2::uuid[]) AND a.id IN (SELECT id FROM total) FOR NO KEY UPDATE
), moved AS (
	UPDATE card_authorization a SET state = CASE
			WHEN t.whole AND w.state IN ('timed_out', 'approved') THEN 'reversed'
			WHEN t.part AND w.state = 'approved' AND w.captured_minor + w.reversed_minor = w.approved_minor AND NOT EXISTS (
				SELECT FROM duty d WHERE d.authorization_id = a.id AND d.kind = 'reversal' AND d.undoes IS NULL AND d.state <> 'acknowledged' AND d.id NOT IN (SELECT id FROM undone))
			THEN CASE WHEN w.captured_minor > 0 THEN 'captured' ELSE 'reversed' END
			ELSE w.state END,
		returned_minor = a.returned_minor + t.returned_minor, state_version = a.state_version + 1, updated_at = greatest(t.at, a.updated_at)
	FROM total t JOIN was w ON w.id = t.id WHERE a.id = ANY($2::uuid[]) AND a.id = t.id
	RETURNING a.id, a.state, a.state_version, a.tenant, a.client_reference, a.rrn, a.currency, a.customer_account, a.settlement_account, a.settlement_date,
		a.updated_at, w.state AS from_state, w.effect, w.amount_minor, w.approved_minor - w.captured_minor - w.reversed_minor AS rest_minor
), moved_history AS (
	INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
	SELECT id, state_version, 'authorization', from_state, state, 'reversal_acknowledged', updated_at FROM moved
), release AS (
	SELECT m.id, CASE WHEN k.part THEN k.number + ` + int2Literal(releaseOfDuty) + ` WHEN m.from_state = 'timed_out' THEN ` + int2Literal(releaseAtDecision) + ` ELSE ` + int2Literal(releaseOfRest) + ` END AS number,
		CASE WHEN k.part THEN k.amount_minor WHEN m.from_state = 'timed_out' THEN m.amount_minor ELSE m.rest_minor END AS amount_minor
	FROM moved m JOIN undone k ON k.authorization_id = m.id
	WHERE k.part OR (k.whole AND ((m.from_state = 'timed_out' AND m.effect IN ('holds', 'debits')) OR (m.from_state = 'approved' AND m.effect = 'holds')))
), mirrored AS (
	SELECT p.*, m.updated_at FROM moved m JOIN undone k ON k.authorization_id = m.id
	JOIN ledger_posting p ON p.intent = ANY($2::uuid[]) AND p.intent = m.id AND (
		(k.whole AND m.from_state = 'approved' AND m.effect IN ('debits', 'credits') AND p.transaction = ` + int2Literal(transactionOwn) + ` AND p.step IN (` + int2Literal(ledger.Debit) + `, ` + int2Literal(ledger.Return) + `))
		OR (k.whole AND k.reopened > 0 AND p.transaction = ` + int2Literal(transactionUnheld) + ` AND p.step IN (` + int2Literal(ledger.Debit) + `, ` + int2Literal(ledger.Return) + `))
		OR (k.undoes IS NOT NULL AND p.transaction = ` + int2Literal(transactionOwn) + ` AND p.step = ` + int2Literal(ledger.Debit) + ` AND p.number = k.capture_number))
), postings AS (
	SELECT r.id AS intent, 0::int2 AS transaction, ` + int2Literal(ledger.Release) + ` AS step, r.number::int2 AS number, ` + int2Literal(ledger.Pending) + ` AS layer,
		m.settlement_account AS debit_account, m.customer_account AS credit_account, r.amount_minor, m.currency::text AS currency,
		coalesce(m.settlement_date, (m.updated_at AT TIME ZONE 'UTC')::date) AS value_date, m.updated_at AS booked_at, m.rrn AS source_ref, false AS correction, m.tenant, m.client_reference
	FROM release r JOIN moved m ON m.id = r.id WHERE r.amount_minor > 0
	UNION ALL
	SELECT intent, transaction, ` + int2Literal(ledger.Compensate) + `, (number * 10 + step)::int2, layer, credit_account, debit_account, amount_minor, currency::text,
		(updated_at AT TIME ZONE 'UTC')::date, updated_at, source_ref, true, tenant, client_reference FROM mirrored
), posted AS (
	` + ledger.PostFrom("postings") + `
), journal AS (
	INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, attempt, response_code, image, digest)
	SELECT u.message_id, u.at, a.link, 'in', CASE WHEN resolved.id IS NULL OR u.ordinal <> first.ordinal THEN 'late' ELSE u.message_kind END, u.message_mti,
		coalesce(u.stan, a.stan), a.rrn, a.id, u.attempt, u.response_code, u.image, u.message_digest
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
	SELECT opened_at, tenant, split_part(kind, '_', 1) || '.needs_attention', subject_id, kind FROM opened
), closed AS (
	UPDATE exception e SET closed_at = r.at FROM resolved r
	WHERE r.state = 'acknowledged' AND e.subject_id = ANY($1::uuid[]) AND e.subject_id = r.id AND e.closed_at IS NULL
)
SELECT first.ordinal, resolved.state, EXISTS (SELECT FROM postings s WHERE s.intent = resolved.authorization_id AND NOT EXISTS (
	SELECT FROM posted p WHERE p.intent = s.intent AND p.transaction = s.transaction AND p.step = s.step AND p.number = s.number))
FROM resolved JOIN first ON first.id = resolved.id`

func queueResolutions(batch *pgx.Batch, steps []commit.Step) {
	for _, step := range steps {
		s := step.(*resolveStep)
		s.won, s.ledgerHit, s.state = false, false, ""
	}
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
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.message().kind) }),
		column(steps, func(s *resolveStep) pgtype.Timestamptz { return pgTime(s.duty.NextAt) }),
		column(steps, func(s *resolveStep) pgtype.Text { return pgTextOrNull(s.duty.STAN) }),
		column(steps, func(s *resolveStep) pgtype.Int2 { return pgtype.Int2{Int16: s.captureNumber(), Valid: true} }),
	).Query(func(rows pgx.Rows) error {
		var ordinal int64
		var state reversal.State
		var hit bool
		_, err := pgx.ForEachRow(rows, []any{&ordinal, &state, &hit}, func() error {
			s := steps[ordinal-1].(*resolveStep)
			s.won, s.state, s.ledgerHit = true, state, hit
			return nil
		})
		return err
	})
}

// captureNumber is the number of the capture that a reversal undoes, 0 where it undoes none.
func (s *resolveStep) captureNumber() int16 {
	if s.duty.Undoes == nil {
		return 0
	}
	return s.duty.Undoes.Number
}

func (s *resolveStep) message() journalRow {
	if s.response == nil {
		return journalRow{}
	}
	return *s.response
}
