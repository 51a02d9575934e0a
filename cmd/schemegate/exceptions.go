package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/gateway"
)

const (
	exceptionPage = 500
	// maxListedExceptions bounds one listing. A person reads it.
	maxListedExceptions = 10_000
)

// exceptionsCommand shows what needs a person, beside a running daemon or without one.
type exceptionsCommand struct {
	List exceptionsListCommand `cmd:"" help:"Show open exceptions, the newest first."`
}

type exceptionsListCommand struct {
	Config string   `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	Tenant string   `placeholder:"T" help:"Only this tenant's."`
	Link   string   `placeholder:"LINK" help:"Only this link's."`
	Kind   string   `placeholder:"KIND" help:"Only this kind, such as reversal_refused."`
	Age    olderAge `placeholder:"AGE" help:"Only those older, such as >5m or 5m."`
}

// olderAge is a duration, with or without a sign that says what it means.
type olderAge time.Duration

// UnmarshalText reads >5m or 5m.
func (a *olderAge) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(strings.TrimPrefix(string(text), ">"))
	if err != nil || d < 0 {
		return errors.New("an age is a duration, such as 5m")
	}
	*a = olderAge(d)
	return nil
}

// Run prints a line an exception.
func (l *exceptionsListCommand) Run(p process) error {
	return withDatabase(p, l.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		filter := gateway.ExceptionFilter{Tenant: l.Tenant, Link: l.Link, Kind: l.Kind, Limit: exceptionPage}
		if l.Age > 0 {
			filter.OpenedBefore = time.Now().Add(-time.Duration(l.Age))
		}
		table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "KIND\tLINK\tTENANT\tAGE\tSUBJECT\tDETAIL")
		listed := 0
		for more := true; more && listed < maxListedExceptions; {
			page, err := gateway.OpenExceptions(ctx, pool, filter)
			if err != nil {
				return err
			}
			for _, e := range page {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Kind, e.Link, e.Tenant, age(e.OpenedAt), orDashID(e.SubjectID), e.Detail)
				filter.Before = e.ID
			}
			listed, more = listed+len(page), len(page) == exceptionPage
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("print exceptions: %w", err)
		}
		if listed == 0 {
			fmt.Fprintln(p.stdout, "none")
		}
		return nil
	})
}

func orDashID(id uuid.UUID) string {
	if id == uuid.Nil {
		return "-"
	}
	return id.String()
}
