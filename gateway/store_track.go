package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// trackedLook is a reference in every form it can have; empty fields are forms that it does not have.
type trackedLook struct {
	tenant, reference, rrn, stan string
	id                           uuid.UUID
	from, to                     time.Time // of a STAN's day
}

// selectTracked finds authorisations by id, by the id of one of their duties, by client reference, by RRN and by STAN, each by an
// index, the newest first.
func selectTracked(ctx context.Context, db querier, look trackedLook, limit int) ([]tracked, error) {
	rows, err := db.Query(ctx, `
		WITH known AS (SELECT DISTINCT tenant, link FROM ledger_account WHERE @tenant = '' OR tenant = @tenant),
		link AS (SELECT DISTINCT link FROM known), tenant AS (SELECT DISTINCT tenant FROM known), found AS (
			SELECT id, 1 AS rank, 'id' AS by FROM card_authorization WHERE id = @id
			UNION ALL SELECT authorization_id, 2, 'duty_id' FROM duty WHERE id = @id
			UNION ALL SELECT c.resource_id, 3, 'client_reference' FROM tenant JOIN idempotency_claim c ON c.tenant = tenant.tenant
				AND c.endpoint = @endpoint AND c.client_reference = @reference
			UNION ALL SELECT d.authorization_id, 4, 'capture_reference' FROM duty d WHERE d.client_reference = @reference
			UNION ALL SELECT id, 5, 'rrn' FROM card_authorization WHERE rrn = @rrn
			UNION ALL SELECT a.id, 6, 'stan' FROM link JOIN card_authorization a ON a.link = link.link AND a.stan = @stan
				WHERE @stan <> '' AND (@from::timestamptz IS NULL OR (a.created_at >= @from AND a.created_at < @to))
			UNION ALL SELECT d.authorization_id, 7, 'stan' FROM link JOIN duty d ON d.link = link.link AND d.stan = @stan
				WHERE @stan <> '' AND (@from::timestamptz IS NULL OR (d.created_at >= @from AND d.created_at < @to))
		)
		SELECT DISTINCT ON (a.id) a.id, f.by FROM found f JOIN card_authorization a ON a.id = f.id
		WHERE @tenant = '' OR a.tenant = @tenant ORDER BY a.id DESC, f.rank LIMIT @limit`,
		pgx.NamedArgs{"tenant": look.tenant, "endpoint": endpointAuthorizations, "reference": look.reference, "rrn": look.rrn, "stan": look.stan,
			"id": look.id, "from": pgTime(look.from), "to": pgTime(look.to), "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("select tracked: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tracked, err error) { return t, row.Scan(&t.id, &t.by) })
	if err != nil {
		return nil, fmt.Errorf("select tracked: %w", err)
	}
	return found, nil
}

// selectAnyAuthorization reads an authorisation of any tenant.
func selectAnyAuthorization(ctx context.Context, db querier, id uuid.UUID) (*Authorization, error) {
	found, err := selectByIDs(ctx, db, []uuid.UUID{id})
	if err != nil {
		return nil, err
	}
	if found[id] == nil { // it was there a moment ago, and nothing is ever deleted
		return nil, fmt.Errorf("select authorization: %s is gone", id)
	}
	return found[id], nil
}

// selectTombstones finds reversals that came before their authorisation, by the reference that they hold and by id, the newest first.
func selectTombstones(ctx context.Context, db querier, look trackedLook, limit int) ([]tombstone, error) {
	const columns, of = `SELECT id, client_reference, reason, created_at FROM tombstone WHERE `, ` AND tenant = @tenant`
	named, known := columns+`client_reference = @reference`, columns+`id = @id`
	if look.tenant != "" {
		named, known = named+of, known+of
	}
	rows, err := db.Query(ctx, named+` UNION `+known+` ORDER BY id DESC LIMIT @limit`,
		pgx.NamedArgs{"tenant": look.tenant, "reference": look.reference, "id": look.id, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("select tombstones: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tombstone, err error) {
		return t, row.Scan(&t.id, &t.clientReference, &t.reason, &t.createdAt)
	})
	if err != nil {
		return nil, fmt.Errorf("select tombstones: %w", err)
	}
	return found, nil
}

// selectSteps reads what happened to an authorisation and its duties: transitions, the answer told, messages, events, exceptions and
// repeats.
func selectSteps(ctx context.Context, db querier, s subjects) ([]TimelineStep, error) {
	var steps []TimelineStep
	for _, read := range []func(context.Context, querier, subjects) ([]TimelineStep, error){selectTransitions, selectMessages, selectHappenings} {
		more, err := read(ctx, db, s)
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

func selectTransitions(ctx context.Context, db querier, s subjects) ([]TimelineStep, error) {
	rows, err := db.Query(ctx, `
		SELECT at, subject_id, coalesce(from_state, ''), to_state, coalesce(reason, ''), coalesce(response_code, '') FROM state_history
		WHERE subject_id = ANY(@ids) ORDER BY at, state_version LIMIT @limit`, pgx.NamedArgs{"ids": s.ids(), "limit": maxTimelineRows})
	if err != nil {
		return nil, fmt.Errorf("select transitions: %w", err)
	}
	var told []TimelineStep
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (step TimelineStep, err error) {
		var id uuid.UUID
		var from, to, reason string
		err = row.Scan(&step.At, &id, &from, &to, &reason, &step.ResponseCode)
		step.At, step.What, step.Subject = step.At.UTC(), stepState, s.names[id]
		switch {
		case id == s.authorization.ID:
			step.rank = rankMoved
		case from == "":
			step.rank = rankDutyOwed
		default:
			step.rank = rankDutyMoved
		}
		step.Text = strings.TrimPrefix(from+" -> ", " -> ") + to
		if from == to {
			step.Text = "still " + to
		}
		if reason != "" && reason != to {
			step.Text += ", " + reason
		}
		if id == s.authorization.ID && from == string(Pending) {
			told = append(told, toldStep(step.At, subjectAuthorization, State(to).answerStatus(), to))
		}
		return step, err
	})
	if err != nil {
		return nil, fmt.Errorf("select transitions: %w", err)
	}
	return append(steps, told...), nil
}

// ids are those of the authorisation and its duties.
func (s subjects) ids() []uuid.UUID { return slices.Collect(maps.Keys(s.names)) }

func selectMessages(ctx context.Context, db querier, s subjects) ([]TimelineStep, error) {
	rows, err := db.Query(ctx, `
		SELECT at, direction, kind, coalesce(mti, ''), coalesce(stan, ''), coalesce(response_code, ''), coalesce(attempt, 0), image, coalesce(note, '')
		FROM message WHERE authorization_id = @id ORDER BY id LIMIT @limit`, pgx.NamedArgs{"id": s.authorization.ID, "limit": maxTimelineRows})
	if err != nil {
		return nil, fmt.Errorf("select messages: %w", err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (step TimelineStep, err error) {
		var direction, kind, note string
		err = row.Scan(&step.At, &direction, &kind, &step.MTI, &step.STAN, &step.ResponseCode, &step.Attempt, &step.Image, &note)
		step.At, step.Subject = step.At.UTC(), s.ofMessage(step.MTI, step.STAN, step.Attempt)
		if direction == "out" {
			step.What, step.Text, step.rank = stepSent, "-> "+step.MTI+" committed for sending", rankSent
		} else {
			step.What, step.Text, step.rank = stepReceived, strings.Join(strings.Fields("<- "+step.MTI+" "+kind), " "), rankReceived
		}
		if note != "" && kind != messageLate { // that nobody waited for it any more is what late says
			step.Text += ": " + note
		}
		return step, err
	})
	if err != nil {
		return nil, fmt.Errorf("select messages: %w", err)
	}
	return steps, nil
}

func selectHappenings(ctx context.Context, db querier, s subjects) ([]TimelineStep, error) {
	rows, err := db.Query(ctx, `
		SELECT at, subject_id, 'event', kind || coalesce(nullif(': ' || detail, ': '), ''), '' FROM event WHERE subject_id = ANY(@ids)
		UNION ALL SELECT opened_at, subject_id, 'exception', kind || ' opened: ' || detail, CASE WHEN closed_at IS NULL THEN kind ELSE '' END
			FROM exception WHERE subject_id = ANY(@ids)
		UNION ALL SELECT closed_at, subject_id, 'exception', kind || ' closed', '' FROM exception WHERE subject_id = ANY(@ids) AND closed_at IS NOT NULL
		UNION ALL SELECT at, original_id, 'duplicate', source || ': ' || reason, '' FROM duplicate WHERE original_id = ANY(@ids)
		ORDER BY 1 LIMIT @limit`, pgx.NamedArgs{"ids": s.ids(), "limit": maxTimelineRows})
	if err != nil {
		return nil, fmt.Errorf("select events, exceptions and repeats: %w", err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (step TimelineStep, err error) {
		var id uuid.UUID
		err = row.Scan(&step.At, &id, &step.What, &step.Text, &step.open)
		step.At, step.Subject, step.rank = step.At.UTC(), s.names[id], rankOther
		if step.What == stepException {
			step.rank = rankException
		}
		return step, err
	})
	if err != nil {
		return nil, fmt.Errorf("select events, exceptions and repeats: %w", err)
	}
	return steps, nil
}
