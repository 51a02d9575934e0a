package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

func TestEachStepGetsItsOwnResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	first, second, other := newRecord("shared"), newRecord("shared"), newRecord("other")
	n := -1
	outcomes := r.submit(other, first, &script{
		kind: scriptKind(2, `SELECT count(*)::int FROM claim WHERE ref = $1`), args: []any{"shared"}, row: []any{&n},
	}, second)
	r.run()
	for _, o := range outcomes {
		if err := wait(t, o); err != nil {
			t.Fatal(err)
		}
	}
	if first.won() == second.won() || first.winner != second.winner {
		t.Errorf("winners %v and %v of equal keys, want one winner known to both", first.winner, second.winner)
	}
	if !other.won() || r.entries("shared") != 1 || r.entries("other") != 1 {
		t.Errorf("entries %d and %d, want one each", r.entries("shared"), r.entries("other"))
	}
	if n != 1 {
		t.Errorf("a kind of higher order saw %d claims, want 1: it must run after the lower one", n)
	}
	r.wantMetric("batches", r.c.metrics.Batches, 1)
	r.wantMetric("steps", r.c.metrics.Steps.WithLabelValues(nameCommitted), 4)

	repeat := *first
	if err := r.c.Do(t.Context(), &repeat); err != nil || repeat.winner != first.winner {
		t.Errorf("repeat: %v, winner %v, want %v", err, repeat.winner, first.winner)
	}
}

func TestBatchGathersOnlyWhileOneIsInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig()).run()
	for i := range 5 {
		if err := r.c.Do(t.Context(), newRecord(fmt.Sprint("lone", i))); err != nil {
			t.Fatal(err)
		}
	}
	r.wantMetric("batches of lone steps", r.c.metrics.Batches, 5)

	release := r.busy()
	all, steps := records(40)
	outcomes := r.submit(steps...)
	release()
	r.wantCommitted(all, outcomes)
	r.wantMetric("batches", r.c.metrics.Batches, 7)
}

func TestBatchIsCapped(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.MaxBatch = 4
	r := newRig(t, cfg)
	all, steps := records(10)
	outcomes := r.submit(steps...)
	r.run()
	r.wantCommitted(all, outcomes)
	r.wantMetric("batches", r.c.metrics.Batches, 3)
}

func TestFullQueueMakesCallersWait(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.MaxQueued = 3
	r := newRig(t, cfg).run()
	release := r.busy()
	all, steps := records(3)
	outcomes := r.submit(steps...)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	refused := newRecord("refused")
	if err := r.c.Do(ctx, refused); !errors.Is(err, ErrNotTaken) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Do on a full queue: %v, want ErrNotTaken with the deadline as its cause", err)
	}
	patient := newRecord("patient")
	outcome := make(chan error, 1)
	go func() { outcome <- r.c.Do(context.Background(), patient) }()
	release()
	r.wantCommitted(append(all, patient), append(outcomes, outcome))
	if n := r.entries("refused"); n != 0 {
		t.Errorf("a step that was not taken has %d entries", n)
	}
	r.wantMetric("queue length", r.c.metrics.QueueLength, 0)
}

func TestCallerCanLeaveOnlyWhileQueued(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig()).run()
	release := r.busy()
	left := newRecord("left")
	ctx, leave := context.WithCancel(t.Context())
	outcome := make(chan error, 1)
	go func() { outcome <- r.c.Do(ctx, left) }()
	eventually(t, "step queued", func() bool { return len(r.c.queue) == 1 })
	leave()
	if err := wait(t, outcome); !errors.Is(err, ErrNotTaken) || !errors.Is(err, context.Canceled) {
		t.Errorf("caller that left the queue got %v", err)
	}
	release()

	// Taken: the end of the context changes nothing.
	b := r.block()
	ctx, leave = context.WithCancel(t.Context())
	go func() { outcome <- r.c.Do(ctx, &script{kind: gateKind}) }()
	eventually(t, "gate reached", func() bool { return r.count(waiting) == 1 })
	leave()
	stays := newRecord("stays")
	behind := r.submit(stays)
	select {
	case err := <-outcome:
		t.Errorf("Do returned %v before its transaction ended", err)
	default:
	}
	b.lift()
	if err := wait(t, outcome); err != nil {
		t.Errorf("taken step of a caller whose context ended: %v", err)
	}
	r.wantCommitted([]*record{stays}, behind)
	if n := r.entries("left"); n != 0 {
		t.Errorf("an abandoned step has %d entries", n)
	}
	if err := r.c.Do(ctx, newRecord("never")); !errors.Is(err, ErrNotTaken) {
		t.Errorf("Do under an ended context: %v", err)
	}
}

func TestDrainFinishesWhatIsQueued(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.MaxBatch = 8
	r := newRig(t, cfg).run()
	release := r.busy()
	all, steps := records(50)
	outcomes := r.submit(steps...)
	r.stop()
	<-r.c.draining
	if err := r.c.Do(t.Context(), newRecord("late")); !errors.Is(err, ErrNotTaken) {
		t.Errorf("Do while draining: %v, want ErrNotTaken", err)
	}
	select {
	case err := <-r.ran:
		t.Fatalf("Run returned %v with steps queued", err)
	default:
	}
	release()
	r.wantCommitted(all, outcomes)
	r.drain()
	if err := r.c.Do(t.Context(), newRecord("late")); !errors.Is(err, ErrNotTaken) {
		t.Errorf("Do after Run: %v, want ErrNotTaken", err)
	}
	if n := r.entries("late"); n != 0 {
		t.Errorf("refused steps have %d entries", n)
	}
	if err := r.c.Run(t.Context()); err == nil {
		t.Error("a second Run was allowed")
	}
}

// Callers race with the end: each must get an outcome that the database confirms.
func TestDrainUnderTrafficLeavesNobodyWaiting(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Connections, cfg.MaxQueued, cfg.MaxBatch = 2, 8, 4
	r := newRig(t, cfg).run()
	var callers sync.WaitGroup
	var committedSteps, refusedSteps atomic.Int64
	for i := range 32 {
		callers.Go(func() {
			for n := 0; ; n++ {
				err := r.c.Do(context.Background(), newRecord(fmt.Sprintf("%d-%d", i, n)))
				if errors.Is(err, ErrNotTaken) {
					refusedSteps.Add(1)
					return
				}
				if err != nil {
					t.Errorf("step: %v", err)
					return
				}
				committedSteps.Add(1)
			}
		})
	}
	eventually(t, "traffic", func() bool { return committedSteps.Load() > 200 })
	r.drain()
	callers.Wait()
	if refusedSteps.Load() != 32 {
		t.Errorf("%d callers were refused, want 32", refusedSteps.Load())
	}
	if n := r.count(`SELECT count(*) FROM entry`); n != int(committedSteps.Load()) {
		t.Errorf("%d entries for %d committed steps", n, committedSteps.Load())
	}
}

func TestRepeatedKeysAreDecidedBySQLAlone(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Connections = 2
	r := newRig(t, cfg).run()
	const callers, each, repeatEvery = 64, 40, 20
	var wins atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range each {
				ref := fmt.Sprintf("%d-%d", i, n)
				if n%repeatEvery == 0 {
					ref = fmt.Sprintf("hot-%d", n)
				}
				s := newRecord(ref)
				if err := r.c.Do(t.Context(), s); err != nil {
					t.Errorf("step: %v", err)
				}
				if s.won() {
					wins.Add(1)
				}
			}
		})
	}
	all.Wait()
	const hot = each / repeatEvery
	if want := int64(callers*(each-hot) + hot); wins.Load() != want {
		t.Errorf("%d winners, want %d", wins.Load(), want)
	}
	if n := r.count(`SELECT count(*) FROM (SELECT ref FROM entry GROUP BY ref HAVING count(*) <> 1) AS twice`); n != 0 {
		t.Errorf("%d references took effect more than once", n)
	}
	r.wantMetric("halvings", r.c.metrics.Halvings, 0)
	r.wantMetric("conflict retries", r.c.metrics.Retries.WithLabelValues(nameConflict), 0)
}

func TestNamedArgumentsAndChangingSQL(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig()).run()
	var got, prepared int
	named := &script{
		kind: scriptKind(0, `SELECT @a::int - @b::int`), args: []any{pgx.NamedArgs{"b": 2, "a": 44}}, row: []any{&got},
	}
	if err := r.c.Do(t.Context(), named); err != nil || got != 42 {
		t.Errorf("named arguments: %v, got %d, want 42", err, got)
	}
	for i := range 2 * maxPrepared {
		kind := scriptKind(0, fmt.Sprintf(`SELECT count(*)::int, %d FROM pg_prepared_statements`, i))
		var same int
		if err := r.c.Do(t.Context(), &script{kind: kind, row: []any{&prepared, &same}}); err != nil || same != i {
			t.Fatalf("statement %d: %v, got %d", i, err, same)
		}
		if prepared > maxPrepared+3 {
			t.Fatalf("%d statements are prepared, the bound is %d", prepared, maxPrepared)
		}
	}
}

// Not parallel: it reads the heap of the whole process.
func TestMemoryStaysFlat(t *testing.T) {
	cfg := testConfig()
	cfg.Connections = 2
	r := newRig(t, cfg).run()
	traffic := func() {
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				for n := range 60 {
					if err := r.c.Do(context.Background(), newRecord(fmt.Sprintf("%d-%d", i, n))); err != nil {
						t.Errorf("step: %v", err)
					}
				}
			})
		}
		all.Wait()
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	traffic()
	before := heap()
	for range 3 {
		traffic()
	}
	const allowed = 1 << 20 // 11,520 steps kept would need several times as much
	if after := heap(); after > before+allowed {
		t.Errorf("heap grew from %d to %d bytes", before, after)
	}
}

func TestConfigIsCheckedWhole(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("default configuration: %v", err)
	}
	_, err := New(Config{Connections: 1, MaxBatch: -1}, nil, zap.NewNop(), NewMetrics(nil))
	if err == nil {
		t.Fatal("a zero configuration was accepted")
	}
	for _, field := range []string{"MaxBatch", "MaxQueued", "ConnectTimeout", "AnswerTimeout", "UnavailableTimeout", "ResolveTimeout"} {
		if !strings.Contains(err.Error(), field+" must be positive") {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
	if strings.Contains(err.Error(), "Connections") {
		t.Errorf("error names a valid field: %v", err)
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	NewMetrics(reg)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]bool)
	for _, f := range families {
		have[strings.TrimPrefix(f.GetName(), "schemegate_commit_")] = true
	}
	for _, name := range []string{"batches_total", "steps_total", "batch_size", "duration_seconds", "halvings_total",
		"retries_total", "unknown_total", "resolved_total", "queue_length"} {
		if !have[name] {
			t.Errorf("metric schemegate_commit_%s is missing", name)
		}
	}
}

func TestSortIsByKindThenKey(t *testing.T) {
	t.Parallel()
	early, late := &Kind{Name: "b", Order: 1}, &Kind{Name: "a", Order: 2}
	twin := &Kind{Name: "c", Order: 1}
	requests := []*request{{kind: late}, {kind: twin}, {kind: early}}
	for i, a := range requests {
		for j, b := range requests {
			if got, want := compare(a, b) < 0, j < i; got != want {
				t.Errorf("%s before %s: %v, want %v", a.kind.Name, b.kind.Name, got, want)
			}
		}
	}
	x, y := &record{ref: "x", owner: uuid.New()}, &record{ref: "y", owner: uuid.New()}
	a, b := &request{kind: recordKind, step: x}, &request{kind: recordKind, step: y}
	if compare(a, b) >= 0 || compare(b, a) <= 0 || compare(a, a) != 0 {
		t.Error("records are not in the order of their references")
	}
}
