package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/ledger"
)

const (
	// readTimeout bounds the reads on a caller's behalf.
	readTimeout = 5 * time.Second
	// sealInterval is how often the ledger's hash chain is carried forward.
	sealInterval = 5 * time.Second
)

// Gateway carries authorisations from the bank's side to the schemes. Make it with New, run it with Run.
type Gateway struct {
	config    Config
	db        *pgxpool.Pool
	log       *zap.Logger
	vault     *Vault
	committer *commit.Committer
	accounts  *ledger.Accounts
	ledger    *ledger.Metrics
	sealer    *ledger.Sealer
	metrics   *metrics
	links     map[string]*cardLink
	linkNames []string
	epoch     int64

	formerStart time.Time // see beginEpoch

	inFlight   admission
	flights    flights
	recent     *recentKeys
	unmatched  chan link.Unmatched
	duplicates chan Duplicate
	turns      sync.WaitGroup // sign-offs and sign-ons under way
	ready      chan struct{}  // closed once recovery is done and requests are taken

	cutOnce sync.Once
	cut     chan struct{} // closed when shutdown is to wait for nothing more
}

// cardLink is one link with all that its profile says.
type cardLink struct {
	name       string
	config     LinkConfig
	spec       *iso8583.Spec
	line       *link.Link
	zone       *time.Location
	references *references
	stored     map[string]bool // numbers of `elements` that may be stored
	done       map[string]bool // response codes that say that a capture was taken before

	edition1993 bool
	control     linkControl
	wake        chan struct{}
}

// New checks the configuration, opens the vault and prepares links and committer. db is a pool under the writer's role; its
// configuration also serves the committer's own connections.
func New(config Config, db *pgxpool.Pool, reg prometheus.Registerer, log *zap.Logger) (*Gateway, error) {
	vault, err := OpenVault(config.Vault)
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		config: config, db: db, log: log, vault: vault, accounts: ledger.NewAccounts(db), ledger: ledger.NewMetrics(reg),
		links: make(map[string]*cardLink, len(config.Links)), linkNames: slices.Sorted(maps.Keys(config.Links)),
		unmatched: make(chan link.Unmatched, maxUnmatched), duplicates: make(chan Duplicate, maxDuplicates), ready: make(chan struct{}), cut: make(chan struct{}), recent: newRecentKeys(),
	}
	g.inFlight.limit, g.inFlight.drained = config.MaxInFlight, make(chan struct{})
	g.metrics = newMetrics(reg, func() float64 { return float64(g.inFlight.count()) }, g.flights.oldestSeconds)
	g.sealer = &ledger.Sealer{Pool: db, Interval: sealInterval, Log: log, Metrics: g.ledger}
	connection := db.Config().ConnConfig
	planByKey(connection.RuntimeParams)
	limits := commit.DefaultConfig()
	limits.Connections, limits.MaxBatch, limits.MaxQueued = config.Commit.Connections, config.Commit.MaxBatch, config.Commit.MaxQueued
	if g.committer, err = commit.New(limits, connection, log, commit.NewMetrics(reg)); err != nil {
		return nil, err
	}
	linkMetrics := link.NewMetrics(reg)
	for _, name := range g.linkNames {
		if g.links[name], err = g.newCardLink(name, config.Links[name], linkMetrics); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *Gateway) newCardLink(name string, config LinkConfig, linkMetrics *link.Metrics) (*cardLink, error) {
	if config.Silence == nil {
		return nil, fmt.Errorf("link %s has no silence policy", name)
	}
	zone, err := time.LoadLocation(config.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	l := &cardLink{name: name, config: config, zone: zone, edition1993: config.edition1993(), wake: make(chan struct{}, 1),
		stored: make(map[string]bool, len(config.StoredElements)), done: make(map[string]bool, len(config.Captures.DoneCodes)),
		references: &references{link: name, uniqueWithin: config.STANUniqueWithin.Std(), db: g.db}}
	l.line, err = link.New(name, config.Config, link.Options{Log: g.log, Metrics: linkMetrics, OnUnmatched: g.takeUnmatched,
		OnCutover: func(date string) { g.cutOver(l, date) }})
	if err != nil {
		return nil, err
	}
	l.spec = l.line.Spec()
	g.metrics.late.WithLabelValues(name) // shown as 0 before the first
	g.metrics.unmatchedDropped.WithLabelValues(name)
	for _, e := range config.StoredElements {
		l.stored[strconv.Itoa(int(e))] = true
	}
	for _, code := range config.Captures.DoneCodes {
		l.done[code] = true
	}
	return l, nil
}

// Run recovers what a former life left open and then serves until ctx ends. It stops in the order of dependence: intake
// first, then what is in flight (until drain_timeout), then the links, which completes what still waits as unknown, then the
// workers, and the committer last.
func (g *Gateway) Run(ctx context.Context) error {
	ctx, supersede := context.WithCancelCause(ctx)
	defer supersede(nil)
	if err := g.recover(ctx); err != nil {
		return err
	}
	if err := g.applyControls(ctx); err != nil { // before a line comes up that is to stay signed off
		return err
	}
	g.turns.Wait()
	committer := g.start(g.committer.Run)
	var notes sync.WaitGroup
	for range unmatchedWriters {
		notes.Go(func() { g.keepUnmatched(ctx) })
	}
	workers := g.start(g.sweep, g.sweepHolds, g.watchBacklog, g.watchBooks, g.watchControls, g.sealer.Run, func(ctx context.Context) error { return g.watchEpoch(ctx, supersede) })
	journal := g.start()
	for range duplicateWriters {
		journal.add(g.keepDuplicates)
	}
	recovered := g.recoverOrphans(ctx)
	lines := g.start()
	if recovered == nil {
		close(g.ready) // before the lines come up: a line that is signed on takes requests
		for _, name := range g.linkNames {
			workers.add(g.worker(g.links[name]).Run)
			lines.add(g.links[name].line.Run)
		}
		<-ctx.Done()
	}
	drained := g.inFlight.close()
	select {
	case <-drained:
	case <-g.cut:
		g.log.Warn("drain cut short", zap.Int("in_flight", g.inFlight.count()))
	case <-time.After(g.config.Drain.Std()):
		g.log.Warn("drain timeout over", zap.Int("in_flight", g.inFlight.count()))
	}
	workers.cancel() // no reversal is begun any more; those on the wire end with their deadlines or their line
	err := errors.Join(recovered, superseded(ctx), lines.stop(), workers.stop())
	<-drained
	g.turns.Wait()
	close(g.unmatched)
	notes.Wait()
	err = errors.Join(err, journal.stop())
	end, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return errors.Join(err, committer.stop(), endEpoch(end, g.db, g.epoch, g.now()))
}

// superseded is the error of a daemon that ended because another one began under its name.
func superseded(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSuperseded) {
		return cause
	}
	return nil
}

// Cut ends the wait of a shutdown for what is in flight, as the end of drain_timeout does.
func (g *Gateway) Cut() { g.cutOnce.Do(func() { close(g.cut) }) }

// group runs functions until it is stopped.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	errs   errgroup.Group
}

func (g *Gateway) start(runs ...func(context.Context) error) *group {
	gr := &group{}
	gr.ctx, gr.cancel = context.WithCancel(context.Background())
	for _, run := range runs {
		gr.add(run)
	}
	return gr
}

func (gr *group) add(run func(context.Context) error) {
	gr.errs.Go(func() error { return run(gr.ctx) })
}

func (gr *group) stop() error {
	gr.cancel()
	return gr.errs.Wait()
}

// Ready is closed once recovery is done and requests are taken.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// linkFor finds the link a request names, else the default one.
func (g *Gateway) linkFor(name string) (*cardLink, error) {
	if name == "" {
		name = g.config.DefaultLink
	}
	if name == "" && len(g.linkNames) == 1 {
		name = g.linkNames[0]
	}
	if l := g.links[name]; l != nil {
		return l, nil
	}
	return nil, &Error{Code: CodeUnknownLink, Faults: []FieldFault{{"link", "must name a configured link"}}}
}

// admit decides whether a new authorisation may start. What it refuses leaves no trace but a count.
func (g *Gateway) admit(l *cardLink) error {
	refuse := func(code Code) error {
		g.metrics.refused.WithLabelValues(string(code)).Inc()
		return &Error{Code: code, RetryAfterSeconds: 1}
	}
	select {
	case <-g.ready:
	default:
		return refuse(CodeShuttingDown)
	}
	if l.control.isHeld() {
		return refuse(CodeLinkHeld)
	}
	switch room := l.line.HasRoom(); {
	case !room && l.line.State() != link.SignedOn:
		return refuse(CodeLinkUnavailable)
	case !room:
		return refuse(CodeOverloaded)
	}
	switch ok, full := g.inFlight.take(); {
	case full:
		return refuse(CodeOverloaded)
	case !ok:
		return refuse(CodeShuttingDown)
	}
	return nil
}

func (g *Gateway) accountsFor(ctx context.Context, tenant, linkName string, currency ledger.Currency) (customer, settlement int32, err error) {
	if customer, err = g.accounts.ID(ctx, tenant, linkName, ledger.Customer, currency); err != nil {
		return 0, 0, err
	}
	settlement, err = g.accounts.ID(ctx, tenant, linkName, ledger.Settlement, currency)
	return customer, settlement, err
}

// wake tells a link's reversal worker that a duty was owed.
func (g *Gateway) wake(linkName string) {
	select {
	case g.links[linkName].wake <- struct{}{}:
	default:
	}
}

// reportLedgerHit is the second guard firing: the first one should have stopped the repeat. The effect is still single.
func (g *Gateway) reportLedgerHit(id uuid.UUID) {
	g.ledger.UniqueIndexHits.Inc()
	g.log.Error("ledger refused a posting it already has", zap.Stringer("authorization_id", id))
}

// now has the resolution of PostgreSQL, so that an answer and a later read show the same times.
func (g *Gateway) now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Authorization reads one of the tenant's authorisations as it is now, with its captures and partial reversals.
func (g *Gateway) Authorization(ctx context.Context, tenant string, id uuid.UUID) (*Authorization, error) {
	a, err := selectAuthorization(ctx, g.db, tenant, id)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	if a == nil {
		return nil, &Error{Code: CodeNotFound}
	}
	if err := g.readNumbered(ctx, a); err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return a, nil
}

// Authorizations lists the tenant's authorisations, newest first. A reference or an RRN may have several.
func (g *Gateway) Authorizations(ctx context.Context, tenant string, f Filter) ([]*Authorization, error) {
	list, err := selectAuthorizations(ctx, g.db, tenant, f)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return list, nil
}
