package api

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/ledger"
)

const (
	defaultPage = 50
	maxPage     = ledger.MaxPage
)

var (
	referenceForm = regexp.MustCompile(`^[\x21-\x7e]{1,64}$`)
	rrnForm       = regexp.MustCompile(`^[0-9A-Za-z]{12}$`)
	stanForm      = regexp.MustCompile(`^[0-9]{6}$`)
	linkForm      = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	parameterForm = regexp.MustCompile(`^[a-z][a-z_]{0,40}$`)
)

// query reads the parameters of a request and gathers all faults. None quotes a value: it may be a card number.
type query struct {
	values url.Values
	faults []gateway.FieldFault
}

// parseQuery refuses parameters that the route does not have: a misspelt filter would list what was not asked for.
func parseQuery(r *http.Request, known []*huma.Param) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fault("(query)", "cannot be read; values are percent-encoded")
	}
	for name, given := range values {
		switch {
		case !slices.ContainsFunc(known, func(p *huma.Param) bool { return p.In == "query" && p.Name == name }):
			if !parameterForm.MatchString(name) {
				name = "(unprintable)"
			}
			q.fault(name, "this parameter is not known")
		case len(given) > 1:
			q.fault(name, "stands in the query more than once")
		}
	}
	return q
}

func (q *query) fault(field, rule string) {
	q.faults = append(q.faults, gateway.FieldFault{Field: field, Rule: rule})
}

func (q *query) err() error {
	if len(q.faults) == 0 {
		return nil
	}
	slices.SortFunc(q.faults, func(a, b gateway.FieldFault) int { return cmp.Compare(a.Field, b.Field) })
	return &gateway.Error{Code: gateway.CodeMalformedParameter, Detail: fmt.Sprintf("%d faults", len(q.faults)), Faults: q.faults}
}

func (q *query) text(name string, form *regexp.Regexp, rule string) string {
	value := strings.Trim(q.values.Get(name), " ") // pasted references bring spaces
	if q.values.Has(name) && !form.MatchString(value) {
		q.fault(name, rule)
		return ""
	}
	return value
}

// states are those a list can be narrowed to.
var states = []gateway.State{gateway.Pending, gateway.Approved, gateway.Declined, gateway.NotSent, gateway.TimedOut,
	gateway.Captured, gateway.Reversed, gateway.Expired}

func (q *query) state(name string) gateway.State {
	state := gateway.State(q.values.Get(name))
	if q.values.Has(name) && !slices.Contains(states, state) {
		q.fault(name, "one of pending, approved, declined, not_sent, timed_out, captured, reversed, expired")
		return ""
	}
	return state
}

func (q *query) limit() int {
	if !q.values.Has("limit") {
		return defaultPage
	}
	limit, err := strconv.Atoi(q.values.Get("limit"))
	if err != nil || limit < 1 || limit > maxPage {
		q.fault("limit", fmt.Sprintf("1 to %d", maxPage))
		return defaultPage
	}
	return limit
}

// at is a moment, the zero time when none is named.
func (q *query) at() time.Time {
	if !q.values.Has("at") {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, q.values.Get("at"))
	if err != nil {
		q.fault("at", "a time of RFC 3339 such as 2026-01-31T23:59:59Z; the + of an offset is written %2B")
	}
	return at
}

// cursorID is the id after which a page goes on, the nil UUID for the first page.
func (q *query) cursorID() uuid.UUID {
	if !q.values.Has("cursor") {
		return uuid.Nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(q.values.Get("cursor"))
	id, idErr := uuid.FromBytes(raw)
	if err != nil || idErr != nil || id == uuid.Nil {
		q.fault("cursor", "must be the next_cursor of the page before")
	}
	return id
}

// idCursor is the opaque form of the last id of a page.
func idCursor(id uuid.UUID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// list is the one form of every list. NextCursor is null on the last page.
type list[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

func writeList[T any](w http.ResponseWriter, items []T, next string) error {
	page := list[T]{Items: items}
	if next != "" {
		page.NextCursor = &next
	}
	if page.Items == nil {
		page.Items = []T{}
	}
	return writeJSON(w, page)
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("marshal answer: %w", err)
	}
	write(w, http.StatusOK, contentJSON, body)
	return nil
}
