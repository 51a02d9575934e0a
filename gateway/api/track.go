package api

import (
	"net/http"

	"github.com/schemegate/schemegate/gateway"
)

// track shows the timeline of whatever a reference names. Nothing found is an empty list: a reference that is not known is an answer.
func (a *API) track(w http.ResponseWriter, r *http.Request, c caller) error {
	if err := parseQuery(r, nil).err(); err != nil {
		return err
	}
	timelines, err := a.gateway.Track(r.Context(), c.tenant, r.PathValue("reference"))
	if err != nil {
		return err
	}
	return writeList(w, timelines, "")
}

// listDuplicates shows the tenant's dedup journal, newest first.
func (a *API) listDuplicates(w http.ResponseWriter, r *http.Request, c caller) error {
	q := parseQuery(r, pageParameters)
	limit, before := q.limit(), q.cursorID()
	if err := q.err(); err != nil {
		return err
	}
	found, err := a.gateway.Duplicates(r.Context(), c.tenant, before, limit+1)
	if err != nil {
		return err
	}
	next := ""
	if len(found) > limit {
		found = found[:limit]
		next = idCursor(found[limit-1].ID)
	}
	return writeList[gateway.Duplicate](w, found, next)
}
