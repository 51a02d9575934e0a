package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway"
)

const (
	// linksTimeout bounds the question to the daemon's admin listener.
	linksTimeout = 5 * time.Second
	// maxLinksBytes bounds its answer.
	maxLinksBytes = 4 << 20
)

// linksCommand shows the links of a running daemon, and records what a person decides about them.
type linksCommand struct {
	List    linksListCommand   `cmd:"" default:"withargs" help:"Show how each link and its lines stand, as the running daemon sees them."`
	Hold    linksHoldCommand   `cmd:"" help:"Take no new requests on a link; what is in flight or owed goes on."`
	Resume  linksResumeCommand `cmd:"" help:"End a hold."`
	SignOff linksOffCommand    `cmd:"" name:"sign-off" help:"Sign off as planned, until it is signed on again."`
	SignOn  linksOnCommand     `cmd:"" name:"sign-on" help:"End a planned sign-off."`
}

type linksListCommand struct {
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration; its admin address is asked."`
}

// linkLine is what this command shows of a link or of one of its lines.
type linkLine struct {
	Name             string
	Address          string
	State            string
	Since            time.Time
	Pending          int
	LastReceivedAt   *time.Time `json:"last_received_at"`
	EchoSeconds      *float64   `json:"echo_round_trip_seconds"`
	CertificateUntil *time.Time `json:"certificate_until"`
	LastDown         *struct {
		Reason, Cause string
		At            time.Time
	} `json:"last_down"`
	Held           bool
	PlannedSignOff bool `json:"planned_sign_off"`
	Reason         string
	BusinessDate   string `json:"business_date"`
	Lines          []linkLine
}

// Run prints a line for each line of each link, and what people decided.
func (l *linksListCommand) Run(p process) error {
	c, err := loadConfig(l.Config)
	if err != nil {
		return err
	}
	links, err := askLinks(p.ctx, c.Admin.Listen)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LINK\tLINE\tADDRESS\tSTATE\tFOR\tPENDING\tRECEIVED\tECHO\tLAST DOWN")
	for _, link := range links {
		for n, line := range link.Lines {
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", link.Name, n, line.Address, line.State, age(line.Since), line.Pending,
				agoOrDash(line.LastReceivedAt), echoOrDash(line.EchoSeconds), downOrDash(line))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print links: %w", err)
	}
	for _, link := range links {
		if link.BusinessDate != "" {
			fmt.Fprintf(p.stdout, "%s: business date %s\n", link.Name, link.BusinessDate)
		}
		if link.Held {
			fmt.Fprintf(p.stdout, "%s is held: %s\n", link.Name, link.Reason)
		}
		if link.PlannedSignOff {
			fmt.Fprintf(p.stdout, "%s is signed off as planned: %s\n", link.Name, link.Reason)
		}
	}
	return nil
}

// askLinks asks the running daemon: only it knows how its lines stand.
func askLinks(ctx context.Context, address string) ([]linkLine, error) {
	ctx, cancel := context.WithTimeout(ctx, linksTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/links", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon at %s (admin.listen), is it running? %w", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the daemon at %s: it answers %s", address, response.Status)
	}
	var links []linkLine
	if err := json.NewDecoder(io.LimitReader(response.Body, maxLinksBytes)).Decode(&links); err != nil {
		return nil, fmt.Errorf("read the daemon's answer: %w", err)
	}
	return links, nil
}

func agoOrDash(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return age(*at) + " ago"
}

func echoOrDash(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return time.Duration(*seconds * float64(time.Second)).Round(time.Microsecond).String()
}

func downOrDash(l linkLine) string {
	if l.LastDown == nil {
		return "-"
	}
	return fmt.Sprintf("%s, %s ago", l.LastDown.Reason, age(l.LastDown.At))
}

// linkDecision is what the four deciding commands share.
type linkDecision struct {
	Link   string `arg:"" placeholder:"LINK" help:"The link's name in the configuration."`
	Reason string `required:"" placeholder:"TEXT" help:"Why; it stays in the history. No card numbers."`
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
}

type (
	linksHoldCommand   struct{ linkDecision }
	linksResumeCommand struct{ linkDecision }
	linksOffCommand    struct{ linkDecision }
	linksOnCommand     struct{ linkDecision }
)

// Run holds a link.
func (d *linksHoldCommand) Run(p process) error { return d.decide(p, gateway.LinkHold) }

// Run resumes a link.
func (d *linksResumeCommand) Run(p process) error { return d.decide(p, gateway.LinkResume) }

// Run signs a link off.
func (d *linksOffCommand) Run(p process) error { return d.decide(p, gateway.LinkSignOff) }

// Run signs a link on.
func (d *linksOnCommand) Run(p process) error { return d.decide(p, gateway.LinkSignOn) }

// decide records the decision; running daemons apply it within a moment, others when they start.
func (d *linkDecision) decide(p process, action gateway.LinkAction) error {
	c, err := loadConfig(d.Config)
	if err != nil {
		return err
	}
	if _, ok := c.Gateway.Links[d.Link]; !ok {
		return errors.New("the configuration has no such link")
	}
	return withDatabase(p, d.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := gateway.DecideLink(ctx, pool, d.Link, action, d.Reason, time.Now().UTC().Truncate(time.Microsecond)); err != nil {
			return fmt.Errorf("%s %s: %w", action, d.Link, err)
		}
		fmt.Fprintf(p.stdout, "%s of %s is recorded; running daemons apply it within a moment\n", action, d.Link)
		return nil
	})
}
