package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// Code names what went wrong, for programs. Each has one row in codeTable.
type Code string

// The codes of the API. Their HTTP status, what they say about the wire, and what a client may do stand in codeTable.
const (
	CodeMalformedBody          Code = "malformed_body"
	CodeBodyTooLarge           Code = "body_too_large"
	CodeRequestTimeout         Code = "request_timeout"
	CodeUnsupportedMediaType   Code = "unsupported_media_type"
	CodeMalformedHeader        Code = "malformed_header"
	CodeMalformedParameter     Code = "malformed_parameter"
	CodeValidationFailed       Code = "validation_failed"
	CodeKeyMissing             Code = "idempotency_key_missing"
	CodeKeyMalformed           Code = "idempotency_key_malformed"
	CodeKeyReuse               Code = "idempotency_key_reuse"
	CodeInProgress             Code = "idempotency_in_progress"
	CodeDuplicateReference     Code = "duplicate_reference"
	CodeUnauthenticated        Code = "unauthenticated"
	CodeForbidden              Code = "forbidden"
	CodeNotFound               Code = "not_found"
	CodeMethodNotAllowed       Code = "method_not_allowed"
	CodeUnknownLink            Code = "unknown_link"
	CodeLinkUnavailable        Code = "link_unavailable"
	CodeLinkHeld               Code = "link_held"
	CodeNotSent                Code = "not_sent"
	CodeReferenceExhausted     Code = "reference_exhausted"
	CodeOverloaded             Code = "overloaded"
	CodeShuttingDown           Code = "shutting_down"
	CodeDatabaseUnavailable    Code = "database_unavailable"
	CodeOutcomeUnknown         Code = "outcome_unknown"
	CodeAnswerExpired          Code = "answer_expired"
	CodeAuthorizationPending   Code = "authorization_pending"
	CodeAuthorizationTimedOut  Code = "authorization_timed_out"
	CodeAuthorizationDeclined  Code = "authorization_declined"
	CodeAuthorizationNotSent   Code = "authorization_not_sent"
	CodeAuthorizationCaptured  Code = "authorization_captured"
	CodeAuthorizationReversed  Code = "authorization_reversed"
	CodeAuthorizationExpired   Code = "authorization_expired"
	CodeNothingHeld            Code = "nothing_held"
	CodeReversalOwed           Code = "reversal_owed"
	CodeAmountExceedsRemaining Code = "amount_exceeds_remaining"
	CodePartialReversalRefused Code = "partial_reversal_refused"
	CodeTooManyDuties          Code = "too_many_duties"
	CodeCaptured               Code = "captured"
	CodeNothingToUndo          Code = "nothing_to_undo"
	CodeReversedBefore         Code = "reversed_before"
	CodeInternal               Code = "internal"
	CodeInternalAfterRecorded  Code = "internal_after_recorded"
)

// Sent says what is known about bytes on their way to a scheme.
type Sent string

// Sent is never guessed: unknown stands wherever a byte may have left.
const (
	SentNo      Sent = "no"
	SentYes     Sent = "yes"
	SentUnknown Sent = "unknown"
)

// Retry says what a client may do with the same intent.
type Retry string

// RetrySameKey repeats the request as it was; RetryNewKey is a new attempt of the same order; RetryAfter waits first
// and then repeats with the same key.
const (
	RetryNever   Retry = "never"
	RetrySameKey Retry = "same_key"
	RetryNewKey  Retry = "new_key"
	RetryAfter   Retry = "after"
)

type codeRule struct {
	status int
	title  string
	sent   Sent
	retry  Retry
}

// codeTable is the one place that turns a code into an HTTP status and advice.
var codeTable = map[Code]codeRule{
	CodeMalformedBody:          {http.StatusBadRequest, "The body is not the JSON this route takes", SentNo, RetryNever},
	CodeBodyTooLarge:           {http.StatusRequestEntityTooLarge, "The body is larger than this route takes", SentNo, RetryNever},
	CodeRequestTimeout:         {http.StatusRequestTimeout, "The request did not arrive whole in time", SentNo, RetrySameKey},
	CodeUnsupportedMediaType:   {http.StatusUnsupportedMediaType, "This route takes application/json", SentNo, RetryNever},
	CodeMalformedHeader:        {http.StatusBadRequest, "A header cannot be read", SentNo, RetryNever},
	CodeMalformedParameter:     {http.StatusBadRequest, "A parameter cannot be read", SentNo, RetryNever},
	CodeValidationFailed:       {http.StatusUnprocessableEntity, "The request breaks the rules named in faults", SentNo, RetryNever},
	CodeKeyMissing:             {http.StatusBadRequest, "This route needs an Idempotency-Key header", SentNo, RetryNever},
	CodeKeyMalformed:           {http.StatusBadRequest, "The Idempotency-Key header cannot be used", SentNo, RetryNever},
	CodeKeyReuse:               {http.StatusUnprocessableEntity, "The key was used before with other content", SentNo, RetryNever},
	CodeInProgress:             {http.StatusConflict, "The first request with this key is still running", SentUnknown, RetryAfter},
	CodeDuplicateReference:     {http.StatusConflict, "The client_reference was used before with another key", SentNo, RetryNever},
	CodeUnauthenticated:        {http.StatusUnauthorized, "The bearer key is missing or unknown", SentNo, RetryNever},
	CodeForbidden:              {http.StatusForbidden, "This key has no right to this route", SentNo, RetryNever},
	CodeNotFound:               {http.StatusNotFound, "There is no such resource", SentNo, RetryNever},
	CodeMethodNotAllowed:       {http.StatusMethodNotAllowed, "This route does not take this method", SentNo, RetryNever},
	CodeUnknownLink:            {http.StatusUnprocessableEntity, "There is no such link", SentNo, RetryNever},
	CodeLinkUnavailable:        {http.StatusServiceUnavailable, "The link cannot take financial traffic now; nothing was recorded or sent", SentNo, RetryAfter},
	CodeLinkHeld:               {http.StatusServiceUnavailable, "The link is held by a person's decision; nothing was recorded or sent", SentNo, RetryAfter},
	CodeNotSent:                {http.StatusServiceUnavailable, "The authorisation was recorded and certainly not sent", SentNo, RetryNewKey},
	CodeReferenceExhausted:     {http.StatusServiceUnavailable, "The link has no free STAN or RRN now", SentNo, RetryAfter},
	CodeOverloaded:             {http.StatusServiceUnavailable, "Too much is waiting; nothing was recorded or sent", SentNo, RetryAfter},
	CodeShuttingDown:           {http.StatusServiceUnavailable, "The daemon is stopping; nothing was recorded or sent", SentNo, RetryAfter},
	CodeDatabaseUnavailable:    {http.StatusServiceUnavailable, "The database cannot be reached; nothing was recorded or sent", SentNo, RetryAfter},
	CodeOutcomeUnknown:         {http.StatusServiceUnavailable, "What became of the request is not known yet", SentUnknown, RetrySameKey},
	CodeAnswerExpired:          {http.StatusGone, "The stored answer has expired; read the resource", SentUnknown, RetryNever},
	CodeAuthorizationPending:   {http.StatusConflict, "The authorisation is not decided yet", SentNo, RetryAfter},
	CodeAuthorizationTimedOut:  {http.StatusConflict, "The authorisation's outcome is unknown; it is being reversed", SentNo, RetryNever},
	CodeAuthorizationDeclined:  {http.StatusConflict, "The authorisation was declined", SentNo, RetryNever},
	CodeAuthorizationNotSent:   {http.StatusConflict, "The authorisation was never sent", SentNo, RetryNever},
	CodeAuthorizationCaptured:  {http.StatusConflict, "The authorisation is captured; nothing of it is held any more", SentNo, RetryNever},
	CodeAuthorizationReversed:  {http.StatusConflict, "The authorisation is reversed", SentNo, RetryNever},
	CodeAuthorizationExpired:   {http.StatusConflict, "The authorisation's hold has expired", SentNo, RetryNever},
	CodeNothingHeld:            {http.StatusConflict, "An authorisation of this type holds nothing", SentNo, RetryNever},
	CodeReversalOwed:           {http.StatusConflict, "The reversal of the whole authorisation is owed", SentNo, RetryNever},
	CodeAmountExceedsRemaining: {http.StatusConflict, "The amount is more than remains of the authorisation", SentNo, RetryNever},
	CodePartialReversalRefused: {http.StatusConflict, "The link's scheme takes no partial reversals", SentNo, RetryNever},
	CodeTooManyDuties:          {http.StatusConflict, "The authorisation has had all the captures and reversals it may have", SentNo, RetryNever},
	CodeCaptured:               {http.StatusConflict, "The authorisation was captured, so it cannot be reversed as a whole", SentNo, RetryNever},
	CodeNothingToUndo:          {http.StatusConflict, "There is nothing of the authorisation to undo", SentNo, RetryNever},
	CodeReversedBefore:         {http.StatusConflict, "The client_reference was reversed before the authorisation came", SentNo, RetryNever},
	CodeInternal:               {http.StatusInternalServerError, "An internal error; nothing was recorded or sent", SentNo, RetrySameKey},
	CodeInternalAfterRecorded:  {http.StatusInternalServerError, "An internal error after the request was recorded", SentUnknown, RetrySameKey},
}

// FieldFault is one broken rule of a request. It names the field and never quotes its value.
type FieldFault struct {
	Field string `json:"field"`
	Rule  string `json:"rule"`
}

// Error is what the API tells a client: RFC 9457 problem details with the gateway's own members.
type Error struct {
	Code              Code
	Detail            string
	Faults            []FieldFault
	Resource          string // path of the resource the error speaks of, empty when there is none
	RetryAfterSeconds int    // 0 when no time can be named
	cause             error
}

// Errorf makes an Error whose cause is kept for the log and never shown.
func Errorf(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...), cause: cause}
}

func (e *Error) Error() string {
	text := string(e.Code)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.cause }

// Status is the HTTP status of the error's code.
func (e *Error) Status() int { return e.rule().status }

// Sent says what the error's code knows about the wire.
func (e *Error) Sent() Sent { return e.rule().sent }

// Retry says what the client may do.
func (e *Error) Retry() Retry { return e.rule().retry }

// Title is the code's meaning in one line, the same for every occurrence.
func (e *Error) Title() string { return e.rule().title }

// Codes lists every code, for documentation.
func Codes() []Code { return slices.Sorted(maps.Keys(codeTable)) }

func (e *Error) rule() codeRule {
	rule, ok := codeTable[e.Code]
	if !ok {
		return codeTable[CodeInternalAfterRecorded]
	}
	return rule
}

// Problem is the body of the error as application/problem+json.
func (e *Error) Problem() []byte {
	rule := e.rule()
	body, err := json.Marshal(struct {
		Type     string       `json:"type"`
		Title    string       `json:"title"`
		Status   int          `json:"status"`
		Code     Code         `json:"code"`
		Detail   string       `json:"detail,omitempty"`
		Sent     Sent         `json:"sent"`
		Retry    Retry        `json:"retry"`
		Resource string       `json:"resource,omitempty"`
		Faults   []FieldFault `json:"faults,omitempty"`
	}{"about:blank", rule.title, rule.status, e.Code, e.Detail, rule.sent, rule.retry, e.Resource, e.Faults})
	if err != nil { // only strings and integers are marshalled
		panic(fmt.Sprintf("marshal problem: %v", err))
	}
	return body
}

// AsError finds the Error in err; any other error becomes CodeInternalAfterRecorded, since its place is not known.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternalAfterRecorded, cause: err}
}
