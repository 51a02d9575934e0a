package gateway

import (
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
)

// column gathers one array argument of a set-based statement. FlatArray and the pgtype element types encode without
// reflection and without driver.Valuer, which would triple the CPU of a batch.
func column[S commit.Step, T any](steps []commit.Step, get func(S) T) pgtype.FlatArray[T] {
	values := make(pgtype.FlatArray[T], len(steps))
	for i, step := range steps {
		values[i] = get(step.(S))
	}
	return values
}

// int2Literal writes one of the ledger's numbered words into a statement's text.
func int2Literal[T ~int16](n T) string { return strconv.Itoa(int(n)) + "::int2" }

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: id != uuid.Nil} }

func pgText(s string) pgtype.Text { return pgtype.Text{String: s, Valid: true} }

// pgTextOrNull stores an absent value as NULL.
func pgTextOrNull(s string) pgtype.Text { return pgtype.Text{String: s, Valid: s != ""} }

func pgInt8(n int64) pgtype.Int8 { return pgtype.Int8{Int64: n, Valid: true} }

func pgInt4(n int32) pgtype.Int4 { return pgtype.Int4{Int32: n, Valid: true} }

func pgInt8OrNull(n *int64) pgtype.Int8 {
	if n == nil {
		return pgtype.Int8{}
	}
	return pgInt8(*n)
}

// pgDate stores the zero time as NULL.
func pgDate(day time.Time) pgtype.Date { return pgtype.Date{Time: day, Valid: !day.IsZero()} }

// pgTime stores the zero time as NULL.
func pgTime(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

// planByKey keeps the plans of the set-based statements in shape, whatever the statistics say. A plan made while a table was
// small must not scan it when it has grown. And since a batch joins its own rows, of which the planner expects one, it must not
// loop over them: that is quadratic in the batch. Rows of tables are found by the keys that the statements name in arrays.
func planByKey(parameters map[string]string) {
	parameters["enable_seqscan"] = "off"
	parameters["enable_nestloop"] = "off"
}
