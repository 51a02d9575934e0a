package link

import (
	"time"
)

const (
	inboundBurst  = time.Second // what an idle line may receive at once without being slowed down
	uselessPeriod = time.Minute // of BudgetsConfig.UselessFrames
)

// budget is an allowance that grows with time. It is one goroutine's alone. The zero value allows everything.
type budget struct {
	each  float64 // nanoseconds that one unit takes to grow; 0 is no limit
	burst time.Duration
	spent time.Time // the instant by which everything spent will have grown, plus burst
}

// newBudget allows n units in each period, and burst's worth at once; n = 0 is no limit.
func newBudget(n int, period, burst time.Duration) budget {
	if n == 0 {
		return budget{}
	}
	return budget{each: float64(period) / float64(n), burst: burst}
}

// spend takes n units, which may be more than there are.
func (b *budget) spend(n int, now time.Time) {
	if b.each == 0 {
		return
	}
	b.spent = laterOf(b.spent, now).Add(time.Duration(float64(n) * b.each))
}

// owed is how long it takes until the budget is no longer overdrawn.
func (b *budget) owed(now time.Time) time.Duration {
	if b.each == 0 {
		return 0
	}
	return b.spent.Add(-b.burst).Sub(now)
}

// countingReader counts what arrives, whole frames or not, and reads no faster than the budget of bytes allows.
type countingReader struct {
	s     *socket
	bytes budget
}

func (c *countingReader) Read(p []byte) (int, error) {
	c.s.slowDown(&c.bytes)
	n, err := c.s.nc.Read(p)
	c.s.bytesReceived.Add(int64(n))
	c.bytes.spend(n, time.Now())
	return n, err
}

// slowDown keeps the reader from reading while a budget is overdrawn: the peer's own writes then wait.
func (s *socket) slowDown(b *budget) {
	if b.each == 0 {
		return
	}
	wait := b.owed(time.Now())
	if wait <= 0 {
		return
	}
	s.line.counts.throttled.Add(1)
	s.line.metrics.throttled.Inc()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.done:
	}
}
