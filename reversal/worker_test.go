package reversal_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/reversal"
)

// desk is where a worker's duties lie: its steps without a database, on the bubble's clock.
type desk struct {
	ready   atomic.Bool
	claims  atomic.Int64
	looks   atomic.Int64 // calls of NextDue
	failing atomic.Bool
	wake    chan struct{}

	mu        sync.Mutex // protects the following
	waiting   []reversal.Duty
	inFlight  int
	most      int
	delivered map[uuid.UUID]time.Time
}

func newDesk(duties ...reversal.Duty) *desk {
	d := &desk{waiting: duties, delivered: map[uuid.UUID]time.Time{}, wake: make(chan struct{}, 1)}
	d.ready.Store(true)
	return d
}

// worker delivers with takes, which says how long a duty's attempt is on the wire.
func (d *desk) worker(inFlight int, takes func(reversal.Duty) time.Duration) *reversal.Worker {
	return &reversal.Worker{
		Link: "visa-a", Policy: reversal.Policy{InFlight: inFlight}, Log: zap.NewNop(), Wake: d.wake, Ready: d.ready.Load,
		Claim: func(_ context.Context, limit int) ([]reversal.Duty, error) {
			d.claims.Add(1)
			if d.failing.Load() {
				return nil, errors.New("database away")
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			n := 0
			for n < len(d.waiting) && n < limit && !d.waiting[n].NextAt.After(time.Now()) {
				n++
			}
			claimed := d.waiting[:n:n]
			d.waiting = d.waiting[n:]
			return claimed, nil
		},
		Deliver: func(_ context.Context, duty reversal.Duty) {
			d.mu.Lock()
			d.inFlight++
			d.most = max(d.most, d.inFlight)
			d.mu.Unlock()
			time.Sleep(takes(duty))
			d.mu.Lock()
			defer d.mu.Unlock()
			d.inFlight--
			d.delivered[duty.ID] = time.Now()
		},
		NextDue: func(context.Context) (time.Time, error) {
			d.looks.Add(1)
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.waiting) == 0 {
				return time.Time{}, nil
			}
			return d.waiting[0].NextAt, nil
		},
	}
}

func (d *desk) add(duty reversal.Duty) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, duty)
}

func (d *desk) deliveredAt(id uuid.UUID) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.delivered[id]
}

func duties(n int, at time.Time) []reversal.Duty {
	list := make([]reversal.Duty, n)
	for i := range list {
		list[i] = reversal.Duty{ID: uuid.New(), NextAt: at, Attempt: 1}
	}
	return list
}

// running runs a worker inside a bubble until the returned function is called, which waits for its end.
func running(w *reversal.Worker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func instantly(reversal.Duty) time.Duration { return time.Millisecond }

func TestS06_WorkerLetsAPoisonDutyDelayNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		list := duties(500, start)
		d := newDesk(list...)
		stop := running(d.worker(2, func(duty reversal.Duty) time.Duration {
			if duty.ID == list[0].ID {
				return time.Hour
			}
			return time.Millisecond
		}))
		time.Sleep(5 * time.Second)
		for _, duty := range list[1:] {
			if at := d.deliveredAt(duty.ID); at.IsZero() {
				t.Fatal("a duty waits behind the poison one")
			}
		}
		if !d.deliveredAt(list[0].ID).IsZero() {
			t.Fatal("the poison duty was delivered")
		}
		stop()
		if d.deliveredAt(list[0].ID).IsZero() {
			t.Fatal("the end of Run left an attempt without a result")
		}
	})
}

func TestWorkerBoundsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(duties(200, time.Now())...)
		stop := running(d.worker(7, func(reversal.Duty) time.Duration { return 10 * time.Second }))
		time.Sleep(9 * time.Second)
		// All slots are taken and more is due: the end of an attempt wakes the worker, so it needs not look often.
		if looks := d.claims.Load() + d.looks.Load(); looks > 20 {
			t.Errorf("looked at the database %d times while every slot was taken", looks)
		}
		time.Sleep(time.Hour)
		stop()
		if d.most != 7 || len(d.delivered) != 200 {
			t.Fatalf("%d in flight at once, %d delivered", d.most, len(d.delivered))
		}
	})
}

func TestWorkerClaimsNothingWhileNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := duties(1, time.Now())
		d := newDesk(list...)
		d.ready.Store(false)
		stop := running(d.worker(4, instantly))
		time.Sleep(time.Minute)
		if n := d.claims.Load(); n != 0 {
			t.Fatalf("%d claims for a link that takes no traffic", n)
		}
		d.ready.Store(true)
		time.Sleep(time.Second)
		stop()
		if d.deliveredAt(list[0].ID).IsZero() {
			t.Fatal("not delivered once the link was ready")
		}
	})
}

func TestWorkerIsOnTimeAndWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		later := duties(1, start.Add(10*time.Second))[0]
		d := newDesk(later)
		stop := running(d.worker(4, func(reversal.Duty) time.Duration { return 0 }))
		time.Sleep(3300 * time.Millisecond)
		soon := duties(1, time.Now())[0]
		d.mu.Lock()
		d.waiting = append([]reversal.Duty{soon}, d.waiting...)
		d.mu.Unlock()
		woken := time.Now()
		d.wake <- struct{}{}
		synctest.Wait()
		if at := d.deliveredAt(soon.ID); !at.Equal(woken) {
			t.Fatalf("woken at %s, delivered at %s", woken, at)
		}
		time.Sleep(10 * time.Second)
		stop()
		if at := d.deliveredAt(later.ID); at.Before(later.NextAt) || at.Sub(later.NextAt) > 10*time.Millisecond {
			t.Fatalf("due at %s, delivered at %s", later.NextAt, at)
		}
	})
}

func TestWorkerOutlivesAFailingDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := duties(1, time.Now())
		d := newDesk()
		d.failing.Store(true)
		stop := running(d.worker(4, instantly))
		d.add(list[0])
		time.Sleep(time.Minute)
		if n := d.claims.Load(); n < 10 || n > 200 {
			t.Fatalf("%d tries in a minute", n)
		}
		d.failing.Store(false)
		time.Sleep(2 * time.Second)
		stop()
		if d.deliveredAt(list[0].ID).IsZero() {
			t.Fatal("not delivered after the database came back")
		}
	})
}
