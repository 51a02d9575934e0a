// Package configs reads schemegate's YAML files strictly.
//
// It promises that every fault of a file is reported at once, each with file, line, column, dotted key, value and the rule that
// the value breaks: a key nobody knows, a key given twice, a value of another type, a duration without a unit. The packages that
// own a piece of the configuration check meanings in their Validate methods and add faults by path; Locate then finds the lines.
//
// It never guesses: text is not turned into numbers, a bare number is not a duration, anchors, aliases, merges and tags are
// refused, and nothing is taken from a second document. It never quotes a value that stands under a key marked secret, and it
// never holds a secret in the configuration itself: a Secret only says where the secret lies.
package configs

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxFileBytes bounds a configuration file; a complete commented one is a few tens of kilobytes, and the parser needs time that
	// grows with the square of the keys on one level.
	maxFileBytes = 256 << 10
	// maxNesting bounds how deep a file nests, in the parser (which recurses) and in our own walk.
	maxNesting = 64
)

// unreadableRule begins the rule of a file that is no YAML.
const unreadableRule = "is not YAML that can be read"

// Defaulter is what a type implements (on its pointer) to give defaults to values that the file brings into being: the entries of
// a map, the items of a list, what a pointer points to. Everything else starts as the caller of Load filled it.
type Defaulter interface{ SetDefaults() }

// Load reads the YAML document in data into dst, a pointer to a struct that already holds the defaults. What the file leaves out
// keeps its default; a list or a map that the file gives replaces the default one as a whole. file is used in faults, and tells where
// the files lie that it names.
//
// Fields are named by their yaml tag, else by their name in lower case; `yaml:",inline"` lifts an embedded struct's fields;
// `secret:"true"` keeps values under that field out of faults; `base:"true"` makes a text field name a file, relative to this one,
// whose content is the struct's before the other keys are laid over it, maps key by key. Types with UnmarshalText are read from
// scalars by it, and the error it returns becomes the fault's rule, so that error should name the rule and not quote the value.
//
// The result is in order of lines and nil when nothing is wrong. After a fault dst is partly filled, which is good enough to
// validate the rest for a check of the whole file, and never good enough to run with.
func Load(file string, data []byte, dst any) Faults {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return Faults{{File: file, Rule: fmt.Sprintf("cannot be read into %T: a pointer to a struct is needed", dst)}}
	}
	root, faults := parse(file, data)
	if len(faults) > 0 || root == nil {
		return faults
	}
	d := &decoder{file: file}
	d.value(root, v.Elem(), place{})
	d.faults.sort()
	return d.faults
}

// parse gives the root node of the only document, nil for an empty file.
func parse(file string, data []byte) (root ast.Node, faults Faults) {
	if len(data) > maxFileBytes {
		return nil, Faults{{File: file, Rule: fmt.Sprintf("a configuration file has at most %d bytes", maxFileBytes)}}
	}
	// A parser that panics on odd input must not end a daemon that is asked to check its configuration again.
	defer func() {
		if r := recover(); r != nil {
			root, faults = nil, Faults{{File: file, Rule: unreadableRule}}
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if tk := tooDeep(tokens); tk != nil {
		return nil, Faults{{File: file, Line: tk.Position.Line, Column: tk.Position.Column,
			Rule: fmt.Sprintf("a configuration file nests at most %d levels", maxNesting)}}
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, Faults{syntaxFault(file, err)}
	}
	for _, doc := range f.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		if root != nil {
			return nil, Faults{{File: file, Line: position(doc.Body).Line, Column: position(doc.Body).Column,
				Rule: "a configuration file has one document only"}}
		}
		root = doc.Body
	}
	return root, nil
}

// syntaxFault keeps the parser's position and its message, without the source lines it would print and without the text that
// some messages quote: either may hold a secret.
func syntaxFault(file string, err error) Fault {
	fault := Fault{File: file, Rule: unreadableRule}
	var syntax *yaml.SyntaxError
	if !errors.As(err, &syntax) {
		return fault
	}
	message, _, _ := strings.Cut(syntax.GetMessage(), "\n")
	message, _, _ = strings.Cut(message, ` "`)
	fault.Rule = unreadableRule + ": " + message
	if tk := syntax.GetToken(); tk != nil && tk.Position != nil {
		fault.Line, fault.Column = tk.Position.Line, tk.Position.Column
	}
	return fault
}

// tooDeep gives the first token that opens more than maxNesting levels by brackets or by dashes in one line, else nil. Nesting by
// indentation needs no such bound: n levels cost n*n/2 bytes of a file whose size is bounded.
func tooDeep(tokens token.Tokens) *token.Token {
	brackets, dashes, dashLine := 0, 0, 0
	for _, tk := range tokens {
		switch tk.Type {
		case token.MappingStartType, token.SequenceStartType:
			brackets++
		case token.MappingEndType, token.SequenceEndType:
			brackets--
		case token.SequenceEntryType, token.MappingKeyType:
			if tk.Position.Line != dashLine {
				dashes, dashLine = 0, tk.Position.Line
			}
			dashes++
		}
		if brackets > maxNesting || dashes > maxNesting {
			return tk
		}
	}
	return nil
}
