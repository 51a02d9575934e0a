package gateway

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// decideStep takes an authorisation out of pending: state, money, history, journal line, duty and the caller's answer in one
// statement. Whoever comes second (a sweep, another daemon, a late answer) moves nothing; its answer is then kept as a late one.
type decideStep struct {
	authorization *Authorization // as it will stand: state, codes, Reversal
	release       int64          // minor units of the hold to let go, 0 for none
	debit         int64          // minor units that a financial approval moves from the customer
	credit        int64          // minor units that a refund moves towards the customer
	owed          *reversal.Duty // the reversal owed by a timed-out authorisation, nil for none
	response      *journalRow    // the answer that decided it, nil when there was none
	answerStatus  int
	answerBody    []byte

	won       bool // the authorisation was pending and is now as above
	ledgerHit bool // the ledger's own guard fired: a bug upstream
}

func (*decideStep) Kind() *commit.Kind { return decideKind }

func lessDecide(a, b commit.Step) bool {
	return lessID(a.(*decideStep).authorization.ID, b.(*decideStep).authorization.ID)
}

// decideStatement names the rows by an array as well as by the join, so that the plan probes the primary key whatever the
// statistics say. Starting a plan costs by its nodes, so a batch in which nothing is owed does without those of the reversal, and
// one that posts nothing without those of the posted layer.
func decideStatement(owes, posts bool) string {
	arrays, columns, set, returned, postings, hit := "", "", "", "", "", `moved.release_minor > 0 AND posted.intent IS NULL`
	from := `moved LEFT JOIN posted ON posted.intent = moved.id`
	if posts {
		arrays, columns = ", $20::int8[], $21::int8[], $22::text[]", ", debit_minor, credit_minor, additional_amounts"
		set, returned = `, captured_minor = u.debit_minor, additional_amounts = u.additional_amounts`, `, u.debit_minor, u.credit_minor`
		postings = `
	UNION ALL ` + postingOf(ledger.Debit, ledger.Posted, "customer_account", "settlement_account", "debit_minor") + `
	UNION ALL ` + postingOf(ledger.Return, ledger.Posted, "settlement_account", "customer_account", "credit_minor")
		hit = `EXISTS (SELECT FROM release r WHERE r.intent = moved.id AND NOT EXISTS (SELECT FROM posted p WHERE p.intent = r.intent AND p.step = r.step))`
		from = `moved`
	}
	statement := `
WITH u AS (
	SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int8[], $7::timestamptz[], $8::int2[], $9::bytea[],
		$10::int8[], $11::uuid[], $12::timestamptz[], $13::uuid[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::text[], $19::text[]` + arrays + `)
	AS u(id, to_state, reason, response_code, approval_code, approved_minor, updated_at, answer_status, answer_body,
		release_minor, reversal_id, reversal_next_at, message_id, message_kind, message_mti, image, message_digest, note, message_response_code` + columns + `)
), moved AS (
	UPDATE card_authorization a SET state = u.to_state, state_version = a.state_version + 1, reason = u.reason,
		response_code = u.response_code, approval_code = u.approval_code, approved_minor = u.approved_minor,
		updated_at = u.updated_at, answer_status = u.answer_status, answer_body = u.answer_body` + set + `
	FROM u WHERE a.id = ANY($1::uuid[]) AND a.id = u.id AND a.state = 'pending'
	RETURNING a.id, a.state_version, a.state, a.reason, a.response_code, a.updated_at, a.tenant, a.client_reference, a.link, a.stan, a.rrn,
		a.currency, a.customer_account, a.settlement_account, a.settlement_date, u.release_minor, u.reversal_id, u.reversal_next_at,
		u.message_id, u.message_kind, u.message_mti, u.image, u.message_digest, u.note, u.message_response_code` + returned + `
), history AS (
	INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, response_code, at)
	SELECT id, state_version, 'authorization', 'pending', state, reason, response_code, updated_at FROM moved
), release AS (
	` + postingOf(ledger.Release, ledger.Pending, "settlement_account", "customer_account", "release_minor") + postings + `
), posted AS (
	` + ledger.PostFrom("release") + `
), journal AS (
	INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, response_code, image, digest, note)
	SELECT message_id, updated_at, link, 'in', message_kind, message_mti, stan, rrn, id, message_response_code, image, message_digest, note
	FROM moved WHERE message_id IS NOT NULL
)`
	if owes {
		statement += `, owing AS (
	SELECT reversal_id AS id, id AS authorization_id, tenant, link, reason, reversal_next_at AS next_at, updated_at AS at
	FROM moved WHERE reversal_id IS NOT NULL
), owed AS (
	` + reversal.OweFrom("owing") + `
), owed_history AS (
	INSERT INTO state_history (subject_id, state_version, subject, to_state, reason, at)
	SELECT id, 1, 'reversal', 'owed', reason, created_at FROM owed
)`
	}
	return statement + `
SELECT moved.id, ` + hit + ` FROM ` + from
}

// postingOf selects one posting of a decision from the rows it moved, where its amount is above nothing.
func postingOf(step ledger.Step, layer ledger.Layer, debit, credit, amount string) string {
	return `SELECT id AS intent, 0::int2 AS transaction, ` + int2Literal(step) + ` AS step, 1::int2 AS number, ` + int2Literal(layer) + ` AS layer,
		` + debit + ` AS debit_account, ` + credit + ` AS credit_account, ` + amount + ` AS amount_minor, currency,
		coalesce(settlement_date, (updated_at AT TIME ZONE 'UTC')::date) AS value_date, updated_at AS booked_at, rrn AS source_ref,
		false AS correction, tenant, client_reference
	FROM moved WHERE ` + amount + ` > 0`
}

// decideSQL is the statement by whether a batch owes reversals and whether it posts.
var decideSQL = map[[2]bool]string{
	{false, false}: decideStatement(false, false), {true, false}: decideStatement(true, false),
	{false, true}: decideStatement(false, true), {true, true}: decideStatement(true, true),
}

// decisive leaves one step for each authorisation: where a giving-up and an answer meet in one batch, the answer decides, else
// the first. The others have lost, and their callers hear what was decided.
func decisive(steps []commit.Step) (chosen []commit.Step, byID map[uuid.UUID]*decideStep) {
	byID = make(map[uuid.UUID]*decideStep, len(steps))
	for _, step := range steps {
		s := step.(*decideStep)
		s.won, s.ledgerHit = false, false
		if first := byID[s.authorization.ID]; first == nil || first.response == nil && s.response != nil {
			byID[s.authorization.ID] = s
		}
	}
	if len(byID) == len(steps) {
		return steps, byID
	}
	for _, step := range steps {
		if s := step.(*decideStep); byID[s.authorization.ID] == s {
			chosen = append(chosen, step)
		}
	}
	return chosen, byID
}

func queueDecisions(batch *pgx.Batch, steps []commit.Step) {
	steps, byID := decisive(steps)
	owes := slices.ContainsFunc(steps, func(step commit.Step) bool { return step.(*decideStep).owed != nil })
	posts := slices.ContainsFunc(steps, func(step commit.Step) bool { return step.(*decideStep).posts() })
	arguments := []any{
		column(steps, func(s *decideStep) pgtype.UUID { return pgUUID(s.authorization.ID) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgText(string(s.authorization.State)) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.authorization.Reason) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.authorization.ResponseCode) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.authorization.ApprovalCode) }),
		column(steps, func(s *decideStep) pgtype.Int8 { return pgInt8OrNull(s.authorization.ApprovedMinor) }),
		column(steps, func(s *decideStep) pgtype.Timestamptz { return pgTime(s.authorization.UpdatedAt) }),
		column(steps, func(s *decideStep) pgtype.Int2 { return pgtype.Int2{Int16: int16(s.answerStatus), Valid: true} }),
		column(steps, func(s *decideStep) []byte { return s.answerBody }),
		column(steps, func(s *decideStep) pgtype.Int8 { return pgInt8(s.release) }),
		column(steps, func(s *decideStep) pgtype.UUID { return pgUUID(s.duty().ID) }),
		column(steps, func(s *decideStep) pgtype.Timestamptz { return pgTime(s.duty().NextAt) }),
		column(steps, func(s *decideStep) pgtype.UUID { return pgUUID(s.message().id) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgText(s.message().kind) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.message().mti) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgText(s.message().image) }),
		column(steps, func(s *decideStep) []byte { return s.message().digest }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.message().note) }),
		column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.message().responseCode) }),
	}
	if posts {
		arguments = append(arguments,
			column(steps, func(s *decideStep) pgtype.Int8 { return pgInt8(s.debit) }),
			column(steps, func(s *decideStep) pgtype.Int8 { return pgInt8(s.credit) }),
			column(steps, func(s *decideStep) pgtype.Text { return pgTextOrNull(s.authorization.AdditionalAmounts) }))
	}
	batch.Queue(decideSQL[[2]bool{owes, posts}], arguments...).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var hit bool
		_, err := pgx.ForEachRow(rows, []any{&id, &hit}, func() error {
			byID[id].won, byID[id].ledgerHit = true, hit
			return nil
		})
		return err
	})
}

// posts tells whether the decision is more than the end of a hold.
func (s *decideStep) posts() bool {
	return s.debit != 0 || s.credit != 0 || s.authorization.AdditionalAmounts != ""
}

// duty is the reversal owed, or the zero value when none is.
func (s *decideStep) duty() reversal.Duty {
	if s.owed == nil {
		return reversal.Duty{}
	}
	return *s.owed
}

func (s *decideStep) message() journalRow {
	if s.response == nil {
		return journalRow{}
	}
	return *s.response
}

// decision prepares the step that leaves the authorisation in its new state; it fills in the answer the caller will get.
func decision(a *Authorization, event Event, now time.Time) (*decideStep, error) {
	to, err := next(a.State, event)
	if err != nil {
		return nil, err
	}
	moved := *a
	moved.State, moved.StateVersion, moved.UpdatedAt = to, a.StateVersion+1, now
	step := &decideStep{authorization: &moved}
	if to == Declined || to == NotSent {
		step.release = a.held()
	}
	return step, nil
}

// seal fixes the caller's answer; nothing of the authorisation may change afterwards.
func (s *decideStep) seal() *decideStep {
	s.answerStatus, s.answerBody = s.authorization.answer()
	return s
}
