-- +goose Up

-- One account per tenant, link, kind and currency. Which side raises its balance follows from the kind.
CREATE TABLE ledger_account (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text NOT NULL,
    link       text NOT NULL,
    kind       text NOT NULL,
    currency   char(3) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ledger_account_once UNIQUE (tenant, link, kind, currency),
    CONSTRAINT ledger_account_kind_known CHECK (kind IN ('customer', 'settlement', 'suspense'))
);
GRANT SELECT, INSERT ON ledger_account TO schemegate_writer;
CREATE TRIGGER ledger_account_append_only BEFORE UPDATE OR DELETE ON ledger_account FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER ledger_account_no_truncate BEFORE TRUNCATE ON ledger_account FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- One row per posting, naming both its sides, so that an unbalanced entry cannot be written.
-- Wide columns stand first: the row is written on the hot path and alignment would otherwise pad it.
-- No foreign keys: each would lock a row of a hot account per posting. `ledger verify` checks the accounts instead.
-- (tx, id) is the order of sealing. A sequence alone would not do: ids become visible out of order.
CREATE TABLE ledger_posting (
    id               bigint GENERATED ALWAYS AS IDENTITY,
    tx               xid8 NOT NULL DEFAULT pg_current_xact_id(),
    amount_minor     bigint NOT NULL,
    booked_at        timestamptz NOT NULL,
    debit_account    integer NOT NULL,
    credit_account   integer NOT NULL,
    value_date       date NOT NULL,
    transaction      smallint NOT NULL,
    step             smallint NOT NULL,
    number           smallint NOT NULL,
    layer            smallint NOT NULL,
    correction       boolean NOT NULL,
    intent           uuid NOT NULL,
    currency         char(3) NOT NULL,
    tenant           text NOT NULL,
    client_reference text NOT NULL,
    source_ref       text NOT NULL,
    -- The sealer and the unsealed tail read in this order.
    CONSTRAINT ledger_posting_order PRIMARY KEY (tx, id),
    -- The key of a step: one effect per intent, transaction, step and number, for ever.
    CONSTRAINT ledger_posting_step_once UNIQUE (intent, transaction, step, number),
    -- The second guard, by the client's own name for the attempt.
    CONSTRAINT ledger_posting_reference_once UNIQUE (tenant, client_reference, transaction, step, number),
    CONSTRAINT ledger_posting_amount_positive CHECK (amount_minor > 0),
    CONSTRAINT ledger_posting_two_accounts CHECK (debit_account <> credit_account),
    CONSTRAINT ledger_posting_layer_known CHECK (layer IN (1, 2)),
    CONSTRAINT ledger_posting_step_known CHECK (step BETWEEN 1 AND 6),
    -- A refund is new business; only a mirrored posting is a correction.
    CONSTRAINT ledger_posting_correction_compensates CHECK (correction = (step = 6)),
    CONSTRAINT ledger_posting_number_positive CHECK (number > 0),
    CONSTRAINT ledger_posting_transaction_not_negative CHECK (transaction >= 0)
);
-- An account's entries, newest first, and the part of a day that a balance at a moment needs: one index per side.
CREATE INDEX ledger_posting_by_debit ON ledger_posting (debit_account, booked_at);
CREATE INDEX ledger_posting_by_credit ON ledger_posting (credit_account, booked_at);
-- Column by column, without tx and id: the writer cannot choose its place in the sealed order.
GRANT SELECT ON ledger_posting TO schemegate_writer;
GRANT INSERT (amount_minor, booked_at, debit_account, credit_account, value_date, transaction, step, number, layer,
    correction, intent, currency, tenant, client_reference, source_ref) ON ledger_posting TO schemegate_writer;
CREATE TRIGGER ledger_posting_append_only BEFORE UPDATE OR DELETE ON ledger_posting FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER ledger_posting_no_truncate BEFORE TRUNCATE ON ledger_posting FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- The hash chain: each row seals the postings after the previous row's position up to its own.
-- The primary key decides between two sealers.
CREATE TABLE ledger_seal (
    seq           bigint PRIMARY KEY,
    through_tx    xid8 NOT NULL,
    through_id    bigint NOT NULL,
    postings      integer NOT NULL,
    previous_hash bytea NOT NULL,
    hash          bytea NOT NULL,
    sealed_at     timestamptz NOT NULL,
    CONSTRAINT ledger_seal_hash_length CHECK (octet_length(previous_hash) = 32 AND octet_length(hash) = 32),
    CONSTRAINT ledger_seal_not_empty CHECK (seq >= 0 AND (seq = 0) = (postings = 0))
);
-- The chain starts from a row that seals nothing, so there is always a head.
INSERT INTO ledger_seal (seq, through_tx, through_id, postings, previous_hash, hash, sealed_at)
VALUES (0, '0', 0, 0, decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex'), 'epoch');
GRANT SELECT, INSERT ON ledger_seal TO schemegate_writer;
CREATE TRIGGER ledger_seal_append_only BEFORE UPDATE OR DELETE ON ledger_seal FOR EACH ROW EXECUTE FUNCTION deny_change();
CREATE TRIGGER ledger_seal_no_truncate BEFORE TRUNCATE ON ledger_seal FOR EACH STATEMENT EXECUTE FUNCTION deny_change();

-- A projection, written by the sealer with the seal: what the sealed postings moved per account, layer and UTC day of
-- booked_at. It may be updated, since it can be computed again at any time.
CREATE TABLE ledger_daily_total (
    account      integer NOT NULL,
    layer        smallint NOT NULL,
    booked_on    date NOT NULL,
    debit_minor  bigint NOT NULL,
    credit_minor bigint NOT NULL,
    CONSTRAINT ledger_daily_total_key PRIMARY KEY (account, layer, booked_on)
) WITH (fillfactor = 70);
GRANT SELECT, INSERT, UPDATE ON ledger_daily_total TO schemegate_writer;
