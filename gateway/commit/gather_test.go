package commit

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

func gathering(t *testing.T) *Committer {
	t.Helper()
	return &Committer{cfg: DefaultConfig(), log: zap.NewNop(), queue: make(chan *request, 16), flying: flying{changed: make(chan struct{})},
		draining: make(chan struct{})}
}

// TestLoneStepLeavesAtOnce: with no transaction in flight nothing gathers.
func TestLoneStepLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := gathering(t), time.Now()
		if batch := c.gather([]*request{{}}); len(batch) != 1 || time.Since(began) != 0 {
			t.Errorf("%d steps after %s", len(batch), time.Since(began))
		}
		if steps, _ := c.flying.look(); steps != 1 {
			t.Errorf("%d steps in flight, want the batch's own", steps)
		}
	})
}

// TestBatchGathersBesideATransaction: until it is as large, until that one ends, or for gatherLimit.
func TestBatchGathersBesideATransaction(t *testing.T) {
	for name, test := range map[string]struct {
		arrive int           // further steps, one a millisecond
		land   time.Duration // when the other transaction ends; 0 for never
		steps  int
		after  time.Duration
	}{
		"as large":        {arrive: 4, steps: 3, after: 2 * time.Millisecond},
		"the other ends":  {arrive: 1, land: 3 * time.Millisecond, steps: 2, after: 3 * time.Millisecond},
		"a slow one":      {arrive: 1, steps: 2, after: gatherLimit},
		"nothing arrives": {steps: 1, after: gatherLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, began := gathering(t), time.Now()
				c.flying.start(3)
				for i := range test.arrive {
					time.AfterFunc(time.Duration(i+1)*time.Millisecond, func() { c.queue <- &request{} })
				}
				if test.land > 0 {
					time.AfterFunc(test.land, func() { c.flying.land(3) })
				}
				if batch := c.gather([]*request{{}}); len(batch) != test.steps || time.Since(began) != test.after {
					t.Errorf("%d steps after %s, want %d after %s", len(batch), time.Since(began), test.steps, test.after)
				}
			})
		})
	}
}
