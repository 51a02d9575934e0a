package gateway

import (
	"cmp"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
)

// noteStep keeps a message that decides nothing: a late answer, one that matches nothing, one that cannot be read. A late
// answer to a known authorisation is also an event; the caller's state does not change.
type noteStep struct {
	link            string
	message         journalRow
	stan, rrn       string
	authorizationID uuid.UUID // of the original, uuid.Nil when none is known
	tenant          string
	event           string // "" for none
	exception       string // kind of exception to open, "" for none; about the original, or the message where there is none
	detail          string
}

// eventLateResponse is an answer that came after the authorisation had been decided without it.
const eventLateResponse = "authorization.late_response"

func (*noteStep) Kind() *commit.Kind { return noteKind }

func lessNote(a, b commit.Step) bool {
	return lessID(a.(*noteStep).message.id, b.(*noteStep).message.id)
}

const noteSQL = `
WITH u AS (
	SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[],
		$9::text[], $10::text[], $11::bytea[], $12::text[], $13::text[], $14::text[], $15::text[], $16::uuid[], $17::text[])
	AS u(id, at, link, kind, mti, stan, rrn, authorization_id, response_code, image, digest, note, tenant, event, detail, exception_id, exception)
), journal AS (
	INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, response_code, image, digest, note)
	SELECT id, at, link, 'in', kind, mti, stan, rrn, authorization_id, response_code, image, digest, note FROM u
	ON CONFLICT DO NOTHING RETURNING id
), opened AS (
	INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
	SELECT u.exception_id, u.exception, u.tenant, u.link, coalesce(u.authorization_id, u.id), u.detail, u.at FROM u JOIN journal USING (id) WHERE u.exception IS NOT NULL
	ON CONFLICT (kind, subject_id) WHERE closed_at IS NULL DO NOTHING
)
INSERT INTO event (at, tenant, kind, subject_id, detail)
SELECT u.at, u.tenant, u.event, u.authorization_id, u.detail FROM u JOIN journal USING (id) WHERE u.event IS NOT NULL`

func queueNotes(batch *pgx.Batch, steps []commit.Step) {
	batch.Queue(noteSQL,
		column(steps, func(s *noteStep) pgtype.UUID { return pgUUID(s.message.id) }),
		column(steps, func(s *noteStep) pgtype.Timestamptz { return pgTime(s.message.at) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgText(s.link) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgText(s.message.kind) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.message.mti) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.stan) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.rrn) }),
		column(steps, func(s *noteStep) pgtype.UUID { return pgUUID(s.authorizationID) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.message.responseCode) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgText(s.message.image) }),
		column(steps, func(s *noteStep) []byte { return s.message.digest }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.message.note) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.tenant) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.event) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgText(s.detail) }),
		column(steps, func(*noteStep) pgtype.UUID { return pgUUID(newID()) }),
		column(steps, func(s *noteStep) pgtype.Text { return pgTextOrNull(s.exception) }),
	)
}

// queueAttempt journals one outgoing duty in the transaction that counts it. stan is the duty's own, "" where it is the original's.
func queueAttempt(batch *pgx.Batch, original *Authorization, stan string, row journalRow) {
	batch.Queue(`INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, attempt, image, digest)
		VALUES (@id, @at, @link, 'out', @kind, @mti, @stan, @rrn, @authorization_id, @attempt, @image, @digest)`,
		pgx.NamedArgs{"id": row.id, "at": row.at, "link": original.Link, "kind": row.kind, "mti": row.mti, "stan": cmp.Or(stan, original.STAN),
			"rrn": original.RRN, "authorization_id": original.ID, "attempt": row.attempt, "image": row.image, "digest": row.digest})
}
