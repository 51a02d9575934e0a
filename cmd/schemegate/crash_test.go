package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/schemegate/schemegate/gateway/gatewaytest"
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
	rig     *rig
	hangsUp bool // whether amounts are drawn that make the scheme hang up

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
	return &traffic{rig: r, hangsUp: true, random: rand.New(rand.NewPCG(seed, 0))}
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
			if tr.hangsUp || odd.amount != "10.96" && odd.amount != "10.97" {
				amount = odd.amount
			}
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
		if states[state] == 0 && len(tr.intents) >= 100 {
			t.Errorf("no authorisation ended as %s: the run proved little", state)
		}
	}
}
