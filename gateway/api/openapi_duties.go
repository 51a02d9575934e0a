package api

import (
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schemegate/schemegate/gateway"
)

var idParameter = pathParameter("id", &huma.Schema{Type: huma.TypeString, Format: "uuid"})

// postErrors may come from any POST about something that is there already.
var postErrors = []gateway.Code{
	gateway.CodeMalformedBody, gateway.CodeMalformedHeader, gateway.CodeMalformedParameter, gateway.CodeKeyMissing, gateway.CodeKeyMalformed,
	gateway.CodeUnauthenticated, gateway.CodeNotFound, gateway.CodeRequestTimeout, gateway.CodeAnswerExpired, gateway.CodeBodyTooLarge,
	gateway.CodeUnsupportedMediaType, gateway.CodeValidationFailed, gateway.CodeKeyReuse, gateway.CodeOverloaded, gateway.CodeShuttingDown,
	gateway.CodeDatabaseUnavailable, gateway.CodeOutcomeUnknown,
}

// postDuty is a POST that answers as soon as what it asks for is committed.
func postDuty(id, path, summary, description, request, response string, errors []gateway.Code, parameters ...*huma.Param) huma.Operation {
	created := jsonResponse("Committed. What has to be sent for it is owed from now on, until the scheme acknowledges it.", refSchema(response))
	created.Headers = map[string]*huma.Param{
		"Location":            {Description: "Where it is read; absent for a reversal of something that is not known.", Schema: textSchema("")},
		"Idempotent-Replayed": {Description: "true on a repeat; nothing was done for it.", Schema: textSchema("")},
	}
	responses := problemResponses(slices.Concat(postErrors, errors)...)
	responses["201"] = created
	return huma.Operation{OperationID: id, Method: http.MethodPost, Path: path, Tags: []string{"authorizations"}, Summary: summary, Description: description,
		Parameters: append(parameters, postHeaders[0]),
		RequestBody: &huma.RequestBody{Required: true,
			Content: map[string]*huma.MediaType{contentJSON: {Schema: refSchema(request)}}},
		Responses: responses}
}

func linkOperation(action, summary string) huma.Operation {
	responses := problemResponses(slices.Concat(postErrors, []gateway.Code{gateway.CodeForbidden})...)
	responses["200"] = jsonResponse("What now stands about the link.", refSchema("LinkControl"))
	return huma.Operation{OperationID: "link-" + action, Method: http.MethodPost, Path: "/v1/links/{name}/" + action, Tags: []string{"operations"}, Summary: summary,
		Description: "Needs a key whose entry in the configuration says operator: true.",
		Parameters:  []*huma.Param{pathParameter("name", textSchema(linkForm.String())), postHeaders[0]},
		RequestBody: &huma.RequestBody{Required: true,
			Content: map[string]*huma.MediaType{contentJSON: {Schema: refSchema("LinkRequest")}}},
		Responses: responses}
}
