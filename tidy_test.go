// Package schemegate_test holds the project to its own rules: who may import
// whom, how long a function or a file may be, and where SQL lives.
package schemegate_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/schemegate/schemegate"

	maxFunctionLines = 70
	maxFileLines     = 500

	architectureFile = "ARCHITECTURE.md"
	decisionsFile    = "DECISIONS.md"
	// importsHeading is above the fenced block that lists, for each package, the
	// packages of this module it imports outside its tests, one package a line:
	//
	//	gateway/link: configs iso8583
	//	iso8583:
	importsHeading = "Imports"
)

// goFile is one parsed Go file that is not a test.
type goFile struct {
	name string // relative, with slashes
	fset *token.FileSet
	ast  *ast.File
}

func (f goFile) lines(n ast.Node) int {
	return f.fset.Position(n.End()).Line - f.fset.Position(n.Pos()).Line + 1
}

// projectFiles lists the regular files of this checkout that are its own.
func projectFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() && name != "." && (base == "bin" || base == "data" || strings.HasPrefix(base, ".") && base != ".ci") {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() {
			files = append(files, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func parseGo(t *testing.T) []goFile {
	t.Helper()
	var parsed []goFile
	for _, name := range projectFiles(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, goFile{name: name, fset: fset, ast: tree})
	}
	if len(parsed) == 0 {
		t.Fatal("found no Go files")
	}
	return parsed
}

func TestTidyImports(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(architectureFile)
	if err != nil {
		t.Fatalf("read the import table: %v", err)
	}
	allowed, err := parseImportTable(string(text))
	if err != nil {
		t.Fatalf("read the import table in %s: %v", architectureFile, err)
	}
	for _, fault := range compareImports(allowed, actualImports(t)) {
		t.Error(fault)
	}
}

// actualImports maps each package to the packages of this module it imports.
func actualImports(t *testing.T) map[string][]string {
	t.Helper()
	actual := map[string][]string{}
	for _, file := range parseGo(t) {
		pkg := path.Dir(file.name)
		list := actual[pkg]
		for _, spec := range file.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if own, ok := strings.CutPrefix(imported, module+"/"); ok && !slices.Contains(list, own) {
				list = append(list, own)
			}
		}
		slices.Sort(list)
		actual[pkg] = list
	}
	return actual
}

// parseImportTable reads the fenced block under the heading.
func parseImportTable(text string) (map[string][]string, error) {
	_, section, found := cutHeading(text, importsHeading)
	if !found {
		return nil, fmt.Errorf("there is no heading %q", importsHeading)
	}
	parts := strings.Split(section, "```")
	if len(parts) < 3 {
		return nil, fmt.Errorf("there is no fenced block under the heading %q", importsHeading)
	}
	_, block, _ := strings.Cut(parts[1], "\n") // past the fence's own line
	table := map[string][]string{}
	for line := range strings.Lines(block) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		pkg, list, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("line %q is not `package: imports`", line)
		}
		if _, twice := table[pkg]; twice {
			return nil, fmt.Errorf("package %s stands in it twice", pkg)
		}
		table[pkg] = strings.Fields(list)
	}
	return table, nil
}

// cutHeading splits a Markdown text around a heading of any level.
func cutHeading(text, heading string) (before, after string, found bool) {
	at := regexp.MustCompile(`(?m)^#+ ` + regexp.QuoteMeta(heading) + `\s*$`).FindStringIndex(text)
	if at == nil {
		return text, "", false
	}
	return text[:at[0]], text[at[1]:], true
}

func compareImports(allowed, actual map[string][]string) []string {
	var faults []string
	for _, pkg := range slices.Sorted(maps.Keys(actual)) {
		list, listed := allowed[pkg]
		if !listed {
			faults = append(faults, fmt.Sprintf("package %s is missing; its line would be %q", pkg, pkg+": "+strings.Join(actual[pkg], " ")))
			continue
		}
		for _, imported := range actual[pkg] {
			if !slices.Contains(list, imported) {
				faults = append(faults, fmt.Sprintf("package %s imports %s, which the table does not allow", pkg, imported))
			}
		}
		for _, imported := range list {
			if !slices.Contains(actual[pkg], imported) {
				faults = append(faults, fmt.Sprintf("stale: package %s does not import %s", pkg, imported))
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(allowed)) {
		if _, exists := actual[pkg]; !exists {
			faults = append(faults, fmt.Sprintf("stale: there is no package %s", pkg))
		}
	}
	return faults
}

func TestTidyImportTableIsCompared(t *testing.T) {
	t.Parallel()
	allowed, err := parseImportTable("# Map\ntext\n## Imports\nwords\n```text\na: b c\nb:\ngone:\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	got := compareImports(allowed, map[string][]string{"a": {"b", "d"}, "b": nil, "d": nil})
	want := []string{
		"package a imports d, which the table does not allow",
		"stale: package a does not import c",
		`package d is missing; its line would be "d: "`,
		"stale: there is no package gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults are %q, want %q", got, want)
	}
	for _, text := range []string{"# Map", "## Imports\nno block", "## Imports\n```\nno colon\n```", "## Imports\n```\na:\na:\n```"} {
		if _, err := parseImportTable(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

func TestTidyLengths(t *testing.T) {
	t.Parallel()
	for _, file := range parseGo(t) {
		if ast.IsGenerated(file.ast) {
			continue
		}
		if lines := file.fset.File(file.ast.Pos()).LineCount(); lines > maxFileLines {
			t.Errorf("%s has %d lines, more than %d", file.name, lines, maxFileLines)
		}
		for _, decl := range file.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && file.lines(fn) > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, more than %d", file.name, fn.Name.Name, file.lines(fn), maxFunctionLines)
			}
		}
	}
}

func TestTidyPackageComments(t *testing.T) {
	t.Parallel()
	commented := map[string]bool{}
	for _, file := range parseGo(t) {
		pkg := path.Dir(file.name)
		commented[pkg] = commented[pkg] || file.ast.Doc != nil
	}
	for _, pkg := range slices.Sorted(maps.Keys(commented)) {
		if !commented[pkg] {
			t.Errorf("package %s has no comment that says what it promises", pkg)
		}
	}
}

// sqlStart is how a statement begins; our SQL keywords are upper case.
var sqlStart = regexp.MustCompile(`^\s*(SELECT|INSERT INTO|UPDATE \w+|DELETE FROM|WITH \w+|CREATE|ALTER|DROP|TRUNCATE|GRANT)\s`)

func TestTidySQLLivesInStores(t *testing.T) {
	t.Parallel()
	for _, file := range parseGo(t) {
		if strings.HasPrefix(path.Base(file.name), "store") || path.Dir(file.name) == "migrations" {
			continue
		}
		ast.Inspect(file.ast, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(literal.Value); err == nil && sqlStart.MatchString(text) {
				t.Errorf("%s: SQL outside store*.go and migrations/", file.fset.Position(literal.Pos()))
			}
			return true
		})
	}
}

// machinePath is a path that exists on one machine only.
var machinePath = regexp.MustCompile(`/(home|Users|root|work)/[A-Za-z0-9_.-]+`)

func TestTidyNoPathsOfOneMachine(t *testing.T) {
	t.Parallel()
	for _, name := range projectFiles(t) {
		if name == "go.sum" || name == "LICENSE" || strings.Contains(name, "testdata/fuzz/") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := machinePath.Find(text); found != nil {
			t.Errorf("%s names %s", name, found)
		}
	}
}

func TestTidyEveryDependencyHasItsReason(t *testing.T) {
	t.Parallel()
	decisions, err := os.ReadFile(decisionsFile)
	if err != nil {
		t.Fatalf("read why each dependency is there: %v", err)
	}
	modules, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	direct := 0
	for line := range strings.Lines(string(modules)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require"))
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") || strings.Contains(line, "// indirect") {
			continue
		}
		direct++
		if !strings.Contains(string(decisions), strings.TrimPrefix(fields[0], "github.com/")) {
			t.Errorf("%s has no line about %s", decisionsFile, fields[0])
		}
	}
	if direct == 0 {
		t.Error("found no dependency in go.mod")
	}
}
