package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway"
)

// trackCommand answers "where is this payment" from the database alone, beside a running daemon or without one.
type trackCommand struct {
	Reference string `arg:"" placeholder:"REFERENCE" help:"An id, a client reference, an RRN, or a STAN, alone or as 000123@2026-12-01."`
	Config    string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	Tenant    string `placeholder:"T" help:"Only this tenant's."`
	JSON      bool   `name:"json" help:"The form that the API gives, for programs."`
}

// Run prints a timeline for each authorisation that the reference names.
func (t *trackCommand) Run(p process) error {
	c, err := loadConfig(t.Config)
	if err != nil {
		return err
	}
	return withDatabase(p, t.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		timelines, err := gateway.Track(ctx, pool, t.Tenant, t.Reference, c.Gateway.Links)
		if err != nil {
			return err
		}
		if len(timelines) == 0 {
			fmt.Fprintln(p.stderr, "nothing is known under this reference")
			return errFound
		}
		if t.JSON {
			encoder := json.NewEncoder(p.stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(timelines)
		}
		for i, timeline := range timelines {
			if i > 0 {
				fmt.Fprintln(p.stdout)
			}
			if err := printTimeline(p, timeline); err != nil {
				return err
			}
		}
		if len(timelines) == gateway.MaxTimelines {
			fmt.Fprintf(p.stdout, "\nthe newest %d; there may be more: name the day, such as 000123@2026-12-01\n", len(timelines))
		}
		return nil
	})
}

// trackedAuthorization is what this command shows of an authorisation.
type trackedAuthorization struct {
	ID, State, Outcome, Link, Type, Amount, Currency, PAN, STAN, RRN string
	ClientReference                                                  string    `json:"client_reference"`
	ApprovedAmount                                                   string    `json:"approved_amount"`
	CapturedAmount                                                   string    `json:"captured_amount"`
	ReversedAmount                                                   string    `json:"reversed_amount"`
	ReturnedAmount                                                   string    `json:"returned_amount"`
	RemainingAmount                                                  string    `json:"remaining_amount"`
	CreatedAt                                                        time.Time `json:"created_at"`
	UpdatedAt                                                        time.Time `json:"updated_at"`
}

// printTimeline is a timeline for people: what it is, what happened, what comes.
func printTimeline(p process, t gateway.Timeline) error {
	if t.Authorization == nil {
		fmt.Fprintf(p.stdout, "a reversal whose authorization has not come; found by %s\n", t.FoundBy)
	} else if err := printAuthorization(p, t); err != nil {
		return err
	}
	for _, s := range t.Steps {
		fmt.Fprintln(p.stdout, "  "+stepLine(s, "2006-01-02 15:04:05.000"))
	}
	next := "next: " + t.Next.Text
	if t.Next.At != nil {
		next += " at " + t.Next.At.Format(time.RFC3339)
	}
	fmt.Fprintf(p.stdout, "%s (%s)\n", next, t.Next.Owner)
	return nil
}

func printAuthorization(p process, t gateway.Timeline) error {
	var a trackedAuthorization
	if err := json.Unmarshal(t.Authorization, &a); err != nil {
		return fmt.Errorf("print timeline: %w", err)
	}
	fmt.Fprintf(p.stdout, "%s %s %s over %s of %s: %s, outcome %s, for %s\n", a.Type, a.Amount, a.Currency, a.Link, a.CreatedAt.Format(time.RFC3339),
		a.State, a.Outcome, age(a.UpdatedAt))
	fmt.Fprintf(p.stdout, "id %s, client_reference %s\nSTAN %s, RRN %s, card %s; found by %s\n", a.ID, a.ClientReference, a.STAN, a.RRN, a.PAN, t.FoundBy)
	var amounts []string
	for _, amount := range []struct{ name, text string }{{"approved", a.ApprovedAmount}, {"captured", a.CapturedAmount}, {"taken back", a.ReversedAmount},
		{"returned", a.ReturnedAmount}, {"remaining", a.RemainingAmount}} {
		if amount.text != "" {
			amounts = append(amounts, amount.name+" "+amount.text)
		}
	}
	if len(amounts) > 0 {
		fmt.Fprintln(p.stdout, strings.Join(amounts, ", ")+" "+a.Currency)
	}
	return nil
}

// stepLine is one step of a timeline on one line, its time in a layout.
func stepLine(s gateway.TimelineStep, layout string) string {
	line := fmt.Sprintf("%s  %-9s  %s", s.At.Format(layout), s.What, s.Text)
	if s.Subject != "authorization" {
		line += " [" + s.Subject + "]"
	}
	for _, detail := range []struct{ name, text string }{{"STAN", s.STAN}, {"code", s.ResponseCode}, {"layer", s.Layer}} {
		if detail.text != "" {
			line += ", " + detail.name + " " + detail.text
		}
	}
	if s.Debit != "" {
		line += ", debit " + s.Debit + ", credit " + s.Credit
	}
	return line
}

// age is how long ago something was, for people.
func age(since time.Time) string { return time.Since(since).Truncate(time.Second).String() }
