package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// demoCmd tells the whole story with real requests, and checks each sentence of it.
type demoCmd struct {
	Stay bool   `help:"Leave daemon, PostgreSQL and scheme up afterwards, for trying by hand, until interrupted."`
	Dir  string `help:"Where to keep the demo's data; a temporary directory when empty." type:"path"`
}

// demoLimit bounds the whole story; each wait within it has a limit of its own.
const demoLimit = 3 * time.Minute

// Run returns nil only if everything it tells really happened.
func (c *demoCmd) Run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	story, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	stand, err := newDemoStand(c.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stand.close()) }()
	d := &demo{stand: stand, out: os.Stdout, started: time.Now()}
	if err := d.tell(story); err != nil {
		return fmt.Errorf("demo: %w; the daemon's log is %s", err, stand.keepLog())
	}
	fmt.Fprintf(d.out, "\nAll of it happened, in %.1f s.\n", time.Since(d.started).Seconds())
	if c.Stay {
		d.invite()
		<-ctx.Done()
		fmt.Fprintln(d.out, "ending")
	}
	return nil
}

// demo is the story in the telling.
type demo struct {
	stand   *demoStand
	out     io.Writer
	started time.Time
	chapter int
}

// tell runs the chapters in order; the first that does not come true ends the story.
func (d *demo) tell(ctx context.Context) error {
	for _, chapter := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"A daemon, its private PostgreSQL and a card scheme", d.tellStart},
		{"An approval", d.tellApproval},
		{"A decline", d.tellDecline},
		{"The same request again, with the same key", d.tellRepeat},
		{"The same key with another amount", d.tellKeyReuse},
		{"An answer that never comes", d.tellSilence},
		{"An approval that comes too late", d.tellLateApproval},
		{"The daemon is killed between the question and the answer", d.tellCrash},
		{"A part is taken back, the rest is captured", d.tellCapture},
		{"The client gives up, and its request comes after all", d.tellGivenUp},
		{"Where is my payment?", d.tellTrack},
		{"The books", d.tellBooks},
	} {
		d.chapter++
		fmt.Fprintf(d.out, "\n%d. %s\n", d.chapter, chapter.title)
		if err := chapter.tell(ctx); err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(chapter.title[:1])+chapter.title[1:], err)
		}
	}
	return nil
}

// say prints one line of the story.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "   "+format+"\n", args...)
}

// invite says how to go on by hand.
func (d *demo) invite() {
	s := d.stand
	fmt.Fprintf(d.out, `
Everything is still up. Try, from another terminal:

  curl -s -H 'Authorization: Bearer %[1]s' -H 'Content-Type: application/json' \
       -H 'Idempotency-Key: mine-1' -d @%[2]s \
       http://%[3]s/v1/authorizations

  curl -s -H 'Authorization: Bearer %[1]s' http://%[3]s/v1/links
  curl -s http://%[4]s/readyz
  curl -s http://%[4]s/metrics | grep schemegate_reversal
  %[5]s track order-4 --config %[6]s
  %[5]s links --config %[6]s
  %[5]s ledger verify --config %[6]s

An amount of 10.91 gets no answer; `+"`schemegate sim card --help`"+` lists more such amounts.
The API is described at http://%[3]s/docs. Interrupt (Ctrl-C), or kill -INT %[7]d, to end.
`, s.apiKey, s.sampleFile(), s.apiAddress, s.adminAddress, s.program, s.configFile, os.Getpid())
}
