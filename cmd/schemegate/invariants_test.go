package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
)

// awaitRest waits until nothing is on its way any more.
func (r *rig) awaitRest(pool *pgxpool.Pool) {
	r.t.Helper()
	r.eventually("nothing is pending and no reversal is owed", func() bool {
		var open int
		err := pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM card_authorization WHERE state IN ('pending', 'timed_out'))
			+ (SELECT count(*) FROM duty WHERE state <> 'acknowledged')`).Scan(&open)
		return err == nil && open == 0
	})
}

// rigAuthorization is a row with its reversal, if it has one.
type rigAuthorization struct {
	ClientReference      string
	State                string
	StateVersion         int32
	STAN                 string
	RRN                  string
	TransmissionDateTime string
	ApprovedMinor        *int64
	CreatedAt            time.Time
	Reversals            int
	ReversalState        *string
	Attempts             *int32
}

func selectRigAuthorizations(t *testing.T, pool *pgxpool.Pool) []rigAuthorization {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT a.client_reference, a.state, a.state_version, a.stan, a.rrn, a.transmission_date_time, a.approved_minor, a.created_at,
			count(r.id) AS reversals, min(r.state) AS reversal_state, min(r.attempts) AS attempts
		FROM card_authorization a LEFT JOIN duty r ON r.authorization_id = a.id GROUP BY a.id ORDER BY a.client_reference`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[rigAuthorization])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkInvariants holds database, scheme and clients against each other once nothing is on its way.
func checkInvariants(t *testing.T, tr *traffic, pool *pgxpool.Pool, daemons ...*rigProcess) {
	t.Helper()
	rows := selectRigAuthorizations(t, pool)
	journal := tr.rig.scheme.Journal()
	checkOnceEach(t, tr, rows, journal)
	checkHolds(t, rows, tr.rig.scheme.Holds())
	checkReversals(t, rows, journal)
	checkRigBooks(t, tr.rig, pool)
	checkHistory(t, pool)
	for _, d := range daemons {
		for _, zero := range []string{"schemegate_ledger_unique_index_hits_total", "schemegate_commit_halvings_total", "schemegate_unmatched_messages_dropped_total"} {
			if got := tr.rig.metric(d, zero); got != 0 {
				t.Errorf("%s is %v", zero, got)
			}
		}
	}
	for _, record := range journal {
		if record.Violation != "" {
			t.Errorf("the scheme complains about %s %s: %s", record.MTI, record.STAN, record.Violation)
		}
	}
}

// staleSlack is how much later than send_within a request may be noted by the scheme: what the two processes wait for a processor.
// It is shorter than any outage or restart after which a queue could be flushed.
const staleSlack = 2 * time.Second

// checkOnceEach: one row an intent, and one 0100 a row at most, not after its time. An 0100 without a row would be bytes without
// an intent.
func checkOnceEach(t *testing.T, tr *traffic, rows []rigAuthorization, journal []sim.Record) {
	t.Helper()
	references, byRRN := map[string]bool{}, map[string]rigAuthorization{}
	for _, row := range rows {
		references[row.ClientReference] = true
		byRRN[row.RRN] = row
	}
	if len(rows) != len(tr.intents) || len(references) != len(rows) || len(byRRN) != len(rows) {
		t.Errorf("%d intents, %d authorisations, %d references, %d RRNs", len(tr.intents), len(rows), len(references), len(byRRN))
	}
	arrived := map[string]bool{}
	for _, record := range journal {
		if record.Direction != sim.In || record.MTI != "0100" {
			continue
		}
		row, known := byRRN[record.RRN]
		if !known || arrived[record.RRN] || row.State == "not_sent" {
			t.Errorf("RRN %s reached the scheme: has a row %v (%s), came before %v", record.RRN, known, row.State, arrived[record.RRN])
		}
		if age := record.At.Sub(row.CreatedAt); known && age > rigSendWithin+staleSlack {
			t.Errorf("RRN %s reached the scheme %s after it was made", record.RRN, age)
		}
		arrived[record.RRN] = true
	}
}

// checkHolds: approved here and held there are the same thing with the same amount.
func checkHolds(t *testing.T, rows []rigAuthorization, holds map[sim.HoldKey]sim.Hold) {
	t.Helper()
	byOriginal := map[[2]string]rigAuthorization{}
	for _, row := range rows {
		byOriginal[[2]string{row.STAN, row.TransmissionDateTime}] = row
	}
	seen := map[string]bool{}
	for key, hold := range holds {
		row, known := byOriginal[[2]string{key.STAN, key.TransmissionDateTime}]
		if !known || hold.RRN != row.RRN {
			t.Errorf("the scheme knows STAN %s of %s, which has no row", key.STAN, key.TransmissionDateTime)
			continue
		}
		seen[row.RRN] = true
		want := int64(0)
		if row.State == "approved" {
			want = *row.ApprovedMinor
		}
		if hold.HeldMinor != want {
			t.Errorf("%s is %s: the scheme holds %d, want %d", row.ClientReference, row.State, hold.HeldMinor, want)
		}
	}
	for _, row := range rows {
		if (row.State == "approved" || row.State == "declined") && !seen[row.RRN] {
			t.Errorf("%s is %s, and the scheme never heard of it", row.ClientReference, row.State)
		}
	}
}

// checkReversals: each authorisation without an outcome has one reversal, acknowledged, and all its messages are one message.
func checkReversals(t *testing.T, rows []rigAuthorization, journal []sim.Record) {
	t.Helper()
	sent := map[string][]sim.Record{}
	for _, record := range journal {
		if record.Direction == sim.In && (record.MTI == "0420" || record.MTI == "0421") {
			sent[record.RRN] = append(sent[record.RRN], record)
		}
	}
	for _, row := range rows {
		messages := sent[row.RRN]
		delete(sent, row.RRN)
		if row.State != "reversed" {
			if row.Reversals != 0 || len(messages) != 0 {
				t.Errorf("%s is %s with %d reversals and %d reversal messages", row.ClientReference, row.State, row.Reversals, len(messages))
			}
			if row.State != "approved" && row.State != "declined" && row.State != "not_sent" {
				t.Errorf("%s rests as %s", row.ClientReference, row.State)
			}
			continue
		}
		if row.Reversals != 1 || *row.ReversalState != "acknowledged" || len(messages) == 0 || len(messages) > int(*row.Attempts) {
			t.Errorf("%s is reversed with %d reversals, %d messages", row.ClientReference, row.Reversals, len(messages))
			continue
		}
		for _, m := range messages {
			first := messages[0]
			if m.STAN != first.STAN || m.TransmissionDateTime != first.TransmissionDateTime || m.OriginalDataElements != first.OriginalDataElements {
				t.Errorf("%s: reversal messages differ: %+v and %+v", row.ClientReference, first, m)
			}
			original, err := iso8583.ParseOriginalDataElements(m.OriginalDataElements)
			if err != nil || original.MTI != iso8583.MTIAuthorizationRequest || original.STAN != row.STAN || original.TransmissionDateTime != row.TransmissionDateTime {
				t.Errorf("%s: DE 90 names another original: %+v, %v", row.ClientReference, original, err)
			}
		}
	}
	for rrn := range sent {
		t.Errorf("reversal messages for RRN %s, which has no row", rrn)
	}
}

// checkRigBooks: both sides hold the same, and the ledger agrees with itself.
func checkRigBooks(t *testing.T, r *rig, pool *pgxpool.Pool) {
	t.Helper()
	ctx := context.Background()
	accounts, _, err := ledger.ListAccounts(ctx, pool, gatewaytest.Tenant, "", ledger.MaxPage)
	if err != nil {
		t.Fatal(err)
	}
	var held, atScheme int64
	for _, account := range accounts {
		if account.Kind != ledger.Customer {
			continue
		}
		balance, err := ledger.BalanceAt(ctx, pool, account, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		held += balance.Held.Minor
	}
	for _, hold := range r.scheme.Holds() {
		atScheme += hold.HeldMinor
	}
	if held != atScheme {
		t.Errorf("the ledger holds %d minor units, the scheme %d", held, atScheme)
	}
	report, err := ledger.Verify(ctx, pool, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		t.Errorf("ledger: %s", strings.Join(report.Faults(), "; "))
	}
	for _, balance := range report.TrialBalances {
		if balance.Debit != balance.Credit {
			t.Errorf("trial balance %s %s: debit %d, credit %d", balance.Currency, balance.Layer, balance.Debit, balance.Credit)
		}
	}
}

// checkHistory: every subject's transitions are numbered without a gap, each starts where the one before ended and not earlier
// than it, and the last one is where the subject stands.
func checkHistory(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for what, query := range map[string]string{
		"transitions out of order": `SELECT count(*) FROM (SELECT state_version, from_state, at, lag(to_state) OVER w AS former, lag(at) OVER w AS former_at, row_number() OVER w AS n
			FROM state_history WINDOW w AS (PARTITION BY subject_id ORDER BY state_version)) h
			WHERE n <> state_version OR from_state IS DISTINCT FROM former OR at < former_at`,
		"subjects that stand elsewhere than their history says": `SELECT count(*) FROM (
				SELECT id, state, state_version FROM card_authorization UNION ALL SELECT id, state, state_version FROM duty) s
			LEFT JOIN state_history h ON h.subject_id = s.id AND h.state_version = s.state_version AND h.to_state = s.state
			WHERE h.subject_id IS NULL OR EXISTS (SELECT FROM state_history l WHERE l.subject_id = s.id AND l.state_version > s.state_version)`,
	} {
		var n int
		if err := pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// messagesOf counts what reached the scheme after the first n records, by type.
func messagesOf(journal []sim.Record, n int) map[string]int {
	count := map[string]int{}
	for _, record := range journal[n:] {
		if record.Direction == sim.In {
			count[record.MTI]++
		}
	}
	return count
}

// financial are the types of messagesOf that are not network management.
func financial(count map[string]int) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(count)), func(mti string) bool { return strings.HasPrefix(mti, "08") })
}

// requestsFrom counts the 0100s of one terminal that reached the scheme.
func requestsFrom(journal []sim.Record, terminal string) (n int) {
	for _, record := range journal {
		if record.Direction == sim.In && record.MTI == "0100" && record.TerminalID == terminal {
			n++
		}
	}
	return n
}

func countStates(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	states := map[string]int{}
	for _, row := range selectRigAuthorizations(t, pool) {
		states[row.State]++
	}
	return states
}
