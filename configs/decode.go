package configs

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder walks the document beside the Go type it is read into and notes every fault on the way, instead of ending at the first.
type decoder struct {
	file   string
	base   bool // the file is one that another one is laid over
	faults Faults
}

// place is where in the document the decoder stands.
type place struct {
	path   string
	depth  int
	secret bool // values from here on are never quoted
	over   bool // what is here already comes from a base file, and maps keep what the document does not name
}

func (p place) child(key string) place {
	p.depth++
	if p.path == "" {
		p.path = key
	} else {
		p.path += "." + key
	}
	return p
}

var (
	secretType   = reflect.TypeFor[Secret]()
	durationType = reflect.TypeFor[Duration]()
	stdDuration  = reflect.TypeFor[time.Duration]()
)

// fault notes that the node breaks a rule; a scalar's text is quoted.
func (d *decoder) fault(n ast.Node, at place, rule string) {
	fault := Fault{File: d.file, Line: position(n).Line, Column: position(n).Column, Path: at.path, Rule: rule}
	if text, kind := scalar(n); kind != notScalar && kind != nullScalar && !at.secret {
		fault.Value = quote(text)
	}
	d.faults = append(d.faults, fault)
}

// value reads a node into dst, whatever both are.
func (d *decoder) value(n ast.Node, dst reflect.Value, at place) {
	if at.depth > maxNesting {
		d.fault(n, at, fmt.Sprintf("nests deeper than %d levels", maxNesting))
		return
	}
	if dst.Type() == secretType {
		at.secret = true
	}
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		d.fault(n, at, "anchors, aliases, merges and tags are not supported: write the value out")
		return
	}
	if _, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok || dst.Type() == stdDuration {
		d.text(n, dst, at)
		return
	}
	switch dst.Kind() {
	case reflect.Pointer:
		if _, kind := scalar(n); kind == nullScalar {
			return
		}
		fresh := newValue(dst.Type().Elem())
		d.value(n, fresh, at)
		dst.Set(fresh.Addr())
	case reflect.Struct:
		d.structure(n, dst, at)
	case reflect.Map:
		d.mapping(n, dst, at)
	case reflect.Slice:
		d.list(n, dst, at)
	default:
		d.scalar(n, dst, at)
	}
}

// newValue makes a settable value with the defaults of its type.
func newValue(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	if v, ok := p.Interface().(Defaulter); ok {
		v.SetDefaults()
	}
	return p.Elem()
}

func (d *decoder) structure(n ast.Node, dst reflect.Value, at place) {
	pairs, ok := pairs(n)
	if !ok {
		d.wrongShape(n, at, "needs keys below it")
		return
	}
	fields := fieldsOf(dst.Type())
	at.over = d.readBase(pairs, fields, dst, at) || at.over
	d.eachKey(pairs, at, func(pair *ast.MappingValueNode, key string, below place) {
		f, known := fields[key]
		if !known {
			d.faults = append(d.faults, Fault{File: d.file, Line: position(pair.Key).Line, Column: position(pair.Key).Column,
				Path: below.path, Rule: unknownKey(key, fields)})
			return
		}
		below.secret = at.secret || f.secret
		d.value(pair.Value, dst.FieldByIndex(f.index), below)
	})
}

func (d *decoder) mapping(n ast.Node, dst reflect.Value, at place) {
	pairs, ok := pairs(n)
	if !ok {
		d.wrongShape(n, at, "needs keys below it")
		return
	}
	filled, given := reflect.MakeMapWithSize(dst.Type(), len(pairs)), reflect.MakeMapWithSize(dst.Type(), len(pairs))
	if at.over {
		for entry := dst.MapRange(); entry.Next(); {
			filled.SetMapIndex(entry.Key(), entry.Value())
		}
	}
	d.eachKey(pairs, at, func(pair *ast.MappingValueNode, _ string, below place) {
		key := newValue(dst.Type().Key())
		before := len(d.faults)
		d.value(pair.Key, key, below)
		value := newValue(dst.Type().Elem())
		if old := filled.MapIndex(key); at.over && old.IsValid() {
			value.Set(old)
		}
		d.value(pair.Value, value, below)
		if len(d.faults) == before && given.MapIndex(key).IsValid() {
			d.fault(pair.Key, below, "the key stands here twice, written in two ways")
			return
		}
		given.SetMapIndex(key, value)
		filled.SetMapIndex(key, value)
	})
	dst.Set(filled)
}

// eachKey calls visit for every key once; keys that are not plain text and keys given again are faults.
func (d *decoder) eachKey(pairs []*ast.MappingValueNode, at place, visit func(pair *ast.MappingValueNode, key string, below place)) {
	seen := make(map[string]int, len(pairs))
	for _, pair := range pairs {
		key, kind := scalar(pair.Key)
		if kind == notScalar || kind == nullScalar || key == "" {
			d.fault(pair.Key, at, "a key is plain text")
			continue
		}
		below := at.child(key)
		if first, again := seen[key]; again {
			d.faults = append(d.faults, Fault{File: d.file, Line: position(pair.Key).Line, Column: position(pair.Key).Column,
				Path: below.path, Rule: fmt.Sprintf("the key stands here twice; the first is in line %d", first)})
			continue
		}
		seen[key] = position(pair.Key).Line
		visit(pair, key, below)
	}
}

func (d *decoder) list(n ast.Node, dst reflect.Value, at place) {
	items, ok := n.(*ast.SequenceNode)
	if !ok {
		d.wrongShape(n, at, "needs a list, like [a, b] or lines that begin with a dash")
		return
	}
	filled := reflect.MakeSlice(dst.Type(), len(items.Values), len(items.Values))
	for i, item := range items.Values {
		value := newValue(dst.Type().Elem())
		d.value(item, value, at.child(strconv.Itoa(i)))
		filled.Index(i).Set(value)
	}
	dst.Set(filled)
}

// wrongShape is the fault of a node that is not what its key holds; one that is empty (only comments below it) counts as left out.
func (d *decoder) wrongShape(n ast.Node, at place, rule string) {
	if _, kind := scalar(n); kind == nullScalar {
		return
	}
	d.fault(n, at, rule)
}

// text reads a scalar through the type's UnmarshalText, whose error is the rule.
func (d *decoder) text(n ast.Node, dst reflect.Value, at place) {
	text, kind := scalar(n)
	if kind == nullScalar {
		d.fault(n, at, "needs a value; leave the key out for its default")
		return
	}
	if kind == notScalar {
		d.fault(n, at, "needs a single value")
		return
	}
	if dst.Type() == stdDuration {
		dst = dst.Addr().Convert(reflect.PointerTo(durationType)).Elem()
	}
	if err := dst.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
		d.fault(n, at, err.Error())
	}
}

// scalar reads text, whole numbers and yes-or-no values, each only from what was written as such.
func (d *decoder) scalar(n ast.Node, dst reflect.Value, at place) {
	text, kind := scalar(n)
	switch {
	case kind == notScalar:
		d.fault(n, at, "needs a single value")
		return
	case kind == nullScalar:
		d.fault(n, at, "needs a value; leave the key out for its default")
		return
	}
	switch dst.Kind() {
	case reflect.String:
		// Digits are taken as they are written: 000042 keeps its zeros.
		if kind == boolScalar {
			d.fault(n, at, "needs text; put it in quotation marks if it is meant")
			return
		}
		dst.SetString(text)
	case reflect.Bool:
		if kind != boolScalar || text != "true" && text != "false" {
			d.fault(n, at, "needs true or false")
			return
		}
		dst.SetBool(text == "true")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v, err := strconv.ParseInt(text, 10, dst.Type().Bits())
		if err != nil || kind == quotedScalar || padded(text) {
			d.fault(n, at, fmt.Sprintf("needs a whole number from %d to %d", -1<<(dst.Type().Bits()-1), 1<<(dst.Type().Bits()-1)-1))
			return
		}
		dst.SetInt(v)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v, err := strconv.ParseUint(text, 10, dst.Type().Bits())
		if err != nil || kind == quotedScalar || padded(text) {
			d.fault(n, at, fmt.Sprintf("needs a whole number from 0 to %d", uint64(1<<dst.Type().Bits()-1)))
			return
		}
		dst.SetUint(v)
	case reflect.Float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || kind != plainScalar {
			d.fault(n, at, "needs a number, like 0.5")
			return
		}
		dst.SetFloat(v)
	default:
		d.fault(n, at, fmt.Sprintf("cannot be configured: no way to read a %s", dst.Type()))
	}
}

// padded tells whether a number has zeros or a sign in front that some readers take for another base or drop.
func padded(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return len(text) > 1 && text[0] == '0' || strings.HasPrefix(text, "+")
}

type scalarKind int

const (
	notScalar    scalarKind = iota
	plainScalar             // text or a number, as written
	quotedScalar            // in quotation marks, or a block of lines
	boolScalar
	nullScalar
)

// scalar gives a single value's text as it was written, without quotation marks.
func scalar(n ast.Node) (string, scalarKind) {
	switch n := n.(type) {
	case nil:
		return "", nullScalar
	case *ast.NullNode:
		return "", nullScalar
	case *ast.BoolNode:
		return n.Token.Value, boolScalar
	case *ast.IntegerNode:
		return n.Token.Value, plainScalar
	case *ast.FloatNode:
		return n.Token.Value, plainScalar
	case *ast.InfinityNode:
		return n.Token.Value, plainScalar
	case *ast.NanNode:
		return n.Token.Value, plainScalar
	case *ast.LiteralNode:
		return n.Value.Value, quotedScalar
	case *ast.StringNode:
		if n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType {
			return n.Value, quotedScalar
		}
		return n.Value, plainScalar
	}
	return "", notScalar
}

// pairs gives the keys and values of a mapping.
func pairs(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// position is where a node begins; the zero position when it does not say. A mapping begins at its first key, not at the colon.
func position(n ast.Node) token.Position {
	if p, ok := pairs(n); ok && len(p) > 0 {
		if m, flow := n.(*ast.MappingNode); !flow || !m.IsFlowStyle {
			return position(p[0].Key)
		}
	}
	if n == nil || reflect.ValueOf(n).IsNil() {
		return token.Position{}
	}
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		return *tk.Position
	}
	return token.Position{}
}
