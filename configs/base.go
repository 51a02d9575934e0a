package configs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/goccy/go-yaml/ast"
)

// Checker is what the type of a struct with a base file can implement to have that file's meanings checked by themselves, so that their
// faults name the file's own lines. The error is one as AddError takes it.
type Checker interface{ Check() error }

// readBase reads the file that the struct's base key names into dst, before the other keys are laid over it. It tells whether it did;
// after a fault dst is as it was.
func (d *decoder) readBase(pairs []*ast.MappingValueNode, fields map[string]field, dst reflect.Value, at place) bool {
	for _, pair := range pairs {
		key, _ := scalar(pair.Key)
		if !fields[key].base {
			continue
		}
		name, kind := scalar(pair.Value)
		if kind != plainScalar && kind != quotedScalar || name == "" {
			return false // no file, or no text, and then the key itself is a fault
		}
		below := at.child(key)
		if d.base {
			d.fault(pair.Value, below, "a file that another one names does not name a third")
			return false
		}
		return d.readBaseFile(pair.Value, name, dst, below)
	}
	return false
}

func (d *decoder) readBaseFile(n ast.Node, name string, dst reflect.Value, at place) bool {
	file := name
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(d.file), file)
	}
	data, err := readBounded(file)
	if err != nil {
		d.fault(n, at, err.Error())
		return false
	}
	base := reflect.New(dst.Type())
	base.Elem().Set(dst)
	root, faults := parse(file, data)
	inner := &decoder{file: file, base: true, faults: faults}
	if root != nil {
		inner.value(root, base.Elem(), place{secret: at.secret})
	}
	if checker, ok := base.Interface().(Checker); ok && len(faults) == 0 {
		inner.faults.AddError("", checker.Check())
		inner.faults.Locate(file, data)
	}
	if len(inner.faults) > 0 {
		d.faults = append(d.faults, inner.faults...)
		return false
	}
	dst.Set(base.Elem())
	return true
}

// readBounded reads an ordinary file of at most the size that a configuration may have. Its errors are rules, for a fault.
func readBounded(name string) ([]byte, error) {
	// Looked at before it is opened: opening a pipe would wait for its writer for ever.
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is no such file")
	case err != nil:
		return nil, errors.New("the file cannot be looked at")
	case !info.Mode().IsRegular():
		return nil, errors.New("needs an ordinary file")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, errors.New("the file cannot be opened")
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	return data, nil
}
