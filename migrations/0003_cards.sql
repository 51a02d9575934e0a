-- +goose Up

-- What an authorisation still has to tell the scheme: that it is undone (0420), wholly, in part, or one of its captures, and that it
-- was completed (0220). Each is owed until its own answer acknowledges it.
ALTER TABLE reversal RENAME TO duty;
ALTER TABLE duty RENAME CONSTRAINT reversal_has_original TO duty_has_original;
ALTER TABLE duty RENAME CONSTRAINT reversal_state_known TO duty_state_known;
ALTER TABLE duty RENAME CONSTRAINT reversal_attempts_not_negative TO duty_attempts_not_negative;
ALTER TABLE duty DROP CONSTRAINT reversal_one_per_authorization;
ALTER INDEX reversal_due RENAME TO duty_due;
ALTER INDEX reversal_open RENAME TO duty_open;
ALTER TABLE duty
    ADD COLUMN kind             text NOT NULL DEFAULT 'reversal',
    ADD COLUMN number           smallint NOT NULL DEFAULT 0, -- among the authorisation's duties; 0 is the reversal of the whole
    ADD COLUMN amount_minor     bigint,                      -- of a capture, or taken back by a partial reversal; NULL: the whole
    ADD COLUMN standing_minor   bigint,                      -- what a partial reversal leaves of the approved amount
    ADD COLUMN final            boolean NOT NULL DEFAULT false,
    ADD COLUMN undoes           uuid,                        -- the capture that this reversal undoes
    ADD COLUMN client_reference text,                        -- of a capture: the client's own name for it
    ADD COLUMN stan             text,                        -- DE 11 where it is not the original's; fixed by the first attempt
    ADD COLUMN closed_as        text,
    ADD COLUMN reopened         smallint NOT NULL DEFAULT 0, -- how often an approval came after "original not found", or after an attempt that may yet be answered so
    ADD CONSTRAINT duty_once UNIQUE (authorization_id, number),
    ADD CONSTRAINT duty_undoes_once UNIQUE (undoes),
    ADD CONSTRAINT duty_undoes_capture FOREIGN KEY (undoes) REFERENCES duty (id),
    ADD CONSTRAINT duty_kind_known CHECK (kind IN ('reversal', 'capture')),
    ADD CONSTRAINT duty_amount_positive CHECK (amount_minor > 0),
    ADD CONSTRAINT duty_amount_where_needed CHECK ((number = 0 AND kind = 'reversal') = (amount_minor IS NULL)),
    ADD CONSTRAINT duty_standing_not_negative CHECK (standing_minor >= 0),
    ADD CONSTRAINT duty_reference_of_capture CHECK ((kind = 'capture') = (client_reference IS NOT NULL)),
    ADD CONSTRAINT duty_stan_form CHECK (length(stan) = 6 AND stan BETWEEN '000001' AND '999999'),
    ADD CONSTRAINT duty_closed_as_known CHECK (closed_as IN ('acknowledged', 'nothing_to_undo', 'withdrawn')),
    ADD CONSTRAINT duty_closed_with_state CHECK ((state = 'acknowledged') = (closed_as IS NOT NULL)) NOT VALID;
UPDATE duty SET closed_as = 'acknowledged' WHERE state = 'acknowledged';
ALTER TABLE duty VALIDATE CONSTRAINT duty_closed_with_state;
ALTER TABLE duty ALTER COLUMN kind DROP DEFAULT;
-- Answers and operators look a duty's own STAN up.
CREATE INDEX duty_by_stan ON duty (link, stan) WHERE stan IS NOT NULL;
CREATE INDEX duty_by_reference ON duty (client_reference) WHERE client_reference IS NOT NULL;

-- Captures and partial reversals claim the approved amount when they are recorded; together they never exceed it.
ALTER TABLE card_authorization
    ADD COLUMN captured_minor     bigint NOT NULL DEFAULT 0, -- completed, or posted by a financial approval
    ADD COLUMN reversed_minor     bigint NOT NULL DEFAULT 0, -- taken back by partial reversals
    ADD COLUMN returned_minor     bigint NOT NULL DEFAULT 0, -- of captured_minor, what was undone
    ADD COLUMN duties             smallint NOT NULL DEFAULT 0, -- how many numbers of duties are used
    ADD COLUMN settlement_date    date,                      -- the link's business date when it was recorded (DE 15)
    ADD COLUMN additional_amounts text,                      -- DE 54 of the answer: balances
    DROP CONSTRAINT authorization_amount_positive,
    ADD CONSTRAINT authorization_amount_positive CHECK (amount_minor > 0 OR (amount_minor = 0 AND type = 'balance_inquiry')),
    ADD CONSTRAINT authorization_claims_within_approved CHECK (captured_minor >= 0 AND reversed_minor >= 0
        AND captured_minor + reversed_minor <= coalesce(approved_minor, 0)),
    ADD CONSTRAINT authorization_returned_within_captured CHECK (returned_minor BETWEEN 0 AND captured_minor);

-- What a request was told that decided nothing else: captures and reversals answer as soon as the duty is committed.
CREATE TABLE stored_answer (
    tenant          text NOT NULL,
    endpoint        text NOT NULL,
    idempotency_key text NOT NULL,
    status          smallint NOT NULL,
    body            bytea NOT NULL,
    resource        text NOT NULL,
    CONSTRAINT stored_answer_key PRIMARY KEY (tenant, endpoint, idempotency_key)
);
GRANT SELECT, INSERT, DELETE ON stored_answer TO schemegate_writer;

-- A reversal that came before its original. It holds the original's reference, so that the original is refused when it comes.
CREATE TABLE tombstone (
    id               uuid PRIMARY KEY,
    tenant           text NOT NULL,
    client_reference text NOT NULL,
    reason           text NOT NULL,
    created_at       timestamptz NOT NULL,
    CONSTRAINT tombstone_once UNIQUE (client_reference, tenant) -- in this order, since operators look for a reference of any tenant
);
GRANT SELECT, INSERT ON tombstone TO schemegate_writer;
CREATE TRIGGER tombstone_append_only BEFORE UPDATE OR DELETE ON tombstone FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER tombstone_no_truncate BEFORE TRUNCATE ON tombstone FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- The dedup journal: what was recognised as a repeat and cut off, or refused as one. It decides nothing.
CREATE TABLE duplicate (
    id          uuid NOT NULL,
    at          timestamptz NOT NULL,
    tenant      text NOT NULL,
    source      text NOT NULL,
    reason      text NOT NULL,
    key         text NOT NULL,
    original_id uuid,
    CONSTRAINT duplicate_key PRIMARY KEY (tenant, id), -- a tenant reads its own, newest first
    CONSTRAINT duplicate_source_known CHECK (source IN ('client', 'scheme'))
);
-- A timeline reads what was open, too.
CREATE INDEX exception_by_subject ON exception (subject_id);
CREATE INDEX duplicate_by_original ON duplicate (original_id);
GRANT SELECT, INSERT ON duplicate TO schemegate_writer;
CREATE TRIGGER duplicate_append_only BEFORE UPDATE OR DELETE ON duplicate FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER duplicate_no_truncate BEFORE TRUNCATE ON duplicate FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- What people decided about a link: no new requests (held), signed off as planned. It outlives restarts and holds for every daemon.
CREATE TABLE link_control (
    link          text PRIMARY KEY,
    held          boolean NOT NULL DEFAULT false,
    signed_off    boolean NOT NULL DEFAULT false,
    business_date date, -- as the scheme's last cutover notice gave it
    version       integer NOT NULL DEFAULT 1,
    reason        text NOT NULL,
    changed_at    timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON link_control TO schemegate_writer;
CREATE TABLE link_control_history (
    link       text NOT NULL,
    version    integer NOT NULL,
    held       boolean NOT NULL,
    signed_off boolean NOT NULL,
    reason     text NOT NULL,
    at         timestamptz NOT NULL,
    CONSTRAINT link_control_history_key PRIMARY KEY (link, version)
);
GRANT SELECT, INSERT ON link_control_history TO schemegate_writer;
CREATE TRIGGER link_control_history_append_only BEFORE UPDATE OR DELETE ON link_control_history FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER link_control_history_no_truncate BEFORE TRUNCATE ON link_control_history FOR EACH STATEMENT EXECUTE FUNCTION deny_change();
