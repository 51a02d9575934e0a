package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// querier reads: a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// claimRow is what the winner of a key left: whose it is, and the answer once there is one.
type claimRow struct {
	idempotencyKey string
	digest         []byte
	resourceID     uuid.UUID
}

// selectClaim finds who holds the key or the reference; the key's holder comes first.
func selectClaim(ctx context.Context, db querier, tenant, endpoint, key, reference string) (claimRow, bool, error) {
	rows, err := db.Query(ctx, `
		SELECT idempotency_key, digest, resource_id FROM idempotency_claim
		WHERE tenant = @tenant AND endpoint = @endpoint AND idempotency_key = @key
		UNION ALL
		SELECT idempotency_key, digest, resource_id FROM idempotency_claim
		WHERE tenant = @tenant AND endpoint = @endpoint AND client_reference = @reference`,
		pgx.NamedArgs{"tenant": tenant, "endpoint": endpoint, "key": key, "reference": reference})
	if err != nil {
		return claimRow{}, false, fmt.Errorf("select claim: %w", err)
	}
	claims, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c claimRow, err error) {
		return c, row.Scan(&c.idempotencyKey, &c.digest, &c.resourceID)
	})
	if err != nil {
		return claimRow{}, false, fmt.Errorf("select claim: %w", err)
	}
	for _, c := range claims {
		if c.idempotencyKey == key {
			return c, true, nil
		}
	}
	if len(claims) > 0 {
		return claims[0], true, nil
	}
	return claimRow{}, false, nil
}

// storedAnswer is what a decided authorisation told its caller.
type storedAnswer struct {
	status int
	body   []byte // nil when it has expired
}

// selectAnswer reads the stored answer; decided is false while the authorisation is pending.
func selectAnswer(ctx context.Context, db querier, id uuid.UUID) (answer storedAnswer, decided bool, err error) {
	var status *int16
	err = db.QueryRow(ctx, `SELECT answer_status, answer_body FROM card_authorization WHERE id = $1`, id).Scan(&status, &answer.body)
	if err != nil {
		return storedAnswer{}, false, fmt.Errorf("select stored answer: %w", err)
	}
	if status == nil {
		return storedAnswer{}, false, nil
	}
	answer.status = int(*status)
	return answer, true, nil
}

const authorizationColumns = `a.id, a.tenant, a.client_reference, coalesce(a.order_reference, ''), a.link, a.type, a.state, a.state_version,
	coalesce(a.reason, ''), a.mti, a.stan, a.rrn, a.transmission_date_time, a.amount_minor, a.approved_minor,
	a.captured_minor, a.reversed_minor, a.returned_minor, a.duties, a.settlement_date, coalesce(a.additional_amounts, ''), a.currency,
	coalesce(a.response_code, ''), coalesce(a.approval_code, ''), a.pan_masked, a.pan_sealed, a.pan_key_id, a.pan_hash, a.elements,
	a.customer_account, a.settlement_account, a.owner_epoch, a.created_at, a.deadline_at, a.updated_at,
	r.id, r.state, r.closed_as, r.attempts, r.next_at, r.reason, r.response_code, r.needs_attention, r.reopened`

const authorizationFrom = ` FROM card_authorization a LEFT JOIN duty r ON r.authorization_id = a.id AND r.number = 0 `

func scanAuthorization(row pgx.CollectableRow) (*Authorization, error) {
	var a Authorization
	var id *uuid.UUID
	var state, closedAs, reason, responseCode *string
	var attempts *int32
	var nextAt *time.Time
	var attention *bool
	var reopened *int16
	var settled pgtype.Date
	err := row.Scan(&a.ID, &a.Tenant, &a.ClientReference, &a.OrderReference, &a.Link, &a.Type, &a.State, &a.StateVersion,
		&a.Reason, &a.MTI, &a.STAN, &a.RRN, &a.TransmissionDateTime, &a.AmountMinor, &a.ApprovedMinor,
		&a.CapturedMinor, &a.ReversedMinor, &a.ReturnedMinor, &a.Duties, &settled, &a.AdditionalAmounts, &a.Currency,
		&a.ResponseCode, &a.ApprovalCode, &a.PANMasked, &a.PANSealed, &a.PANKeyID, &a.PANHash, &a.Elements,
		&a.CustomerAccount, &a.SettlementAccount, &a.OwnerEpoch, &a.CreatedAt, &a.DeadlineAt, &a.UpdatedAt,
		&id, &state, &closedAs, &attempts, &nextAt, &reason, &responseCode, &attention, &reopened)
	if err != nil {
		return nil, err
	}
	a.SettlementDate = settled.Time
	if id != nil {
		a.Reversal = &ReversalView{ID: *id, State: *state, Attempts: *attempts, Reason: *reason, NeedsAttention: *attention, reopened: *reopened}
		if *state == "owed" {
			due := nextAt.UTC()
			a.Reversal.NextAt = &due
		}
		if responseCode != nil {
			a.Reversal.ResponseCode = *responseCode
		}
		if closedAs != nil {
			a.Reversal.ClosedAs = *closedAs
		}
	}
	return &a, nil
}

func collectAuthorizations(rows pgx.Rows, err error) ([]*Authorization, error) {
	if err != nil {
		return nil, fmt.Errorf("select authorizations: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanAuthorization)
	if err != nil {
		return nil, fmt.Errorf("select authorizations: %w", err)
	}
	return found, nil
}

// selectAuthorization reads one of the tenant's authorisations; nil when there is none.
func selectAuthorization(ctx context.Context, db querier, tenant string, id uuid.UUID) (*Authorization, error) {
	found, err := collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+authorizationFrom+
		`WHERE a.id = @id AND a.tenant = @tenant`, pgx.NamedArgs{"id": id, "tenant": tenant}))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// selectByIDs reads authorisations of any tenant, for the workers.
func selectByIDs(ctx context.Context, db querier, ids []uuid.UUID) (map[uuid.UUID]*Authorization, error) {
	found, err := collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+authorizationFrom+
		`WHERE a.id = ANY(@ids)`, pgx.NamedArgs{"ids": ids}))
	if err != nil {
		return nil, err
	}
	byID := make(map[uuid.UUID]*Authorization, len(found))
	for _, a := range found {
		byID[a.ID] = a
	}
	return byID, nil
}

// selectOverdue reads pending authorisations past their deadline since the mark, oldest first.
func selectOverdue(ctx context.Context, db querier, links []string, since, before time.Time, limit int) ([]*Authorization, error) {
	return collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+authorizationFrom+
		`WHERE a.deadline_at >= @since AND a.deadline_at < @before AND a.state = 'pending' AND a.link = ANY(@links) ORDER BY a.deadline_at LIMIT @limit`,
		pgx.NamedArgs{"links": links, "since": since, "before": before, "limit": limit}))
}

// selectOrphaned reads pending authorisations that belong to ended daemons, whatever their deadline.
func selectOrphaned(ctx context.Context, db querier, links []string, since time.Time, epochs []int64, limit int) ([]*Authorization, error) {
	return collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+authorizationFrom+
		`WHERE a.deadline_at >= @since AND a.owner_epoch = ANY(@epochs) AND a.state = 'pending' AND a.link = ANY(@links) ORDER BY a.deadline_at LIMIT @limit`,
		pgx.NamedArgs{"links": links, "since": since, "epochs": epochs, "limit": limit}))
}

// otherLink is work of a link that is not among the given ones.
type otherLink struct {
	link               string
	pending, reversals int64
}

// selectOpenOfOtherLinks counts open work of links that are not configured here.
func selectOpenOfOtherLinks(ctx context.Context, db querier, links []string, since time.Time) ([]otherLink, error) {
	rows, err := db.Query(ctx, `
		SELECT link, sum(pending)::int8, sum(reversals)::int8 FROM (
			SELECT link, count(*) AS pending, 0 AS reversals FROM card_authorization
			WHERE deadline_at >= @since AND state = 'pending' AND link <> ALL(@links) GROUP BY link
			UNION ALL
			SELECT link, 0, count(*) FROM duty WHERE state <> 'acknowledged' AND link <> ALL(@links) GROUP BY link
		) o GROUP BY link ORDER BY link`, pgx.NamedArgs{"links": links, "since": since})
	if err != nil {
		return nil, fmt.Errorf("select open work of other links: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o otherLink, err error) {
		return o, row.Scan(&o.link, &o.pending, &o.reversals)
	})
	if err != nil {
		return nil, fmt.Errorf("select open work of other links: %w", err)
	}
	return open, nil
}

// Filter narrows a list of authorisations; empty fields narrow nothing.
type Filter struct {
	ClientReference string
	RRN             string
	STAN            string
	State           State
	Link            string
	Before          uuid.UUID // cursor: only older ones
	Limit           int
}

// selectAuthorizations lists the tenant's authorisations, newest first (a UUIDv7 grows with time).
func selectAuthorizations(ctx context.Context, db querier, tenant string, f Filter) ([]*Authorization, error) {
	from, args := authorizationFrom, pgx.NamedArgs{"tenant": tenant, "limit": f.Limit, "before": f.Before}
	where := `WHERE a.tenant = @tenant`
	if f.ClientReference != "" {
		from = ` FROM idempotency_claim c JOIN card_authorization a ON a.id = c.resource_id LEFT JOIN duty r ON r.authorization_id = a.id AND r.number = 0 `
		where += ` AND c.tenant = @tenant AND c.endpoint = @endpoint AND c.client_reference = @client_reference`
		args["endpoint"], args["client_reference"] = endpointAuthorizations, f.ClientReference
	}
	for _, narrow := range []struct{ column, value string }{{"rrn", f.RRN}, {"stan", f.STAN}, {"state", string(f.State)}, {"link", f.Link}} {
		if narrow.value != "" {
			where += ` AND a.` + narrow.column + ` = @` + narrow.column
			args[narrow.column] = narrow.value
		}
	}
	if f.Before != uuid.Nil {
		where += ` AND a.id < @before`
	}
	return collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+from+where+` ORDER BY a.id DESC LIMIT @limit`, args))
}

// isNoRows tells a missing row from a failed read.
func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
