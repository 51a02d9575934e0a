package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/ledger/localpg"
	"github.com/schemegate/schemegate/ledger/pgtest"
)

// smallPrivate is the private PostgreSQL of a test: small, and on settings that differ in size only.
const smallPrivate = "database: {private: {shared_buffers_mib: 32, max_wal_mib: 128, max_connections: 60}}"

func TestSIGTERMInMidTrafficDrains(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "")
	tr := newTraffic(r)
	d := r.serve(file)
	stop := make(chan struct{})
	time.AfterFunc(tr.between(150*time.Millisecond, 400*time.Millisecond), func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		<-d.ended
		close(stop)
	})
	intents := tr.burst(stop, d)
	<-stop
	if code := d.exit(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if states := countStates(t, db.Pool); states["pending"] != 0 || states["approved"] == 0 {
		t.Errorf("the drain left %v", states)
	}
	var open int
	if err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM daemon WHERE ended_at IS NULL`).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d epochs are open after an orderly end, %v", open, err)
	}
	// Nobody asks for anything now: the restart has reversals to go on with, and nothing else to send.
	before := len(r.scheme.Journal())
	d = r.serve(file)
	r.awaitRest(db.Pool)
	if sent := messagesOf(r.scheme.Journal(), before); sent["0100"] != 0 || len(financial(sent)) > 2 {
		t.Errorf("the restart sent %v", sent)
	}
	tr.settle(intents, d)
	r.awaitRest(db.Pool)
	checkInvariants(t, tr, db.Pool, d)
}

func TestSecondSIGTERMCutsAndRestartReverses(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	database := "database: {url: '" + db.URL + "'}"
	patient := r.configure("daemon-a", database, "answer_within: 2m")
	tr := newTraffic(r)
	d := r.serve(patient)
	i := &intent{key: "key-silent", body: gatewaytest.Purchase("10.91", nil)}
	tr.intents = append(tr.intents, i)
	answered := make(chan bool, 1)
	go func() { answered <- tr.once(i, d.api()) }()
	r.eventually("the request reaches the scheme", func() bool { return messagesOf(r.scheme.Journal(), 0)["0100"] == 1 })
	began := time.Now()
	d.signal()
	r.eventually("the first signal is heard", func() bool {
		status, body := r.fetch(d.admin() + "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "the daemon is stopping")
	})
	if reply := r.post(d.api(), "key-new", gatewaytest.Purchase("12.34", nil)); reply.status != 0 && reply.view.Sent != "no" {
		t.Errorf("a stopping daemon took a request: %d %s", reply.status, reply.body)
	}
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if took := time.Since(began); took > 15*time.Second { // the drain would take 30 s, the answer two minutes
		t.Errorf("the cut took %s", took)
	}
	<-answered // whatever the caller heard
	if states := countStates(t, db.Pool); states["pending"] != 0 || states["timed_out"]+states["reversed"] != 1 {
		t.Errorf("the cut left %v", states)
	}
	d = r.serve(r.configure("daemon-a", database, ""))
	r.awaitRest(db.Pool)
	tr.settle(tr.intents, d)
	checkInvariants(t, tr, db.Pool, d)
	if sent := messagesOf(r.scheme.Journal(), 0); sent["0100"] != 1 || sent["0420"]+sent["0421"] == 0 {
		t.Errorf("the scheme got %v", sent)
	}
}

func TestTwoDaemonsOnOneDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	database := "database: {url: '" + db.URL + "'}"
	fileA, fileB := r.configure("daemon-a", database, ""), r.configure("daemon-b", database, "")
	tr := newTraffic(r)
	a, b := r.serve(fileA), r.serve(fileB)

	// One dies for good: what it left is taken over by the other, past its deadline.
	stop := make(chan struct{})
	time.AfterFunc(tr.between(100*time.Millisecond, 400*time.Millisecond), func() {
		_ = a.cmd.Process.Kill()
		<-a.ended
		close(stop)
	})
	burst := tr.burst(stop, a, b)
	<-stop
	tr.settle(burst, b)
	r.awaitRest(db.Pool)
	checkInvariants(t, tr, db.Pool, b)

	// Both die, and come back at the same time.
	a = r.serve(fileA)
	stop = make(chan struct{})
	time.AfterFunc(tr.between(100*time.Millisecond, 400*time.Millisecond), func() {
		_ = a.cmd.Process.Kill()
		_ = b.cmd.Process.Kill()
		close(stop)
	})
	burst = tr.burst(stop, a, b)
	<-stop
	<-a.ended
	<-b.ended
	a, b = r.launch("serve", "--config", fileA), r.launch("serve", "--config", fileB)
	for _, d := range []*rigProcess{a, b} {
		d.awaitLog(`"ready"`)
		d.awaitLog(`"line signed_on"`)
	}
	tr.settle(burst, a, b)
	r.awaitRest(db.Pool)
	tr.settle(tr.intents, b, a) // each answer from the other one, too
	checkInvariants(t, tr, db.Pool, a, b)
	if r.scheme.Connections() != 2 {
		t.Errorf("%d connections to the scheme", r.scheme.Connections())
	}
}

// ownServer starts a PostgreSQL that this test may stop.
func ownServer(t *testing.T) (url string, start, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp(rigRoot(), "schemegate-rigpg-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	var server *localpg.Server
	start = func() {
		t.Helper()
		cfg := localpg.Config{DataDir: dir, SharedBuffersMiB: 32, MaxWALMiB: 128, MaxConnections: 60}
		var err error
		if server, err = localpg.Start(context.Background(), cfg, zap.NewNop()); err != nil {
			server = nil
			t.Errorf("start PostgreSQL: %v", err)
		}
	}
	stop = func() {
		t.Helper()
		if server == nil {
			return
		}
		if err := server.Stop(context.Background()); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
		server = nil
	}
	t.Cleanup(func() {
		stop()
		os.RemoveAll(dir)
	})
	if start(); server == nil {
		t.FailNow()
	}
	return server.URL(), start, stop
}

func TestDatabaseAwayAndBack(t *testing.T) {
	t.Parallel()
	url, start, stopServer := ownServer(t)
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", "database: {url: '"+url+"'}", "")
	tr := newTraffic(r)

	// Away at the start: a word, and an exit.
	stopServer()
	began := time.Now()
	d := r.launch("serve", "--config", file)
	if code := d.exit(); code != exitFault || d.log.find("migrate database") == "" || time.Since(began) > 20*time.Second {
		t.Errorf("exit %d after %s:\n%s", code, time.Since(began), d.log.tail(10))
	}
	start()
	pool := r.openPool(url)
	d = r.serve(file)

	// Its sessions end in mid-traffic, twice.
	stop := make(chan struct{})
	var ending sync.WaitGroup
	ending.Go(func() {
		defer close(stop)
		for range 2 {
			time.Sleep(tr.between(50*time.Millisecond, 250*time.Millisecond)) // the moment is the test's input
			if _, err := pool.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, applicationName); err != nil {
				t.Errorf("end sessions: %v", err)
			}
		}
	})
	burst := tr.burst(stop, d)
	ending.Wait()
	tr.settle(burst, d)
	r.awaitRest(pool)
	checkInvariants(t, tr, pool, d)

	// It stops in mid-traffic, and while it is away late answers come, which must not be lost.
	lates := tr.lates(5)
	tr.hangsUp = false // it would take the late answers with it
	r.eventually("the link is signed on", func() bool {
		_, body := r.fetch(d.api() + "/v1/links")
		return strings.Contains(body, `"signed_on":true`)
	})
	stop = make(chan struct{})
	ending.Go(func() {
		defer close(stop)
		time.Sleep(tr.between(100*time.Millisecond, 300*time.Millisecond))
		for _, late := range lates {
			ending.Go(func() { tr.once(late, d.api()) })
		}
		if !within(rigWait, func() bool { return requestsFrom(r.scheme.Journal(), lateTerminal) == len(lates) }) {
			t.Error("the late ones do not reach the scheme")
		}
		stopServer()
		checkRefusedWithoutDatabase(t, r, d)
		if !within(rigLate+rigWait/6, func() bool { return d.log.find("message waits to be kept") != "" }) {
			t.Error("no late answer came while the database was away")
		}
		start()
	})
	burst = tr.burst(stop, d)
	ending.Wait()
	tr.settle(burst, d)
	r.awaitRest(pool)
	tr.settle(tr.intents, d)
	r.eventually("the late answers are written down", func() bool {
		var n int
		err := pool.QueryRow(context.Background(), `SELECT count(*) FROM card_authorization a WHERE client_reference LIKE 'late-%'
			AND EXISTS (SELECT FROM message m WHERE m.authorization_id = a.id AND m.direction = 'in' AND m.mti = '0110')`).Scan(&n)
		return err == nil && n == len(lates)
	})
	checkInvariants(t, tr, pool, d)
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Errorf("exit %d", code)
	}
	t.Logf("states %v", countStates(t, pool))
}

// lateTerminal marks the intents of lates in the scheme's journal.
const lateTerminal = "LATE0001"

// lates makes intents whose answers come late.
func (tr *traffic) lates(n int) []*intent {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	lates := make([]*intent, n)
	for k := range lates {
		lates[k] = &intent{key: fmt.Sprintf("key-late-%d", k),
			body: gatewaytest.Purchase("10.92", map[string]any{"client_reference": fmt.Sprintf("late-%d", k),
				"merchant": map[string]any{"terminal_id": lateTerminal, "acceptor_id": "ACCEPTOR1", "mcc": "5411"}})}
	}
	tr.intents = append(tr.intents, lates...)
	return lates
}

// checkRefusedWithoutDatabase: what cannot be recorded is refused, and certainly not sent. The refused request is none of the
// intents, so a row of it, or an 0100, is found when the intents are counted.
func checkRefusedWithoutDatabase(t *testing.T, r *rig, d *rigProcess) {
	t.Helper()
	reply := r.post(d.api(), "key-away", gatewaytest.Purchase("12.34", nil))
	refused := reply.view.Code == "database_unavailable" || reply.view.Code == "overloaded" // where both connections wait for the database
	if reply.status != http.StatusServiceUnavailable || !refused || reply.view.Sent != "no" || reply.view.Retry != "after" {
		t.Errorf("without a database: %d %s", reply.status, reply.body)
	}
	if status, body := r.fetch(d.admin() + "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "database_writable") {
		t.Errorf("readyz without a database: %d %s", status, body)
	}
}

// startToReady is how long a start may take on an existing cluster; with the race detector and a busy machine, readyGuard.
const (
	startToReady = 2 * time.Second
	readyGuard   = 5 * time.Second
)

func TestPrivatePostgreSQLIsAdoptedAfterAKill(t *testing.T) {
	t.Parallel()
	t.Run("as who runs the tests", func(t *testing.T) { testAdoption(t, nil) })
	t.Run("as an ordinary user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("the tests run as an ordinary user already, so the other run has shown this")
		}
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Skip("this system has no user nobody")
		}
		uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		testAdoption(t, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
	})
}

func testAdoption(t *testing.T, as *syscall.Credential) {
	r := newRig(t, rigLate)
	file := r.configure("daemon-a", smallPrivate, "")
	if as != nil {
		r.giveTo(as)
	}
	t.Cleanup(func() { r.stopLeftPostgres(filepath.Join(r.dir, "data")) })
	tr := newTraffic(r)
	d := r.serve(file)
	silent := &intent{key: "key-silent", body: gatewaytest.Purchase("10.91", nil)}
	plain := &intent{key: "key-plain", body: gatewaytest.Purchase("12.34", nil)}
	tr.intents = append(tr.intents, silent, plain)
	tr.settle([]*intent{plain}, d)
	broken := make(chan bool, 1)
	go func() { broken <- tr.once(silent, d.api()) }()
	r.eventually("both requests reach the scheme", func() bool { return messagesOf(r.scheme.Journal(), 0)["0100"] == 2 })
	d.kill()
	<-broken

	began := time.Now()
	d = r.serve(file)
	adopted := time.Since(began)
	if line := d.awaitLog("private PostgreSQL runs"); !strings.Contains(line, `"adopted":true`) {
		t.Errorf("the server was not adopted: %s", line)
	}
	tr.settle(tr.intents, d)
	r.eventually("the silent one is reversed", func() bool {
		_, body := r.fetch(d.api() + "/v1/authorizations?state=reversed")
		return strings.Contains(body, `"state":"reversed"`)
	})
	var held int64
	for _, hold := range r.scheme.Holds() {
		held += hold.HeldMinor
	}
	if sent := messagesOf(r.scheme.Journal(), 0); held != 1234 || sent["0100"] != 2 {
		t.Errorf("the scheme holds %d and got %v", held, sent)
	}
	d.signal()
	if code := d.exit(); code != exitOK || d.log.find("private PostgreSQL stopped") == "" {
		t.Errorf("exit %d, and the server may still run", code)
	}

	began = time.Now()
	d = r.serve(file)
	whole := time.Since(began)
	if line := d.awaitLog("private PostgreSQL runs"); !strings.Contains(line, `"adopted":false`) {
		t.Errorf("the server was not stopped before: %s", line)
	}
	tr.settle(tr.intents, d)
	t.Logf("start to signed on: %s with an adopted server, %s with the server's own start", adopted.Round(time.Millisecond), whole.Round(time.Millisecond))
	limit := startToReady
	if raceEnabled() {
		limit = readyGuard
	}
	if whole > limit || adopted > limit {
		t.Errorf("a start took more than %s", limit)
	}
	verified := r.launch("ledger", "verify", "--config", file)
	if code := verified.exit(); code != exitOK || verified.log.find("ok") != "ok" {
		t.Errorf("ledger verify: exit %d\n%s", code, verified.log.tail(20))
	}
	d.signal()
	if code := d.exit(); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// giveTo makes the daemons another user's: the directory, and a copy of the program that this user can reach. The copy lies on
// disk, since programs in memory may be forbidden, and another process makes it: one of ours that is forked meanwhile would keep
// the file open for writing, and it could not be run.
func (r *rig) giveTo(as *syscall.Credential) {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "schemegate-rig-")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, "program")
	if out, err := exec.Command("cp", r.program, copied).CombinedOutput(); err != nil {
		r.t.Fatalf("copy the program: %v: %s", err, out)
	}
	r.program = copied
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(copied, 0o755)); err != nil {
		r.t.Fatal(err)
	}
	err = filepath.WalkDir(r.dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, int(as.Uid), int(as.Gid)))
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.as = as
}

const (
	flatWarmUp         = 3_000
	flatAuthorizations = 20_000
	flatClients        = 64
	// What may be left over: buffers that grew, connections that came.
	flatHeapBytes  = 8 << 20
	flatGoroutines = 10
)

func TestMemoryStaysFlat(t *testing.T) {
	if testing.Short() || raceEnabled() {
		t.Skip("20,000 authorisations take too long with the race detector or under -short")
	}
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newRig(t, rigLate)
	d := r.serve(r.configure("daemon-a", "database: {url: '"+db.URL+"'}", "answer_within: 5s"))
	r.approve(d, "warm", flatWarmUp)
	before := r.footprint(d)
	began := time.Now()
	r.approve(d, "flat", flatAuthorizations)
	took := time.Since(began)
	after := r.footprint(d)
	t.Logf("%d authorisations in %s (%.0f a second); before %+v, after %+v", flatAuthorizations, took.Round(time.Millisecond),
		flatAuthorizations/took.Seconds(), before, after)
	if after.heapBytes > before.heapBytes+flatHeapBytes {
		t.Errorf("the heap grew from %.0f to %.0f bytes", before.heapBytes, after.heapBytes)
	}
	if after.goroutines > before.goroutines+flatGoroutines {
		t.Errorf("goroutines grew from %.0f to %.0f", before.goroutines, after.goroutines)
	}
	if states := countStates(t, db.Pool); states["approved"] != flatWarmUp+flatAuthorizations {
		t.Errorf("states %v", states)
	}
}

// approve sends n plain purchases and wants them approved.
func (r *rig) approve(d *rigProcess, prefix string, n int) {
	r.t.Helper()
	api := d.api()
	var clients sync.WaitGroup
	for c := range flatClients {
		clients.Go(func() {
			for k := c; k < n; k += flatClients {
				name := fmt.Sprintf("%s-%d", prefix, k)
				reply := r.post(api, name, gatewaytest.Purchase("12.34", map[string]any{"client_reference": name}))
				if reply.status != http.StatusCreated || reply.view.State != "approved" {
					r.t.Errorf("%s: %d %s", name, reply.status, reply.body)
					return
				}
			}
		})
	}
	clients.Wait()
}

// footprint is what a daemon holds once the garbage is collected and its clients are gone.
type footprint struct{ heapBytes, residentBytes, goroutines float64 }

func (r *rig) footprint(d *rigProcess) footprint {
	r.t.Helper()
	r.client.CloseIdleConnections()
	r.eventually("the clients' connections are closed", func() bool { return r.metric(d, "schemegate_http_connections") <= 1 })
	if status, _ := r.fetch(d.admin() + "/debug/pprof/heap?gc=1"); status != http.StatusOK {
		r.t.Fatalf("collect garbage: status %d", status)
	}
	return footprint{heapBytes: r.metric(d, "go_memstats_heap_alloc_bytes"), residentBytes: r.metric(d, "process_resident_memory_bytes"),
		goroutines: r.metric(d, "go_goroutines")}
}
