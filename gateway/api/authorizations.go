package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/schemegate/schemegate/gateway"
)

// postAuthorization hands a request to the gateway and writes back what is stored for it.
func (a *API) postAuthorization(w http.ResponseWriter, r *http.Request, c caller) error {
	call, err := a.readCall(w, r, c)
	if err != nil {
		return err
	}
	answer, err := a.gateway.Authorize(r.Context(), call)
	if err != nil {
		return err
	}
	writeAnswer(w, answer)
	return nil
}

// writeAnswer writes what is stored, byte for byte.
func writeAnswer(w http.ResponseWriter, answer gateway.Answer) {
	header := w.Header()
	if answer.Replayed {
		header.Set("Idempotent-Replayed", "true")
	}
	if answer.Resource != "" && (answer.Status == http.StatusCreated || answer.Status == http.StatusAccepted) {
		header.Set("Location", answer.Resource)
	}
	contentType := contentJSON
	if answer.Status >= http.StatusBadRequest {
		contentType = contentProblem
	}
	write(w, answer.Status, contentType, answer.Body)
}

// readCall takes the request apart; nothing of it reaches the gateway before all of it can be read.
func (a *API) readCall(w http.ResponseWriter, r *http.Request, c caller) (gateway.AuthorizeCall, error) {
	call := gateway.AuthorizeCall{Tenant: c.tenant}
	key, body, err := a.readPost(w, r)
	defer clear(body) // track, PIN block and ICC data live no longer than they must
	if err != nil {
		return call, err
	}
	call.IdempotencyKey = key
	if call.Wait, err = preferredWait(r.Header); err != nil {
		return call, err
	}
	call.Request, err = gateway.ParseAuthorizationRequest(body)
	return call, err
}

// readPost reads what every POST has: a key and a body, and no parameters.
func (a *API) readPost(w http.ResponseWriter, r *http.Request) (key string, body []byte, err error) {
	if len(r.Header.Values("Idempotency-Key")) == 0 {
		a.metrics.withoutKey.Inc()
	}
	if key, err = idempotencyKey(r.Header); err != nil {
		return "", nil, err
	}
	if _, err := preferredWait(r.Header); err != nil {
		return "", nil, err
	}
	if err := checkJSON(r.Header); err != nil {
		return "", nil, err
	}
	if r.URL.RawQuery != "" {
		return "", nil, gateway.Errorf(gateway.CodeMalformedParameter, nil, "this route takes no parameters")
	}
	body, err = a.readBody(w, r)
	return key, body, err
}

// readBody reads the body within its bounds of size and time.
func (a *API) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(a.config.MaxBodyBytes)))
	var tooLarge *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &tooLarge):
		return body, gateway.Errorf(gateway.CodeBodyTooLarge, nil, "at most %d bytes", a.config.MaxBodyBytes)
	case errors.As(err, &timeout) && timeout.Timeout():
		return body, gateway.Errorf(gateway.CodeRequestTimeout, nil, "the body must arrive within %s", a.config.BodyTimeout)
	case err != nil:
		return body, gateway.Errorf(gateway.CodeMalformedBody, nil, "the body ended early")
	}
	if rec, ok := w.(*recorder); ok {
		// The server goes on listening for the client's departure; the body's deadline would look like one.
		rec.deadline((*http.ResponseController).SetReadDeadline, 0)
	}
	return body, nil
}

// getAuthorization shows the present of one authorisation.
func (a *API) getAuthorization(w http.ResponseWriter, r *http.Request, c caller) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	authorization, err := a.gateway.Authorization(r.Context(), c.tenant, id)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, contentJSON, authorization.JSON())
	return nil
}

// uuidTextLength is the one form of an id that we write; uuid.Parse takes others too.
const uuidTextLength = 36

// listAuthorizations lists authorisations, newest first, narrowed by what the query names.
func (a *API) listAuthorizations(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, authorizationParameters)
	filter := gateway.Filter{
		ClientReference: q.text("client_reference", referenceForm, "1 to 64 printable characters without spaces"),
		RRN:             strings.ToUpper(q.text("rrn", rrnForm, "12 letters or digits (DE 37)")),
		STAN:            q.text("stan", stanForm, "6 digits (DE 11)"),
		State:           q.state("state"),
		Link:            q.text("link", linkForm, "a link's name"),
		Before:          q.cursorID(),
	}
	limit := q.limit()
	filter.Limit = limit + 1 // one more tells whether there is a next page
	if err := q.err(); err != nil {
		return err
	}
	found, err := a.gateway.Authorizations(r.Context(), c.tenant, filter)
	if err != nil {
		return err
	}
	next := ""
	if len(found) > limit {
		found = found[:limit]
		next = idCursor(found[limit-1].ID)
	}
	items := make([]json.RawMessage, len(found))
	for i, authorization := range found {
		items[i] = authorization.JSON()
	}
	return writeList(w, items, next)
}
