package configs

import (
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Locate fills File, Line and Column of faults that Validate methods added by path, in place, and gives them in order of lines.
// A list item is named by its index (links.0.address) or by its own name key (links.visa.address). Where the file does not have
// the key, which is what a missing one looks like, the nearest key above it is shown.
func (f Faults) Locate(file string, data []byte) Faults {
	root, _ := parse(file, data)
	for i := range f {
		if f[i].Line > 0 || f[i].File != "" && f[i].File != file { // the latter are of a file that this one names
			continue
		}
		f[i].File = file
		if root == nil || f[i].Path == "" {
			continue
		}
		p := position(find(root, strings.Split(f[i].Path, ".")))
		f[i].Line, f[i].Column = p.Line, p.Column
	}
	f.sort()
	return f
}

// find gives the node that the path names, or the last one on its way; for a key in a mapping the key itself, because its value
// may begin lines later.
func find(root ast.Node, path []string) ast.Node {
	at, found := root, root
	for len(path) > 0 {
		if p, ok := pairs(at); ok {
			pair, used := findKey(p, path)
			if pair == nil {
				return found
			}
			at, found, path = pair.Value, ast.Node(pair.Key), path[used:]
			if _, kind := scalar(at); kind != notScalar && kind != nullScalar {
				found = at
			}
			continue
		}
		items, ok := at.(*ast.SequenceNode)
		if !ok {
			return found
		}
		item := findItem(items.Values, path[0])
		if item == nil {
			return found
		}
		at, found, path = item, item, path[1:]
	}
	return found
}

// findKey finds the pair of the path's first key; a key may itself contain dots, so more than one part is tried.
func findKey(pairs []*ast.MappingValueNode, path []string) (pair *ast.MappingValueNode, used int) {
	for used = 1; used <= len(path); used++ {
		want := strings.Join(path[:used], ".")
		for _, pair := range pairs {
			if key, _ := scalar(pair.Key); key == want {
				return pair, used
			}
		}
	}
	return nil, 0
}

func findItem(items []ast.Node, part string) ast.Node {
	if i, err := strconv.Atoi(part); err == nil {
		if i < 0 || i >= len(items) {
			return nil
		}
		return items[i]
	}
	for _, item := range items {
		p, _ := pairs(item)
		if pair, _ := findKey(p, []string{"name"}); pair != nil {
			if name, _ := scalar(pair.Value); name == part {
				return item
			}
		}
	}
	return nil
}
