package commit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotTaken: the step was never taken off the queue, so nothing of it reached the database.
	ErrNotTaken = errors.New("commit step: not taken")
	// ErrUnknown: the step may or may not be committed, and it could not be found out in time. Whoever finds the
	// step's rows later, or runs the same step again, learns the truth.
	ErrUnknown = errors.New("commit step: outcome unknown")
	// ErrUnavailable is the cause inside a NotCommittedError when the database was away or did not accept writes.
	ErrUnavailable = errors.New("database unavailable")
	// ErrConflict is the cause inside a NotCommittedError when serialization failures and deadlocks (SQLSTATE 40001,
	// 40P01) outlasted every retry.
	ErrConflict = errors.New("conflict with concurrent transactions")
)

// NotCommittedError says that a step was taken and is certainly not committed.
type NotCommittedError struct {
	Cause error
}

// Error names the cause.
func (e *NotCommittedError) Error() string { return "commit step: not committed: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *NotCommittedError) Unwrap() error { return e.Cause }

// StatementError is what the server said about a statement, without its message and detail where those can quote
// values: a step's arguments may be card data.
type StatementError struct {
	SQLState   string // five characters
	Severity   string // ERROR, FATAL or PANIC
	Table      string // "" unless the server named one
	Constraint string // "" unless the server named one
	Message    string // only for class 42 (syntax, unknown names), whose messages quote the SQL and not the values
}

// Error names SQLSTATE, table and constraint.
func (e *StatementError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s SQLSTATE %s", e.Severity, e.SQLState)
	if e.Table != "" {
		fmt.Fprintf(&b, " table %s", e.Table)
	}
	if e.Constraint != "" {
		fmt.Fprintf(&b, " constraint %s", e.Constraint)
	}
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	return b.String()
}

const classSyntaxOrName = "42"

// withoutValues reduces err to what may be logged: server errors to a StatementError, network errors to themselves,
// and errors of encoding and of result callbacks, which can quote values, to their type.
func withoutValues(doing string, err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		e := &StatementError{
			SQLState:   pg.Code,
			Severity:   pg.SeverityUnlocalized,
			Table:      pg.TableName,
			Constraint: pg.ConstraintName,
		}
		if strings.HasPrefix(pg.Code, classSyntaxOrName) {
			e.Message = pg.Message
		}
		return fmt.Errorf("%s: %w", doing, e)
	}
	if broken, ok := errors.AsType[net.Error](err); ok {
		return fmt.Errorf("%s: %w", doing, broken)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w", doing, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s: %T", doing, err)
}

// fromServerOrWire reports whether err came from the server or from the connection, not from a callback's own code.
func fromServerOrWire(err error) bool {
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
