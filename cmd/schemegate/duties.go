package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/reversal"
)

// maxListedDuties bounds one listing. A person reads it, and the oldest of each link come first.
const maxListedDuties = 10_000

// dutiesCommand is for the person whom an exception about a reversal or a capture calls. It works beside a running daemon.
type dutiesCommand struct {
	List   dutiesListCommand   `cmd:"" help:"Show what is still owed to a scheme: reversals and captures."`
	Resume dutiesResumeCommand `cmd:"" help:"Let what a scheme refused be sent again."`
}

type dutiesListCommand struct {
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	State  string `enum:",owed,suspended" default:"" placeholder:"STATE" help:"Only those that are owed, or suspended."`
}

// Run prints a line a duty, by link and age.
func (l *dutiesListCommand) Run(p process) error {
	return withDatabase(p, l.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tKIND\tLINK\tAUTHORIZATION\tSTATE\tAGE\tATTEMPTS\tNEXT\tCODE")
		listed, more := 0, true
		for after := (reversal.Open{}); more && listed < maxListedDuties; {
			page, err := reversal.SelectOpen(ctx, pool, reversal.State(l.State), after, reversal.MaxPage)
			if err != nil {
				return err
			}
			now := time.Now()
			for _, r := range page {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.ID, r.Kind, r.Link, r.AuthorizationID, r.State,
					now.Sub(r.CreatedAt).Truncate(time.Second), r.Attempts, nextAttempt(r, now), orDash(r.ResponseCode))
				after = r
			}
			listed, more = listed+len(page), len(page) == reversal.MaxPage
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("print duties: %w", err)
		}
		if more {
			fmt.Fprintf(p.stdout, "the first %d; there may be more\n", listed)
		}
		return nil
	})
}

// nextAttempt is when the worker takes a duty next; a suspended one waits for a person.
func nextAttempt(r reversal.Open, now time.Time) string {
	switch {
	case r.State == reversal.Suspended:
		return "-"
	case !r.NextAt.After(now):
		return "due"
	}
	return r.NextAt.UTC().Format(time.RFC3339)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

type dutiesResumeCommand struct {
	ID     uuid.UUID `arg:"" placeholder:"ID" help:"The reversal or capture, as list and the exception name it."`
	Reason string    `required:"" placeholder:"TEXT" help:"Why sending it again can help now; it stays in the history. No card numbers."`
	Config string    `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
}

// Run makes the duty owed again; the worker of its link, in whichever daemon, finds it due.
func (r *dutiesResumeCommand) Run(p process) error {
	return withDatabase(p, r.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return reversal.Resume(ctx, tx, r.ID, r.Reason, time.Now().UTC().Truncate(time.Microsecond))
		})
		if err != nil {
			return fmt.Errorf("resume %s: %w", r.ID, err)
		}
		fmt.Fprintf(p.stdout, "%s is owed again and due at once\n", r.ID)
		return nil
	})
}
