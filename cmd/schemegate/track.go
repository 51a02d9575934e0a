package main

import (
	"context"
	"encoding/json"
	"fmt"
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
		if t.JSON {
			encoder := json.NewEncoder(p.stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(timelines)
		}
		if len(timelines) == 0 {
			fmt.Fprintln(p.stdout, "nothing is known under this reference")
			return errFound
		}
		for i, timeline := range timelines {
			if i > 0 {
				fmt.Fprintln(p.stdout)
			}
			if err := printTimeline(p, timeline); err != nil {
				return err
			}
		}
		return nil
	})
}

// printTimeline is a timeline for people: what it is, what happened, what comes.
func printTimeline(p process, t gateway.Timeline) error {
	var a struct {
		ID, State, Outcome, Link, Type, Amount, Currency, PAN, STAN, RRN string
		ClientReference                                                  string    `json:"client_reference"`
		ApprovedAmount                                                   string    `json:"approved_amount"`
		CapturedAmount                                                   string    `json:"captured_amount"`
		RemainingAmount                                                  string    `json:"remaining_amount"`
		UpdatedAt                                                        time.Time `json:"updated_at"`
	}
	if err := json.Unmarshal(t.Authorization, &a); err != nil {
		return fmt.Errorf("print timeline: %w", err)
	}
	fmt.Fprintf(p.stdout, "%s %s %s, %s: %s (outcome %s) since %s\n", a.Type, a.Amount, a.Currency, a.Link, a.State, a.Outcome, age(a.UpdatedAt))
	fmt.Fprintf(p.stdout, "id %s, client_reference %s, STAN %s, RRN %s, card %s; found by %s\n", a.ID, a.ClientReference, a.STAN, a.RRN, a.PAN, t.FoundBy)
	for _, amount := range []struct{ name, text string }{{"approved", a.ApprovedAmount}, {"captured", a.CapturedAmount}, {"remaining", a.RemainingAmount}} {
		if amount.text != "" {
			fmt.Fprintf(p.stdout, "%s %s %s\n", amount.name, amount.text, a.Currency)
		}
	}
	for _, s := range t.Steps {
		line := fmt.Sprintf("  %s  %-9s  %s", s.At.Format("2006-01-02 15:04:05.000"), s.What, s.Text)
		if s.Subject != "authorization" && s.Subject != "" {
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
		fmt.Fprintln(p.stdout, line)
	}
	next := "next: " + t.Next.Text
	if t.Next.At != nil {
		next += " at " + t.Next.At.Format(time.RFC3339)
	}
	fmt.Fprintf(p.stdout, "%s (%s)\n", next, t.Next.Owner)
	return nil
}

// age is how long ago something was, for people.
func age(since time.Time) string { return time.Since(since).Truncate(time.Second).String() }
