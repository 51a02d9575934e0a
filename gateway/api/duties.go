package api

import (
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/gateway"
)

// postCapture completes an approved authorisation, wholly or in part.
func (a *API) postCapture(w http.ResponseWriter, r *http.Request, c caller) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	return post(a, w, r, gateway.ParseCaptureRequest, func(key string, request gateway.CaptureRequest) (gateway.Answer, error) {
		return a.gateway.Capture(r.Context(), gateway.CaptureCall{Tenant: c.tenant, IdempotencyKey: key, Authorization: id, Request: request})
	})
}

// postReversal undoes an authorisation that the path names: the whole, a part, or one capture.
func (a *API) postReversal(w http.ResponseWriter, r *http.Request, c caller) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	parse := func(body []byte) (gateway.ReversalRequest, error) { return gateway.ParseReversalRequest(body, false) }
	return post(a, w, r, parse, func(key string, request gateway.ReversalRequest) (gateway.Answer, error) {
		return a.gateway.Reverse(r.Context(), gateway.ReverseCall{Tenant: c.tenant, IdempotencyKey: key, Authorization: id, Request: request})
	})
}

// postReversalByReference undoes an authorisation that the client knows by its own reference alone, whether or not it came.
func (a *API) postReversalByReference(w http.ResponseWriter, r *http.Request, c caller) error {
	parse := func(body []byte) (gateway.ReversalRequest, error) { return gateway.ParseReversalRequest(body, true) }
	return post(a, w, r, parse, func(key string, request gateway.ReversalRequest) (gateway.Answer, error) {
		return a.gateway.Reverse(r.Context(), gateway.ReverseCall{Tenant: c.tenant, IdempotencyKey: key, Request: request})
	})
}

// postLinkAction carries out a person's decision about a link. A key needs the right to it.
func (a *API) postLinkAction(action gateway.LinkAction) func(http.ResponseWriter, *http.Request, caller) error {
	return func(w http.ResponseWriter, r *http.Request, c caller) error {
		if !c.operator {
			return &gateway.Error{Code: gateway.CodeForbidden}
		}
		return post(a, w, r, gateway.ParseLinkRequest, func(key string, request gateway.LinkRequest) (gateway.Answer, error) {
			return a.gateway.ControlLink(r.Context(), gateway.LinkCall{Tenant: c.tenant, IdempotencyKey: key, Link: r.PathValue("name"), Action: action, Request: request})
		})
	}
}

// post takes a request with a key and a body apart, carries it out, and writes back what is stored for it.
func post[R any](a *API, w http.ResponseWriter, r *http.Request, parse func([]byte) (R, error), carryOut func(key string, request R) (gateway.Answer, error)) error {
	key, body, err := a.readPost(w, r)
	defer clear(body)
	if err != nil {
		return err
	}
	request, err := parse(body)
	if err != nil {
		return err
	}
	answer, err := carryOut(key, request)
	if err != nil {
		return err
	}
	writeAnswer(w, answer)
	return nil
}

// What a duty is, as the paths call it.
const (
	kindCapture  = "capture"
	kindReversal = "reversal"
)

// getDuty shows the present of one capture or one reversal, as the path says which of the two it is.
func (a *API) getDuty(kind string) func(http.ResponseWriter, *http.Request, caller) error {
	return func(w http.ResponseWriter, r *http.Request, c caller) error {
		if err := parseQuery(r, nil).err(); err != nil {
			return err
		}
		authorization, err := pathID(r, "id")
		if err != nil {
			return err
		}
		id, err := pathID(r, kind)
		if err != nil {
			return err
		}
		duties, err := a.gateway.Duties(r.Context(), c.tenant, authorization)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(duties, func(d gateway.DutyView) bool { return d.ID == id && string(d.Kind) == kind })
		if i < 0 {
			return &gateway.Error{Code: gateway.CodeNotFound}
		}
		return writeJSON(w, duties[i])
	}
}

// pathID reads an id of the path; another form than the one we write names nothing.
func pathID(r *http.Request, name string) (uuid.UUID, error) {
	text := r.PathValue(name)
	id, err := uuid.Parse(text)
	if err != nil || len(text) != uuidTextLength || id == uuid.Nil {
		return uuid.Nil, &gateway.Error{Code: gateway.CodeNotFound}
	}
	return id, nil
}
