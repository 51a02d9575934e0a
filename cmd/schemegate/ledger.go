package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/ledger"
)

// ledgerCommand reads the books; nothing here writes.
type ledgerCommand struct {
	Verify   ledgerVerifyCommand   `cmd:"" help:"Prove that history was not edited and that the books agree with themselves."`
	Balances ledgerBalancesCommand `cmd:"" help:"Show every account's balance, now or at any time."`
}

type ledgerVerifyCommand struct {
	Config string `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	From   int64  `default:"1" placeholder:"N" help:"The seal to start from; what lies before it is trusted."`
}

// Run walks the hash chain and prints what was proved, or everything that is wrong.
func (v *ledgerVerifyCommand) Run(p process) error {
	return withDatabase(p, v.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		report, err := ledger.Verify(ctx, pool, v.From)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stdout, "seals %d, sealed postings %d, not sealed yet %d, head %d %x\n",
			report.Seals, report.Postings, report.Unsealed, report.Head, report.HeadHash)
		for _, b := range report.TrialBalances {
			fmt.Fprintf(p.stdout, "trial balance %s %s: debit %s, credit %s\n", b.Currency, b.Layer, minorText(b.Debit, b.Currency), minorText(b.Credit, b.Currency))
		}
		if report.OK() {
			fmt.Fprintln(p.stdout, "ok")
			return nil
		}
		for _, fault := range report.Faults() {
			fmt.Fprintln(p.stdout, "fault:", fault)
		}
		return errFound
	})
}

func minorText(minor int64, alpha string) string {
	currency, ok := ledger.CurrencyByAlpha(strings.TrimSpace(alpha))
	if !ok {
		return fmt.Sprint(minor)
	}
	return ledger.Money{Minor: minor, Currency: currency}.Text()
}

type ledgerBalancesCommand struct {
	Config string    `required:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	Tenant string    `placeholder:"T" help:"Only this tenant's accounts."`
	At     time.Time `placeholder:"TIME" help:"From everything booked up to and including this time (RFC 3339)."`
	Verify bool      `help:"Compute each balance again from its postings alone and compare."`
}

// Run prints a line an account; with --verify a line for each difference too.
func (b *ledgerBalancesCommand) Run(p process) error {
	return withDatabase(p, b.Config, func(ctx context.Context, pool *pgxpool.Pool) error {
		table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ACCOUNT\tTENANT\tLINK\tKIND\tCURRENCY\tPOSTED\tHELD\tAVAILABLE")
		var differences []string
		accounts := 0
		for cursor, more := "", true; more; more = cursor != "" {
			page, next, err := ledger.ListAccounts(ctx, pool, b.Tenant, cursor, ledger.MaxPage)
			if err != nil {
				return err
			}
			for _, account := range page {
				balance, difference, err := b.balance(ctx, pool, account)
				if err != nil {
					return err
				}
				if difference != "" {
					differences = append(differences, difference)
				}
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", account.ID, account.Tenant, account.Link, account.Kind, account.Currency.Alpha,
					balance.Posted.Text(), balance.Held.Text(), balance.Available.Text())
			}
			accounts, cursor = accounts+len(page), next
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("print balances: %w", err)
		}
		if !b.Verify {
			return nil
		}
		if b.At.IsZero() {
			fmt.Fprintf(p.stdout, "as of %s ago, since younger postings may still be committing\n", settledAfter)
		}
		return b.report(ctx, pool, p, accounts, differences)
	})
}

// balance reads one balance at the moment asked for, and computes it again when that is asked for too. The moment is fixed
// once, or postings made between the two would look like differences.
func (b *ledgerBalancesCommand) balance(ctx context.Context, pool *pgxpool.Pool, account ledger.Account) (balance ledger.Balance, difference string, err error) {
	at := b.At
	if b.Verify && at.IsZero() {
		at = time.Now().Add(-settledAfter)
	}
	if balance, err = ledger.BalanceAt(ctx, pool, account, at); err != nil || !b.Verify {
		return balance, "", err
	}
	again, err := ledger.RecomputedBalanceAt(ctx, pool, account, at)
	if err != nil {
		return balance, "", err
	}
	if again != balance {
		difference = fmt.Sprintf("account %d: projected %s held %s, recomputed %s held %s", account.ID,
			balance.Posted, balance.Held, again.Posted, again.Held)
	}
	return balance, difference, nil
}

// settledAfter is how long a transaction may take from its booking time to its commit. What is younger may appear between two reads.
const settledAfter = time.Minute

func (b *ledgerBalancesCommand) report(ctx context.Context, pool *pgxpool.Pool, p process, accounts int, differences []string) error {
	stored, err := ledger.Compare(ctx, pool)
	if err != nil {
		return err
	}
	for _, d := range stored {
		differences = append(differences, d.String())
	}
	for _, difference := range differences {
		fmt.Fprintln(p.stdout, "difference:", difference)
	}
	if len(differences) > 0 {
		return errFound
	}
	fmt.Fprintf(p.stdout, "%d accounts agree with their postings\n", accounts)
	return nil
}
