package gateway

import (
	"bytes"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/ledger"
)

// The kinds of step that go through the group committer. Within one transaction records come first, so that a decision in
// the same batch finds its row.
var (
	recordKind      = &commit.Kind{Name: "record", Order: 1, Less: lessRecord, Queue: queueRecords}
	decideKind      = &commit.Kind{Name: "decide", Order: 2, Less: lessDecide, Queue: queueDecisions}
	resolveDutyKind = &commit.Kind{Name: "resolve_duty", Order: 3, Less: lessResolve, Queue: queueResolutions}
	noteKind        = &commit.Kind{Name: "note", Order: 4, Less: lessNote, Queue: queueNotes}
	duplicateKind   = &commit.Kind{Name: "duplicate", Order: 5, Less: lessDuplicate, Queue: queueDuplicates}
)

// recordStep claims the idempotency key and the client reference, and records the intent with its hold: the row exists,
// with STAN and deadline, before its first byte leaves.
type recordStep struct {
	authorization  *Authorization
	endpoint       string
	idempotencyKey string
	digest         []byte
	request        journalRow

	won bool // the claim is ours
}

func (*recordStep) Kind() *commit.Kind { return recordKind }

func lessRecord(a, b commit.Step) bool {
	x, y := a.(*recordStep), b.(*recordStep)
	if x.authorization.Tenant != y.authorization.Tenant {
		return x.authorization.Tenant < y.authorization.Tenant
	}
	return x.idempotencyKey < y.idempotencyKey
}

// journalRow is one message of the journal on its way into the table.
type journalRow struct {
	id           uuid.UUID
	at           time.Time
	kind         string
	mti          string
	responseCode string
	image        string
	digest       []byte
	note         string
	attempt      int32
}

// The kinds of a journal row.
const (
	messageRequest   = "request"
	messageResponse  = "response"
	messageLate      = "late"
	messageUnmatched = "unmatched"
	messageMalformed = "malformed"
	messageMismatch  = "mismatch"
	messageDuplicate = "duplicate"
)

// recordSQL decides everything a client can cause by ON CONFLICT: a losing claim inserts nothing further. A hold that the ledger
// already has fails the record instead: the reference has had its effect, and nothing may be sent for it again.
var recordSQL = `
WITH u AS (
	SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::text[],
		$10::text[], $11::text[], $12::text[], $13::text[], $14::int8[], $15::text[], $16::text[], $17::bytea[], $18::text[], $19::bytea[],
		$20::text[], $21::int4[], $22::int4[], $23::int8[], $24::timestamptz[], $25::timestamptz[], $26::uuid[], $27::text[], $28::bytea[], $29::date[])
	AS u(id, tenant, endpoint, idempotency_key, client_reference, digest, order_reference, link, type,
		mti, stan, rrn, transmission_date_time, amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash,
		elements, customer_account, settlement_account, owner_epoch, created_at, deadline_at, message_id, image, message_digest, settlement_date)
), claim AS (
	INSERT INTO idempotency_claim (tenant, endpoint, idempotency_key, client_reference, digest, resource_id, claimed_at)
	SELECT tenant, endpoint, idempotency_key, client_reference, digest, id, created_at FROM u
	ON CONFLICT DO NOTHING RETURNING resource_id
), won AS (
	SELECT u.* FROM u JOIN claim ON claim.resource_id = u.id
), recorded AS (
	INSERT INTO card_authorization (id, tenant, client_reference, order_reference, link, type, state, state_version, mti, stan, rrn,
		transmission_date_time, amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account,
		settlement_account, owner_epoch, created_at, deadline_at, updated_at, settlement_date)
	SELECT id, tenant, client_reference, order_reference, link, type, 'pending', 1, mti, stan, rrn,
		transmission_date_time, amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account,
		settlement_account, owner_epoch, created_at, deadline_at, created_at, settlement_date FROM won
), history AS (
	INSERT INTO state_history (subject_id, state_version, subject, to_state, at)
	SELECT id, 1, 'authorization', 'pending', created_at FROM won
), journal AS (
	INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, image, digest)
	SELECT message_id, created_at, link, 'out', 'request', mti, stan, rrn, id, image, message_digest FROM won
), hold AS (
	SELECT id AS intent, 0::int2 AS transaction, ` + int2Literal(ledger.Hold) + ` AS step, 1::int2 AS number, ` + int2Literal(ledger.Pending) + ` AS layer,
		customer_account AS debit_account, settlement_account AS credit_account, amount_minor, currency,
		coalesce(settlement_date, (created_at AT TIME ZONE 'UTC')::date) AS value_date, created_at AS booked_at, rrn AS source_ref, false AS correction, tenant, client_reference
	FROM won WHERE type NOT IN (` + withoutHold + `)
), posted AS (
	` + ledger.InsertFrom("hold") + `
)
SELECT resource_id FROM claim`

func queueRecords(batch *pgx.Batch, steps []commit.Step) {
	byID := make(map[uuid.UUID]*recordStep, len(steps))
	for _, step := range steps {
		s := step.(*recordStep)
		s.won = false
		byID[s.authorization.ID] = s
	}
	batch.Queue(recordSQL,
		column(steps, func(s *recordStep) pgtype.UUID { return pgUUID(s.authorization.ID) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.Tenant) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.endpoint) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.idempotencyKey) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.ClientReference) }),
		column(steps, func(s *recordStep) []byte { return s.digest }),
		column(steps, func(s *recordStep) pgtype.Text { return pgTextOrNull(s.authorization.OrderReference) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.Link) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(string(s.authorization.Type)) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.MTI) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.STAN) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.RRN) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.TransmissionDateTime) }),
		column(steps, func(s *recordStep) pgtype.Int8 { return pgInt8(s.authorization.AmountMinor) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.Currency) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.PANMasked) }),
		column(steps, func(s *recordStep) []byte { return s.authorization.PANSealed }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.PANKeyID) }),
		column(steps, func(s *recordStep) []byte { return s.authorization.PANHash }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.authorization.Elements) }),
		column(steps, func(s *recordStep) pgtype.Int4 { return pgInt4(s.authorization.CustomerAccount) }),
		column(steps, func(s *recordStep) pgtype.Int4 { return pgInt4(s.authorization.SettlementAccount) }),
		column(steps, func(s *recordStep) pgtype.Int8 { return pgInt8(s.authorization.OwnerEpoch) }),
		column(steps, func(s *recordStep) pgtype.Timestamptz { return pgTime(s.authorization.CreatedAt) }),
		column(steps, func(s *recordStep) pgtype.Timestamptz { return pgTime(s.authorization.DeadlineAt) }),
		column(steps, func(s *recordStep) pgtype.UUID { return pgUUID(s.request.id) }),
		column(steps, func(s *recordStep) pgtype.Text { return pgText(s.request.image) }),
		column(steps, func(s *recordStep) []byte { return s.request.digest }),
		column(steps, func(s *recordStep) pgtype.Date {
			return pgDate(s.authorization.SettlementDate)
		}),
	).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			byID[id].won = true
			return nil
		})
		return err
	})
}

// lessID orders steps by the row they touch, so that two transactions take row locks in one order.
func lessID(a, b uuid.UUID) bool { return bytes.Compare(a[:], b[:]) < 0 }
