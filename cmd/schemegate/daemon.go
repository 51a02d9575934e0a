package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/api"
	"github.com/schemegate/schemegate/migrations"
)

const (
	// answerGrace is how long the API may still write answers once the gateway has none left to give.
	answerGrace = 5 * time.Second
	// cutGrace is how long it may after a second signal, which ends the wait for answers but still gives the callers theirs.
	cutGrace = time.Second
)

// addresses are where a daemon listens, for whoever asked for port 0.
type addresses struct{ api, admin string }

// serve is the daemon: wiring in the order of dependence, and back. It runs until stop ends, then finishes what it began; cut
// ends that too. ready, where there is one, hears when requests are taken.
func serve(stop, cut context.Context, c config, log *zap.Logger, ready chan<- addresses) (err error) {
	began := time.Now()
	d, err := openDatabase(stop, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close(cut)) }()
	if err := migrations.Up(stop, d.url, log); err != nil {
		return err
	}
	if err := d.connect(stop, c.Database.PoolConnections); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	g, err := gateway.New(c.Gateway, d.pool, registry, log)
	if err != nil {
		return err
	}
	a, err := api.New(c.API, g, d.pool, log, registry)
	if err != nil {
		return err
	}
	defer a.Close()
	admin, err := api.NewAdmin(c.Admin, readinessChecks(d.pool, g, stop), g.Links, registry, log)
	if err != nil {
		return err
	}
	defer admin.Close()
	return runServers(stop, cut, d, g, a, admin, func() {
		log.Info("ready", zap.Duration("took", time.Since(began)))
		if ready != nil {
			ready <- addresses{api: a.Addr().String(), admin: admin.Addr().String()}
		}
	})
}

// runServers runs gateway, API and administration. At the end of stop, or when one of them fails, the API takes nothing new
// and the gateway lets what is in flight land, so that each waiting request gets its answer; administration goes last, so that
// the end can be watched.
func runServers(stop, cut context.Context, d *database, g *gateway.Gateway, a *api.API, admin *api.Admin, ready func()) error {
	watch, endWatch := context.WithCancel(context.Background())
	defer endWatch()
	var watched errgroup.Group
	watched.Go(func() error { return admin.Run(watch) })

	closeAfter := func(grace time.Duration) {
		timer := time.AfterFunc(grace, func() { _ = a.Close() })
		context.AfterFunc(watch, func() { timer.Stop() })
	}
	uncut := context.AfterFunc(cut, func() {
		g.Cut()
		closeAfter(cutGrace)
	})
	defer uncut()
	serving, running := errgroup.WithContext(stop)
	serving.Go(func() error { return d.watch(running) })
	serving.Go(func() error {
		err := g.Run(running)
		closeAfter(answerGrace)
		return err
	})
	serving.Go(func() error {
		select {
		case <-g.Ready():
		case <-running.Done():
			return a.Close()
		}
		ready()
		return a.Run(running)
	})
	err := serving.Wait()
	endWatch()
	return errors.Join(err, watched.Wait())
}
