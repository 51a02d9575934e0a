package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schemegate/schemegate/gateway"
)

// apiVersion is the version of the interface, which changes when a client must.
const apiVersion = "1.0.0"

const schemaPrefix = "#/components/schemas/"

// newDocument is the OpenAPI 3.1 document without its paths.
func newDocument() *huma.OpenAPI {
	registry := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	for name, schema := range schemas() {
		registry.Map()[name] = schema
	}
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "schemegate",
			Version: apiVersion,
			Description: "Card authorisations between a bank's systems and the payment schemes. " +
				"Amounts are decimal text. Errors are application/problem+json with code, sent and retry.",
		},
		Components: &huma.Components{
			Schemas:         registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer", Description: "One key belongs to one tenant."}},
		},
		Security: []map[string][]string{{"bearer": {}}},
	}
}

var (
	pageParameters = []*huma.Param{
		queryParameter("limit", "Items of a page.", integerSchema(1, maxPage)),
		queryParameter("cursor", "The next_cursor of the page before.", textSchema("")),
	}
	authorizationParameters = append([]*huma.Param{
		queryParameter("client_reference", "The client's own name for the attempt.", textSchema(referenceForm.String())),
		queryParameter("rrn", "Retrieval reference number (DE 37).", textSchema(rrnForm.String())),
		queryParameter("stan", "Systems trace audit number (DE 11).", textSchema(stanForm.String())),
		queryParameter("state", "", &huma.Schema{Type: huma.TypeString, Enum: anyOf(states)}),
		queryParameter("link", "A link's name.", textSchema(linkForm.String())),
	}, pageParameters...)
	balanceParameters = []*huma.Param{
		queryParameter("at", "From everything booked up to and including this time; now when absent.", &huma.Schema{Type: huma.TypeString, Format: "date-time"}),
	}
	postHeaders = []*huma.Param{
		{Name: "Idempotency-Key", In: "header", Required: true, Schema: &huma.Schema{Type: huma.TypeString, MinLength: pointer(1), MaxLength: pointer(gateway.MaxIdempotencyKeyBytes)},
			Description: "One per intent, made before the first attempt and the same for every repeat of it. A repeat gets the same status and body."},
		{Name: "Prefer", In: "header", Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"wait=10"}},
			Description: "wait=N (seconds, RFC 7240) bounds the blocking call: past it, 202 with the present state. respond-async does not wait at all."},
	}
)

// readErrors may come from any read; paths with an id add not_found.
var readErrors = []gateway.Code{gateway.CodeUnauthenticated, gateway.CodeMalformedParameter, gateway.CodeDatabaseUnavailable}

// routes is the table of what the API takes.
func (a *API) routes() []route {
	notFound := append([]gateway.Code{gateway.CodeNotFound}, readErrors...)
	return []route{
		{postOperation(), a.postAuthorization},
		{getOperation("list-authorizations", "/v1/authorizations", "authorizations", "List authorisations, newest first",
			"By reference and by RRN too the answer is a list: an RRN comes round again after years.",
			authorizationParameters, listSchema("Authorization"), readErrors), a.listAuthorizations},
		{getOperation("get-authorization", "/v1/authorizations/{id}", "authorizations", "Read an authorisation as it is now",
			"The stored answer of the POST stays as it was; this shows the present.",
			[]*huma.Param{idParameter}, refSchema("Authorization"), notFound), a.getAuthorization},
		{postDuty("post-capture", "/v1/authorizations/{id}/captures", "Capture an approved amount, wholly or in part",
			"Claims the amount, books it, and owes the scheme its completion (0220, repeated as 0221), all at once. It is never reversed on silence.",
			"CaptureRequest", "DutyAnswer", captureErrors, idParameter), a.postCapture},
		{getOperation("get-capture", "/v1/authorizations/{id}/captures/{capture}", "authorizations", "Read a capture as it is now", "",
			[]*huma.Param{idParameter, pathParameter(kindCapture, id())}, refSchema("Duty"), notFound), a.getDuty(kindCapture)},
		{postDuty("post-reversal", "/v1/authorizations/{id}/reversals", "Reverse an authorisation: the whole, a part, or one capture",
			"Owes the reversal and answers at once; it is sent after the original's answer or deadline. One that is owed already is joined.",
			"ReversalRequest", "DutyAnswer", reversalErrors, idParameter), a.postReversal},
		{getOperation("get-reversal", "/v1/authorizations/{id}/reversals/{reversal}", "authorizations", "Read a reversal as it is now", "",
			[]*huma.Param{idParameter, pathParameter(kindReversal, id())}, refSchema("Duty"), notFound), a.getDuty(kindReversal)},
		{postDuty("post-reversal-by-reference", "/v1/reversals", "Reverse an authorisation known by its client_reference",
			"The same. One that is not known yet is refused when it comes.", "ReversalRequest", "DutyAnswer", reversalErrors), a.postReversalByReference},
		{getOperation("track", "/v1/track/{reference}", "operations", "Everything known about a reference, as a timeline",
			"An id of ours, a client_reference, an RRN, or a STAN, alone or as 000123@2026-12-01. A reference may name several authorisations.",
			[]*huma.Param{pathParameter("reference", textSchema(""))}, listSchema("Timeline"), readErrors), a.track},
		{getOperation("list-duplicates", "/v1/duplicates", "operations", "List repeats that were cut off, newest first", "",
			pageParameters, listSchema("Duplicate"), readErrors), a.listDuplicates},
		{linkOperation("hold", "Take no new requests on a link; what is in flight or owed goes on"), a.postLinkAction(gateway.LinkHold)},
		{linkOperation("resume", "End a hold"), a.postLinkAction(gateway.LinkResume)},
		{linkOperation("sign-off", "Sign off as planned, until it is signed on again; nothing financial is sent meanwhile"), a.postLinkAction(gateway.LinkSignOff)},
		{linkOperation("sign-on", "End a planned sign-off"), a.postLinkAction(gateway.LinkSignOn)},
		{getOperation("list-links", "/v1/links", "operations", "List the links as they stand", "",
			nil, listSchema("Link"), []gateway.Code{gateway.CodeUnauthenticated, gateway.CodeMalformedParameter}), a.listLinks},
		{getOperation("list-exceptions", "/v1/exceptions", "operations", "List what needs a person, newest first", "Open exceptions only.",
			pageParameters, listSchema("Exception"), readErrors), a.listExceptions},
		{getOperation("list-accounts", "/v1/ledger/accounts", "ledger", "List the ledger's accounts", "",
			pageParameters, listSchema("Account"), readErrors), a.listAccounts},
		{getOperation("get-balance", "/v1/ledger/accounts/{account}/balance", "ledger", "Read a balance, now or at any time", "",
			append([]*huma.Param{pathParameter("account", integerSchema(1, 0))}, balanceParameters...), refSchema("Balance"), notFound), a.getBalance},
		{getOperation("list-entries", "/v1/ledger/accounts/{account}/entries", "ledger", "List an account's entries, newest first", "",
			append([]*huma.Param{pathParameter("account", integerSchema(1, 0))}, pageParameters...), listSchema("Entry"), notFound), a.listEntries},
	}
}

func postOperation() huma.Operation {
	created := jsonResponse("Decided: approved, declined, or timed_out, whose outcome is unknown and which is being reversed.", refSchema("Authorization"))
	created.Headers = map[string]*huma.Param{
		"Location":            {Description: "Where the authorisation is read.", Schema: textSchema("")},
		"Idempotent-Replayed": {Description: "true on a repeat; nothing was sent for it.", Schema: textSchema("")},
	}
	accepted := jsonResponse("Still running after Prefer: wait. Repeat with the same key, or read the Location.", refSchema("Authorization"))
	accepted.Headers = created.Headers
	responses := problemResponses(
		gateway.CodeMalformedBody, gateway.CodeMalformedHeader, gateway.CodeMalformedParameter, gateway.CodeKeyMissing, gateway.CodeKeyMalformed,
		gateway.CodeUnauthenticated, gateway.CodeRequestTimeout, gateway.CodeInProgress, gateway.CodeDuplicateReference, gateway.CodeAnswerExpired,
		gateway.CodeBodyTooLarge, gateway.CodeUnsupportedMediaType, gateway.CodeValidationFailed, gateway.CodeKeyReuse, gateway.CodeUnknownLink,
		gateway.CodeReversedBefore,
		gateway.CodeInternal, gateway.CodeInternalAfterRecorded, gateway.CodeLinkUnavailable, gateway.CodeLinkHeld, gateway.CodeNotSent, gateway.CodeReferenceExhausted,
		gateway.CodeOverloaded, gateway.CodeShuttingDown, gateway.CodeDatabaseUnavailable, gateway.CodeOutcomeUnknown)
	responses["201"], responses["202"] = created, accepted
	return huma.Operation{
		OperationID: "post-authorization", Method: http.MethodPost, Path: "/v1/authorizations", Tags: []string{"authorizations"},
		Summary: "Authorise a card",
		Description: "Records the intent, sends it once, and answers when it is decided. A decline is a 201. Silence is a 201 with state timed_out, " +
			"outcome unknown and the reversal that is owed. Nothing is ever sent a second time for the same key.",
		Parameters: postHeaders,
		RequestBody: &huma.RequestBody{Required: true,
			Content: map[string]*huma.MediaType{contentJSON: {Schema: refSchema("AuthorizationRequest"), Example: exampleRequest()}}},
		Responses: responses,
	}
}

func getOperation(id, path, tag, summary, description string, parameters []*huma.Param, schema *huma.Schema, errors []gateway.Code) huma.Operation {
	responses := problemResponses(errors...)
	responses["200"] = jsonResponse("What was asked for.", schema)
	return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Tags: []string{tag}, Summary: summary, Description: description,
		Parameters: parameters, Responses: responses}
}

// problemResponses groups codes by their status.
func problemResponses(codes ...gateway.Code) map[string]*huma.Response {
	responses := map[string]*huma.Response{}
	for _, code := range codes {
		e := &gateway.Error{Code: code}
		status := strconv.Itoa(e.Status())
		line := fmt.Sprintf("%s: %s (sent: %s, retry: %s).", code, e.Title(), e.Sent(), e.Retry())
		if response := responses[status]; response != nil {
			response.Description += "\n" + line
			continue
		}
		responses[status] = &huma.Response{Description: line, Content: map[string]*huma.MediaType{contentProblem: {Schema: refSchema("Problem")}}}
	}
	return responses
}

func jsonResponse(description string, schema *huma.Schema) *huma.Response {
	return &huma.Response{Description: description, Content: map[string]*huma.MediaType{contentJSON: {Schema: schema}}}
}

func queryParameter(name, description string, schema *huma.Schema) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: description, Schema: schema}
}

func pathParameter(name string, schema *huma.Schema) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Schema: schema}
}

func refSchema(name string) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + name} }

func listSchema(item string) *huma.Schema {
	return objectSchema(map[string]*huma.Schema{
		"items":       {Type: huma.TypeArray, Items: refSchema(item)},
		"next_cursor": {Type: huma.TypeString, Nullable: true, Description: "For the next page; null on the last one."},
	}, "items", "next_cursor")
}

func objectSchema(properties map[string]*huma.Schema, required ...string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, Properties: properties, Required: required}
}

func textSchema(pattern string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: pattern}
}

// integerSchema bounds an integer; most 0 is no upper bound.
func integerSchema(least, most int) *huma.Schema {
	schema := &huma.Schema{Type: huma.TypeInteger, Minimum: pointer(float64(least))}
	if most > 0 {
		schema.Maximum = pointer(float64(most))
	}
	return schema
}

func pointer[T any](v T) *T { return &v }

func anyOf[T ~string](words []T) []any {
	values := make([]any, len(words))
	for i, word := range words {
		values[i] = string(word)
	}
	return values
}

// describe gives every property its words: "name: words" a line.
func describe(schema *huma.Schema, lines string) *huma.Schema {
	for line := range strings.Lines(lines) {
		name, words, found := strings.Cut(strings.TrimSpace(line), ": ")
		if !found {
			continue
		}
		schema.Properties[name].Description = words
	}
	return schema
}
