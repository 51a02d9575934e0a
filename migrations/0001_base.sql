-- +goose Up

-- The daemon works under this role: it may add to an append-only table and never change one.
-- Roles belong to the cluster, so another database of the same cluster may have made it already.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'schemegate_writer') THEN
        CREATE ROLE schemegate_writer NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
BEGIN
    IF NOT pg_has_role(current_user, 'schemegate_writer', 'MEMBER') THEN
        EXECUTE format('GRANT schemegate_writer TO %I', current_user);
    END IF;
END
$$;
-- +goose StatementEnd

-- The second guard of every append-only table; the first is that schemegate_writer lacks the privilege.
-- +goose StatementBegin
CREATE FUNCTION deny_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'append-only: % on % is refused', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA public TO schemegate_writer;

-- One row per batch whose COMMIT had an unknown outcome and was run again; see gateway/commit.
CREATE TABLE commit_fence (
    id        uuid PRIMARY KEY,
    fenced_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, DELETE ON commit_fence TO schemegate_writer;

-- One row per life of a daemon. Work owned by an ended epoch has nobody waiting for it.
CREATE TABLE daemon (
    epoch      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance   text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL, -- its wall clock, a moment ago: shows a life whose clock was behind the sweep's mark
    ended_at   timestamptz
);
GRANT SELECT, INSERT, UPDATE ON daemon TO schemegate_writer;

-- STANs and RRNs are leased from here in ranges. next_value only grows; the STAN is its remainder.
CREATE TABLE link_sequence (
    link         text PRIMARY KEY,
    next_value   bigint NOT NULL,
    period       timestamptz NOT NULL,
    period_first bigint NOT NULL,
    CONSTRAINT link_sequence_positive CHECK (next_value > 0 AND period_first > 0 AND period_first <= next_value)
);
GRANT SELECT, INSERT, UPDATE ON link_sequence TO schemegate_writer;

-- Everything with a deadline before through_at has left the pending state, so the sweep starts here.
CREATE TABLE sweep_mark (
    name       text PRIMARY KEY,
    through_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON sweep_mark TO schemegate_writer;

-- The claim decides who may act. Its two unique keys are for ever: the client's key, and the client's own reference.
CREATE TABLE idempotency_claim (
    tenant           text NOT NULL,
    endpoint         text NOT NULL,
    idempotency_key  text NOT NULL,
    client_reference text NOT NULL,
    digest           bytea NOT NULL,
    resource_id      uuid NOT NULL,
    claimed_at       timestamptz NOT NULL,
    CONSTRAINT idempotency_claim_key PRIMARY KEY (tenant, endpoint, idempotency_key),
    CONSTRAINT idempotency_claim_reference UNIQUE (tenant, endpoint, client_reference)
);
GRANT SELECT, INSERT ON idempotency_claim TO schemegate_writer;
CREATE TRIGGER idempotency_claim_append_only BEFORE UPDATE OR DELETE ON idempotency_claim FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER idempotency_claim_no_truncate BEFORE TRUNCATE ON idempotency_claim FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- A card authorisation: the intent, what was sent (never track, PIN block, verification values or ICC data), and the answer told.
-- The low fillfactor leaves room for the update that settles it and doubles its size, so no index is touched (HOT).
CREATE TABLE card_authorization (
    id                     uuid PRIMARY KEY,
    tenant                 text NOT NULL,
    client_reference       text NOT NULL,
    order_reference        text,
    link                   text NOT NULL,
    type                   text NOT NULL,
    state                  text NOT NULL,
    state_version          integer NOT NULL,
    reason                 text,
    mti                    text NOT NULL,
    stan                   text NOT NULL,
    rrn                    text NOT NULL,
    transmission_date_time text NOT NULL,
    amount_minor           bigint NOT NULL,
    approved_minor         bigint,
    currency               text NOT NULL,
    response_code          text,
    approval_code          text,
    pan_masked             text NOT NULL,
    pan_sealed             bytea NOT NULL,
    pan_key_id             text NOT NULL,
    pan_hash               bytea NOT NULL,
    elements               text NOT NULL,
    customer_account       integer NOT NULL,
    settlement_account     integer NOT NULL,
    owner_epoch            bigint NOT NULL,
    created_at             timestamptz NOT NULL,
    deadline_at            timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    answer_status          smallint,
    answer_body            bytea,
    CONSTRAINT authorization_state_known CHECK (state IN ('pending', 'approved', 'declined', 'not_sent', 'timed_out', 'captured', 'reversed', 'expired')),
    CONSTRAINT authorization_amount_positive CHECK (amount_minor > 0),
    CONSTRAINT authorization_approved_within_amount CHECK (approved_minor BETWEEN 0 AND amount_minor),
    CONSTRAINT authorization_answer_when_decided CHECK ((state = 'pending') = (answer_status IS NULL)),
    CONSTRAINT authorization_stan_form CHECK (length(stan) = 6 AND stan BETWEEN '000001' AND '999999')
) WITH (fillfactor = 30);
-- Late answers and operators look a STAN up; the allocator looks for values still in use.
CREATE INDEX authorization_by_stan ON card_authorization (link, stan);
-- An RRN names one authorisation of a link; its year digit repeats after ten years.
CREATE UNIQUE INDEX authorization_rrn_once ON card_authorization (rrn, link);
-- The sweep reads what is past its deadline. An index on state would end HOT updates.
CREATE INDEX authorization_by_deadline ON card_authorization (deadline_at);
GRANT SELECT, INSERT, UPDATE ON card_authorization TO schemegate_writer;

-- The duty to undo an authorisation whose outcome is not known.
CREATE TABLE reversal (
    id               uuid PRIMARY KEY,
    authorization_id uuid NOT NULL,
    tenant           text NOT NULL,
    link             text NOT NULL,
    state            text NOT NULL,
    state_version    integer NOT NULL,
    reason           text NOT NULL,
    attempts         integer NOT NULL DEFAULT 0,
    next_at          timestamptz NOT NULL,
    claim_epoch      bigint,
    response_code    text,
    needs_attention  boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    CONSTRAINT reversal_one_per_authorization UNIQUE (authorization_id),
    CONSTRAINT reversal_has_original FOREIGN KEY (authorization_id) REFERENCES card_authorization (id),
    CONSTRAINT reversal_state_known CHECK (state IN ('owed', 'acknowledged', 'suspended')),
    CONSTRAINT reversal_attempts_not_negative CHECK (attempts >= 0)
) WITH (fillfactor = 70);
-- The worker reads what is due, by time; open duties are few against closed ones.
CREATE INDEX reversal_due ON reversal (link, next_at) WHERE state = 'owed';
-- The allocator and the metrics read what is open.
CREATE INDEX reversal_open ON reversal (link, created_at) WHERE state <> 'acknowledged';
GRANT SELECT, INSERT, UPDATE ON reversal TO schemegate_writer;

-- Every transition of every state machine, in the transaction that made it.
CREATE TABLE state_history (
    subject_id    uuid NOT NULL,
    state_version integer NOT NULL,
    subject       text NOT NULL,
    from_state    text,
    to_state      text NOT NULL,
    reason        text,
    response_code text,
    at            timestamptz NOT NULL,
    CONSTRAINT state_history_key PRIMARY KEY (subject_id, state_version)
);
GRANT SELECT, INSERT ON state_history TO schemegate_writer;
CREATE TRIGGER state_history_append_only BEFORE UPDATE OR DELETE ON state_history FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER state_history_no_truncate BEFORE TRUNCATE ON state_history FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- The journal: every financial message out and in, as a masked image for people. Digests are keyed and leave out sensitive authentication data.
CREATE TABLE message (
    id               uuid NOT NULL, -- made by the writer, so that a batch run again writes no second row
    at               timestamptz NOT NULL,
    link             text NOT NULL,
    direction        text NOT NULL,
    kind             text NOT NULL,
    mti              text,
    stan             text,
    rrn              text,
    authorization_id uuid,
    attempt          integer,
    response_code    text,
    image            text NOT NULL,
    digest           bytea,
    note             text,
    CONSTRAINT message_direction_known CHECK (direction IN ('out', 'in')),
    CONSTRAINT message_kind_known CHECK (kind IN ('request', 'response', 'late', 'unmatched', 'malformed', 'mismatch', 'duplicate'))
);
-- One row a message, and the timeline of one authorisation, by one index: this is the table that every message pays for.
CREATE UNIQUE INDEX message_once ON message (authorization_id, id) NULLS NOT DISTINCT;
GRANT SELECT, INSERT ON message TO schemegate_writer;
CREATE TRIGGER message_append_only BEFORE UPDATE OR DELETE ON message FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER message_no_truncate BEFORE TRUNCATE ON message FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- What happened to a subject without moving its state: a late answer, a duty that needs a person.
CREATE TABLE event (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at         timestamptz NOT NULL,
    tenant     text NOT NULL,
    kind       text NOT NULL,
    subject_id uuid NOT NULL,
    detail     text NOT NULL
);
CREATE INDEX event_by_subject ON event (subject_id);
GRANT SELECT, INSERT ON event TO schemegate_writer;
CREATE TRIGGER event_append_only BEFORE UPDATE OR DELETE ON event FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER event_no_truncate BEFORE TRUNCATE ON event FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- What needs a person. At most one open exception of a kind per subject.
CREATE TABLE exception (
    id         uuid PRIMARY KEY,
    kind       text NOT NULL,
    tenant     text NOT NULL,
    link       text NOT NULL,
    subject_id uuid NOT NULL,
    detail     text NOT NULL,
    opened_at  timestamptz NOT NULL,
    closed_at  timestamptz
);
-- The subject comes first: a reversal that is acknowledged closes what stands open against it.
CREATE UNIQUE INDEX exception_open_once ON exception (subject_id, kind) WHERE closed_at IS NULL;
GRANT SELECT, INSERT, UPDATE ON exception TO schemegate_writer;
