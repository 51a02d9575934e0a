package configs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dialect has a base file, and a rule over its values that only Check knows.
type dialect struct {
	File     string                 `yaml:"file" base:"true"`
	Bitmap   string                 `yaml:"bitmap"`
	Types    []string               `yaml:"types"`
	Elements map[element]properties `yaml:"elements"`
	Codes    map[string]string      `yaml:"codes"`
}

type properties struct {
	Format string `yaml:"format"`
	Length int    `yaml:"length"`
}

func (d dialect) Check() error {
	var faults []error
	for code := range d.Codes {
		if len(code) != 2 {
			faults = append(faults, errors.New("codes."+code+": a code has 2 digits"))
		}
	}
	return errors.Join(faults...)
}

type profiles struct {
	Links map[string]struct {
		Spec dialect `yaml:"spec"`
	} `yaml:"links"`
}

// loadBeside loads text as a file that lies beside one named scheme.yaml.
func loadBeside(t *testing.T, scheme, text string) (c profiles, faults string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "dialects"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dialects", "scheme.yaml"), []byte(scheme), 0o600); err != nil {
		t.Fatal(err)
	}
	faults = Load(filepath.Join(dir, "main.yaml"), []byte(text), &c).Error()
	return c, strings.ReplaceAll(faults, dir+string(filepath.Separator), "")
}

const scheme = `
bitmap: hex
types: [a, b]
elements:
  7: {format: n, length: 10}
codes: {"00": yes, "05": no}
`

func TestBaseFileIsLaidUnderTheOtherKeys(t *testing.T) {
	t.Parallel()
	got, faults := loadBeside(t, scheme, `
links:
  one: {spec: {file: dialects/scheme.yaml}}
  two:
    spec:
      types: [c]
      elements: {7: {length: 12}, 41: {format: ans}}
      codes: {"05": maybe}
      file: dialects/scheme.yaml   # last, and read first all the same
  none: {spec: {file: "", bitmap: binary}}
`)
	if faults != "" {
		t.Fatal(faults)
	}
	// The element type of these tests reads 7 and 41 as the lengths of their digits.
	for name, want := range map[string]dialect{
		"one":  {"dialects/scheme.yaml", "hex", []string{"a", "b"}, map[element]properties{1: {"n", 10}}, map[string]string{"00": "yes", "05": "no"}},
		"two":  {"dialects/scheme.yaml", "hex", []string{"c"}, map[element]properties{1: {"n", 12}, 2: {"ans", 0}}, map[string]string{"00": "yes", "05": "maybe"}},
		"none": {Bitmap: "binary"},
	} {
		if diff := cmp.Diff(want, got.Links[name].Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBaseFileFaultsNameItsOwnLines(t *testing.T) {
	t.Parallel()
	const main = "links:\n  one:\n    spec:\n      file: dialects/scheme.yaml\n      bitmap: hex\n"
	for scheme, want := range map[string]string{
		"bitmap: hex\ncolour: red\n":            "dialects/scheme.yaml:2: colour: unknown key",
		"codes:\n  \"5\": no\n":                 "dialects/scheme.yaml:2: codes.5: a code has 2 digits",
		"bitmap: hex\nfile: another.yaml\n":     `dialects/scheme.yaml:2: file: "another.yaml": a file that another one names does not name a third`,
		"elements:\n  7: {length: ten}\n":       `dialects/scheme.yaml:2: elements.7.length: "ten": needs a whole number`,
		"bitmap: [\n":                           "dialects/scheme.yaml",
		strings.Repeat("# long\n", 256<<10/6+1): "dialects/scheme.yaml: a configuration file has at most",
	} {
		if _, faults := loadBeside(t, scheme, main); !strings.HasPrefix(faults, want) || strings.Contains(faults, "\n") {
			t.Errorf("%.40q: %s, want %s", scheme, faults, want)
		}
	}
	for name, want := range map[string]string{
		"missing.yaml": `main.yaml:4: links.one.spec.file: "missing.yaml": there is no such file`,
		"dialects":     `main.yaml:4: links.one.spec.file: "dialects": needs an ordinary file`,
		"true":         "main.yaml:4: links.one.spec.file: ",
	} {
		if _, faults := loadBeside(t, scheme, strings.Replace(main, "dialects/scheme.yaml", name, 1)); !strings.HasPrefix(faults, want) || strings.Contains(faults, "\n") {
			t.Errorf("%s: %s, want %s", name, faults, want)
		}
	}
}

func TestLocateLeavesTheFaultsOfAnotherFile(t *testing.T) {
	t.Parallel()
	faults := Faults{{File: "base.yaml", Rule: "cannot be read"}, {File: "base.yaml", Line: 7, Path: "a", Rule: "wrong"}}
	faults.Add("b", "is missing", nil)
	want := "base.yaml: cannot be read\nbase.yaml:7: a: wrong\nmain.yaml:2: b: is missing"
	if got := faults.Locate("main.yaml", []byte("a: 1\nb: 2\n")).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
