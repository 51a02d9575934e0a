package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkDo shows steps per second by the number in flight, and what 5 % of repeated references cost.
func BenchmarkDo(b *testing.B) {
	for _, inFlight := range []int{1, 16, 64, 256} {
		for _, repeatPercent := range []int{0, 5} {
			b.Run(fmt.Sprintf("in_flight=%d/repeats=%d%%", inFlight, repeatPercent), func(b *testing.B) {
				cfg := DefaultConfig()
				r := newRig(b, cfg).run()
				var next atomic.Int64
				var callers sync.WaitGroup
				b.ResetTimer()
				for range inFlight {
					callers.Go(func() {
						for {
							n := next.Add(1)
							if n > int64(b.N) {
								return
							}
							if rand.IntN(100) < repeatPercent {
								n = 1 + rand.Int64N(n)
							}
							if err := r.c.Do(context.Background(), newRecord(fmt.Sprintf("ref-%012d", n))); err != nil {
								b.Errorf("step: %v", err)
							}
						}
					})
				}
				callers.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
				r.wantMetric("halvings", r.c.metrics.Halvings, 0)
			})
		}
	}
}
