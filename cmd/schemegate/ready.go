package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/api"
)

// maxClockDifference is how far our clock and the database's may be apart. Deadlines and due times are compared across both.
const maxClockDifference = 2 * time.Second

// readinessChecks say whether requests are worth sending here. The schemes are no part of it: a link that is down is the
// gateway's business, and taking the daemon out of rotation would not help it.
func readinessChecks(pool *pgxpool.Pool, g *gateway.Gateway, stop context.Context) []api.Check {
	return []api.Check{
		{Name: "database_writable", Run: func(ctx context.Context) error {
			_, err := checkDatabase(ctx, pool)
			return err
		}},
		{Name: "schema", Run: func(ctx context.Context) error { return checkSchema(ctx, pool) }},
		{Name: "clock", Run: func(ctx context.Context) error { return checkClock(ctx, pool) }},
		{Name: "gateway", Run: func(context.Context) error {
			if stop.Err() != nil {
				return errors.New("the daemon is stopping")
			}
			select {
			case <-g.Ready():
				return nil
			default:
				return errors.New("the daemon is still recovering")
			}
		}},
	}
}

// checkDatabase asks whether the server would take our inserts, and what time it is there.
func checkDatabase(ctx context.Context, pool *pgxpool.Pool) (now time.Time, err error) {
	state, err := selectServerState(ctx, pool)
	switch {
	case err != nil:
		return time.Time{}, err
	case state.InRecovery:
		return state.Now, errors.New("the database is a standby")
	case state.ReadOnly:
		return state.Now, errors.New("the database is read only")
	case !state.MayInsert:
		return state.Now, errors.New("the database's role may not insert")
	}
	return state.Now, nil
}

// checkClock compares the clocks at the middle of the round trip.
func checkClock(ctx context.Context, pool *pgxpool.Pool) error {
	before := time.Now()
	state, err := selectServerState(ctx, pool)
	if err != nil {
		return err
	}
	ours := before.Add(time.Since(before) / 2)
	if difference := state.Now.Sub(ours).Abs(); difference > maxClockDifference {
		return fmt.Errorf("the database's clock and ours are %s apart, more than %s", difference.Round(time.Millisecond), maxClockDifference)
	}
	return nil
}
