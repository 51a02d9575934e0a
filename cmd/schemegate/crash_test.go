package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

const (
	// killCyclesVariable and seedVariable make a longer run, and the same run again.
	killCyclesVariable = "SCHEMEGATE_TEST_KILL_CYCLES"
	seedVariable       = "SCHEMEGATE_TEST_SEED"
	killCycles         = 12

	trafficClients = 12
	// maxTraffic bounds the intents of one burst.
	maxTraffic = 150
)

// intent is one purchase of the client's: its key and body never change.
type intent struct {
	key  string
	body []byte

	mu     sync.Mutex // protects the following
	status int        // of the final answer; 0 until there is one
	final  []byte
}

// traffic is everything the clients ever wanted.
type traffic struct {
	rig *rig

	mu      sync.Mutex // protects the following
	random  *rand.Rand
	intents []*intent
}

func newTraffic(r *rig) *traffic {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			r.t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	r.t.Logf("%s=%d", seedVariable, seed)
	return &traffic{rig: r, random: rand.New(rand.NewPCG(seed, 0))}
}

// oddAmounts are the scheme's magic amounts that end in a state of rest by themselves, each with its share in 150.
var oddAmounts = []struct {
	amount string
	share  int
}{
	{"10.05", 6}, {"10.51", 4}, {"10.66", 2}, {"10.69", 2}, {"10.10", 2}, {"10.80", 3}, {"10.81", 2}, {"10.84", 3}, {"10.85", 2},
	{"10.86", 2}, {"10.87", 2}, {"10.89", 3}, {"10.90", 3}, {"10.91", 6}, {"10.92", 5}, {"10.93", 5}, {"10.94", 2}, {"10.95", 2},
	{"10.96", 1}, {"10.97", 1}, {"10.98", 2},
}

// next makes a new intent: six in ten are plain purchases.
func (tr *traffic) next() *intent {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := len(tr.intents)
	amount := fmt.Sprintf("%d.%02d", 20+n/100, n%100)
	lot := tr.random.IntN(150)
	for _, odd := range oddAmounts {
		if lot -= odd.share; lot < 0 {
			amount = odd.amount
			break
		}
	}
	i := &intent{key: fmt.Sprintf("key-%06d", n)}
	i.body = gatewaytest.Purchase(amount, map[string]any{"client_reference": fmt.Sprintf("ref-%06d", n), "partial_approval": n%2 == 0})
	tr.intents = append(tr.intents, i)
	return i
}

// between draws a duration.
func (tr *traffic) between(low, high time.Duration) time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return low + time.Duration(tr.random.Int64N(int64(high-low)))
}

// burst sends new intents from several clients until stop is closed, every tenth of them twice at once. Clients take the daemons
// in turn. It returns the burst's intents when all have got something, if only a broken connection.
func (tr *traffic) burst(stop <-chan struct{}, daemons ...*rigProcess) []*intent {
	var clients sync.WaitGroup
	first := len(tr.intents)
	apis := make([]string, len(daemons))
	for i, d := range daemons {
		apis[i] = d.api()
	}
	for c := range trafficClients {
		clients.Go(func() {
			for n := range maxTraffic / trafficClients {
				select {
				case <-stop:
					return
				default:
				}
				i := tr.next()
				copies := 1
				if n%10 == 9 {
					copies = 2
				}
				var sending sync.WaitGroup
				for k := range copies {
					sending.Go(func() { tr.once(i, apis[(c+n+k)%len(apis)]) })
				}
				sending.Wait()
			}
		})
	}
	clients.Wait()
	return tr.intents[first:]
}

// once sends an intent one time and checks what comes against what came before. done tells that the answer is final.
func (tr *traffic) once(i *intent, api string) (done bool) {
	known := i.answered()
	reply := tr.rig.post(api, i.key, i.body)
	t := tr.rig.t
	switch {
	case reply.status == 0:
		return false
	case reply.status == http.StatusCreated, reply.view.Code == "not_sent" && reply.status == http.StatusServiceUnavailable:
	case reply.view.Code == "idempotency_in_progress" && reply.status == http.StatusConflict,
		reply.view.Code == "outcome_unknown" && reply.view.Sent == "unknown" && reply.view.Retry == "same_key":
		return false
	case reply.status == http.StatusServiceUnavailable && reply.view.Sent == "no" && reply.view.Retry == "after":
		if known { // what was refused certainly left no record, so a known answer can only be hidden by a database that is away
			switch reply.view.Code {
			case "database_unavailable", "shutting_down", "link_unavailable", "overloaded":
			default:
				t.Errorf("%s has a final answer and is refused: %s", i.key, reply.body)
			}
		}
		return false
	default:
		t.Errorf("%s: unexpected answer %d %s", i.key, reply.status, reply.body)
		return false
	}
	if known && !reply.replayed {
		t.Errorf("%s: a repeat is not marked as a replay", i.key)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.status == 0 {
		i.status, i.final = reply.status, reply.body
	} else if i.status != reply.status || !bytes.Equal(i.final, reply.body) {
		t.Errorf("%s: two final answers:\n%d %s\n%d %s", i.key, i.status, i.final, reply.status, reply.body)
	}
	return true
}

func (i *intent) answered() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.status != 0
}

// settle repeats every intent with its own key until its answer is final, also where it had one before.
func (tr *traffic) settle(intents []*intent, daemons ...*rigProcess) {
	tr.rig.t.Helper()
	queue := make(chan *intent)
	var clients sync.WaitGroup
	deadline := time.Now().Add(rigWait)
	for c := range trafficClients {
		clients.Go(func() {
			for i := range queue {
				for !tr.once(i, daemons[c%len(daemons)].api()) {
					if time.Now().After(deadline) {
						tr.rig.t.Errorf("%s never gets a final answer", i.key)
						break
					}
					time.Sleep(10 * rigPoll)
				}
			}
		})
	}
	for _, i := range intents {
		queue <- i
	}
	close(queue)
	clients.Wait()
}

func TestKillAnywhere(t *testing.T) {
	t.Parallel()
	cycles := killCycles
	if text := os.Getenv(killCyclesVariable); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", killCyclesVariable, err)
		}
	}
	if testing.Short() {
		cycles = min(cycles, 3)
	}
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	tr := newTraffic(r)
	d := r.serve(file)
	for cycle := range cycles {
		stop := make(chan struct{})
		after := tr.between(20*time.Millisecond, 700*time.Millisecond)
		victim := d
		timer := time.AfterFunc(after, func() {
			_ = victim.cmd.Process.Kill()
			close(stop)
		})
		burst := tr.burst(stop, victim)
		<-stop
		timer.Stop()
		<-victim.ended
		if cycle%3 == 2 { // and once more while it recovers, or before
			again := r.launch("serve", "--config", file)
			time.Sleep(tr.between(0, 600*time.Millisecond)) // the moment is the test's input, not a wait for something
			again.kill()
		}
		d = r.serve(file)
		tr.settle(burst, d)
		r.awaitRest(db.Pool)
		checkInvariants(t, tr, db.Pool, d)
		if t.Failed() {
			t.Fatalf("cycle %d, killed after %s, %d intents so far", cycle, after, len(tr.intents))
		}
	}
	tr.settle(tr.intents, d)
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	verified := r.launch("ledger", "verify", "--config", file)
	if code := verified.exit(); code != exitOK || verified.log.find("ok") != "ok" {
		t.Errorf("ledger verify: exit %d\n%s", code, verified.log.tail(20))
	}
	states := countStates(t, db.Pool)
	t.Logf("%d kills, %d intents: %v", cycles, len(tr.intents), states)
	for _, state := range []string{"approved", "declined", "reversed"} {
		if states[state] == 0 {
			t.Errorf("no authorisation ended as %s: the run proved little", state)
		}
	}
}

func countStates(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	states := map[string]int{}
	for _, row := range selectRigAuthorizations(t, pool) {
		states[row.State]++
	}
	return states
}

// awaitRest waits until nothing is on its way any more.
func (r *rig) awaitRest(pool *pgxpool.Pool) {
	r.t.Helper()
	r.eventually("nothing is pending and no reversal is owed", func() bool {
		var open int
		err := pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM card_authorization WHERE state IN ('pending', 'timed_out'))
			+ (SELECT count(*) FROM reversal WHERE state <> 'acknowledged')`).Scan(&open)
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
	AmountMinor          int64
	ApprovedMinor        *int64
	Reversals            int
	ReversalState        *string
	Attempts             *int32
}

func selectRigAuthorizations(t *testing.T, pool *pgxpool.Pool) []rigAuthorization {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT a.client_reference, a.state, a.state_version, a.stan, a.rrn, a.transmission_date_time, a.amount_minor, a.approved_minor,
			count(r.id) AS reversals, min(r.state) AS reversal_state, min(r.attempts) AS attempts
		FROM card_authorization a LEFT JOIN reversal r ON r.authorization_id = a.id GROUP BY a.id ORDER BY a.client_reference`)
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

// checkOnceEach: one row an intent, and one 0100 a row at most. An 0100 without a row would be bytes without an intent.
func checkOnceEach(t *testing.T, tr *traffic, rows []rigAuthorization, journal []sim.Record) {
	t.Helper()
	references, rrns := map[string]int{}, map[string]int{}
	for _, row := range rows {
		references[row.ClientReference]++
		rrns[row.RRN]++
	}
	if len(rows) != len(tr.intents) || len(references) != len(rows) || len(rrns) != len(rows) {
		t.Errorf("%d intents, %d authorisations, %d references, %d RRNs", len(tr.intents), len(rows), len(references), len(rrns))
	}
	arrived := map[string]int{}
	for _, record := range journal {
		if record.Direction == sim.In && record.MTI == "0100" {
			arrived[record.RRN]++
		}
	}
	for rrn, n := range arrived {
		if n > 1 || rrns[rrn] == 0 {
			t.Errorf("RRN %s reached the scheme %d times and has %d rows", rrn, n, rrns[rrn])
		}
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
				SELECT id, state, state_version FROM card_authorization UNION ALL SELECT id, state, state_version FROM reversal) s
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
