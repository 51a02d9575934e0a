package api

import (
	"bytes"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/schemegate/schemegate/gateway"
)

// The page's tables, made of the OpenAPI document.
type (
	docsPage struct {
		Title, Version, Description string
		Operations                  []docsOperation
		Schemas                     []docsSchema
		Codes                       []*gateway.Error
	}
	docsOperation struct {
		Method, Path, Summary, Description string
		Body                               string
		Parameters                         []*huma.Param
		Responses                          []docsResponse
	}
	docsResponse struct{ Status, Description, Schema string }
	docsSchema   struct {
		Name   string
		Fields []docsField
	}
	docsField struct {
		Name, Type, Description string
		Required                bool
	}
)

// renderDocs makes the human page. It loads nothing from anywhere, so it works where the internet does not reach.
func renderDocs(document *huma.OpenAPI) ([]byte, error) {
	page := docsPage{Title: document.Info.Title, Version: document.Info.Version, Description: document.Info.Description}
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		item := document.Paths[path]
		for _, operation := range []*huma.Operation{item.Post, item.Get} {
			if operation != nil {
				page.Operations = append(page.Operations, docsOf(operation))
			}
		}
	}
	all := document.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		schema := docsSchema{Name: name}
		addFields(&schema, "", all[name])
		page.Schemas = append(page.Schemas, schema)
	}
	for _, code := range gateway.Codes() {
		page.Codes = append(page.Codes, &gateway.Error{Code: code})
	}
	var out bytes.Buffer
	err := docsTemplate.Execute(&out, page)
	return out.Bytes(), err
}

func docsOf(operation *huma.Operation) docsOperation {
	docs := docsOperation{Method: operation.Method, Path: operation.Path, Summary: operation.Summary, Description: operation.Description,
		Parameters: operation.Parameters}
	if operation.RequestBody != nil {
		docs.Body = typeOf(operation.RequestBody.Content[contentJSON].Schema)
	}
	for _, status := range slices.Sorted(maps.Keys(operation.Responses)) {
		response := operation.Responses[status]
		row := docsResponse{Status: status, Description: response.Description}
		for _, content := range response.Content {
			row.Schema = typeOf(content.Schema)
		}
		docs.Responses = append(docs.Responses, row)
	}
	return docs
}

func addFields(to *docsSchema, prefix string, schema *huma.Schema) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		to.Fields = append(to.Fields, docsField{Name: prefix + name, Type: typeOf(property), Description: property.Description,
			Required: slices.Contains(schema.Required, name)})
		addFields(to, prefix+name+".", property)
	}
}

// typeOf names a schema's type for people.
func typeOf(schema *huma.Schema) string {
	switch {
	case schema.Ref != "":
		return strings.TrimPrefix(schema.Ref, schemaPrefix)
	case schema.Type == huma.TypeArray:
		return "list of " + typeOf(schema.Items)
	case schema.Properties["next_cursor"] != nil:
		return "page of " + typeOf(schema.Properties["items"].Items)
	}
	name := schema.Type
	for _, part := range []string{schema.Format, schema.Pattern} {
		if part != "" {
			name += " " + part
		}
	}
	if len(schema.Enum) > 0 && len(schema.Enum) <= 10 {
		for i, value := range schema.Enum {
			separator := " | "
			if i == 0 {
				separator = ": "
			}
			name += separator + value.(string)
		}
	}
	if schema.Nullable {
		name += " or null"
	}
	return name
}

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{
	"type":   typeOf,
	"status": http.StatusText,
	"lines":  func(s string) []string { return strings.Split(s, "\n") },
}).Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}} API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1.5rem; max-width: 60rem; color: #1a1f2b; background: #fff }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem } section { border-top: 1px solid #d8dce4; padding-top: .5rem; margin-top: 1.5rem }
code, .m { font: .9em ui-monospace, monospace } .m { background: #1d4ed8; color: #fff; padding: .1rem .5rem; border-radius: .25rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid #e8ebf0 }
td code { overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { color: #e5e9f0; background: #12161f } section, th, td { border-color: #333a48 } a { color: #8ab4ff } }
</style>
</head>
<body>
<h1>{{.Title}} API {{.Version}}</h1>
<p>{{.Description}} For programs: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>
<h2>Routes</h2>
{{range .Operations}}<section>
<h3><span class="m">{{.Method}}</span> <code>{{.Path}}</code></h3>
<p><strong>{{.Summary}}.</strong> {{.Description}}</p>
{{if .Body}}<p>Body: <a href="#{{.Body}}">{{.Body}}</a></p>{{end}}
{{if .Parameters}}<table><tr><th>Parameter</th><th>In</th><th>Type</th><th>Meaning</th></tr>
{{range .Parameters}}<tr><td><code>{{.Name}}</code>{{if .Required}} *{{end}}</td><td>{{.In}}</td><td><code>{{type .Schema}}</code></td><td>{{.Description}}</td></tr>
{{end}}</table>{{end}}
<table><tr><th>Status</th><th>Answer</th><th>When</th></tr>
{{range .Responses}}<tr><td>{{.Status}}</td><td>{{.Schema}}</td><td>{{range lines .Description}}{{.}}<br>{{end}}</td></tr>
{{end}}</table>
</section>
{{end}}
<h2>Shapes</h2>
{{range .Schemas}}<section id="{{.Name}}">
<h3>{{.Name}}</h3>
<table><tr><th>Member</th><th>Type</th><th>Meaning</th></tr>
{{range .Fields}}<tr><td><code>{{.Name}}</code>{{if .Required}} *{{end}}</td><td><code>{{.Type}}</code></td><td>{{.Description}}</td></tr>
{{end}}</table>
</section>
{{end}}
<h2>Codes</h2>
<table><tr><th>Code</th><th>Status</th><th>Sent</th><th>Retry</th><th>Meaning</th></tr>
{{range .Codes}}<tr><td><code>{{.Code}}</code></td><td>{{.Status}} {{status .Status}}</td><td>{{.Sent}}</td><td>{{.Retry}}</td><td>{{.Title}}</td></tr>
{{end}}</table>
</body>
</html>
`))
