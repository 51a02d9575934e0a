package gateway

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/reversal"
)

// TestResolutionsOfTwoClaimsMeetInOneBatch: an attempt of which nothing left gives its number back, so that the next claim has it
// too. The first claim's result, running again after a COMMIT of unknown outcome, moves nothing and stands in nobody's way.
func TestResolutionsOfTwoClaimsMeetInOneBatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	given := b.giveUp(t)
	b.run(t, queueDecisions, given)
	now := time.Now().UTC().Truncate(time.Microsecond).Add(2 * time.Hour)
	claim := func(at time.Time) (d reversal.Duty) {
		err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
			duties, err := reversal.Claim(t.Context(), tx, "visa-a", 1, at, at.Add(time.Minute), 1)
			if err == nil {
				d = duties[0]
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	unsent := &resolveStep{duty: claim(now), outcome: reversal.AttemptUnsent, at: now, nextAt: now.Add(time.Second)}
	b.run(t, queueResolutions, unsent)
	if !unsent.won {
		t.Fatal("the first claim's result was not written")
	}
	silent := &resolveStep{duty: claim(now.Add(time.Second)), outcome: reversal.AttemptSilent, at: now, nextAt: now.Add(time.Hour)}
	b.run(t, queueResolutions, unsent)
	if unsent.won {
		t.Fatal("the first claim's result undid the second claim")
	}
	b.run(t, queueResolutions, unsent, silent)
	if unsent.won || !silent.won || silent.duty.Attempt != unsent.duty.Attempt {
		t.Fatalf("first claim's result won %t, second claim's won %t", unsent.won, silent.won)
	}
	if n := b.count(t, `SELECT count(*) FROM duty WHERE state = 'owed' AND attempts = 1 AND claim_epoch IS NULL`); n != 1 {
		t.Fatal("the second claim's attempt is not counted")
	}
}
