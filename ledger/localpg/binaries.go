package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// minMajor is the oldest PostgreSQL whose features and defaults we rely on.
	minMajor = 15
	// InstallCommand installs the server binaries on Debian and Ubuntu.
	InstallCommand = "apt-get install -y postgresql"
)

// ErrNoBinaries is in the chain of the error that Start returns when no usable
// PostgreSQL is installed.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries found")

// binaries are the programs of one installed PostgreSQL.
type binaries struct {
	postgres, initdb string
	version          string // "15.18"
	major            int
}

// search says where installed binaries may be.
type search struct {
	pgConfig string   // a program that prints its bindir; empty: not asked
	globs    []string // bin directories, one per major version
	path     []string // the directories of PATH
}

func systemSearch() search {
	where := search{
		globs: []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"},
		path:  filepath.SplitList(os.Getenv("PATH")),
	}
	if found, err := exec.LookPath("pg_config"); err == nil {
		where.pgConfig = found
	}
	return where
}

// find returns the first usable binaries: those of binDir and no others when it
// is given, else by pg_config, the newest of the distribution's, or on the PATH.
// An existing cluster needs binaries of its own major version, so clusterMajor
// (0: no cluster) narrows the choice.
func (w search) find(ctx context.Context, binDir string, clusterMajor int, o owner) (binaries, error) {
	dirs := []string{binDir}
	if binDir == "" {
		dirs = w.dirs(ctx, o)
	}
	var refused []string
	for _, dir := range dirs {
		bin, err := inspect(ctx, dir, o)
		switch {
		case errors.Is(err, os.ErrNotExist) && binDir == "":
		case err != nil:
			refused = append(refused, fmt.Sprintf("%s: %v", dir, err))
		case bin.major < minMajor:
			refused = append(refused, fmt.Sprintf("%s: PostgreSQL %s is too old", dir, bin.version))
		case clusterMajor != 0 && bin.major != clusterMajor:
			refused = append(refused, fmt.Sprintf("%s: PostgreSQL %s cannot open a cluster of version %d", dir, bin.version, clusterMajor))
		default:
			return bin, nil
		}
	}
	if ctx.Err() != nil { // a look that was cut short proves nothing about what is installed
		return binaries{}, fmt.Errorf("find PostgreSQL server binaries: %w", ctx.Err())
	}
	needs := fmt.Sprintf("PostgreSQL %d or newer", minMajor)
	install := InstallCommand
	if clusterMajor != 0 {
		needs = fmt.Sprintf("PostgreSQL %d, which made the cluster", clusterMajor)
		install = fmt.Sprintf("%s-%d", InstallCommand, clusterMajor)
	}
	because := ""
	if len(refused) > 0 {
		because = " (" + strings.Join(refused, "; ") + ")"
	}
	return binaries{}, fmt.Errorf("%w%s: %s is needed; on Debian or Ubuntu install it with `%s`, else set bin_dir to the directory of postgres and initdb, or give a database URL",
		ErrNoBinaries, because, needs, install)
}

// dirs lists where binaries may be, best first, each once.
func (w search) dirs(ctx context.Context, o owner) []string {
	var dirs []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if w.pgConfig != "" {
		// A pg_config that fails only means that it cannot help.
		if out, err := o.command(ctx, "/", w.pgConfig, "--bindir").Output(); err == nil {
			add(strings.TrimSpace(string(out)))
		}
	}
	for _, glob := range w.globs {
		found, err := filepath.Glob(glob)
		if err != nil {
			continue // only a malformed pattern, of which there is none
		}
		slices.SortFunc(found, func(a, b string) int { return lastNumber(b) - lastNumber(a) })
		for _, dir := range found {
			add(dir)
		}
	}
	for _, dir := range w.path {
		add(dir)
	}
	return dirs
}

var digits = regexp.MustCompile(`[0-9]+`)

// lastNumber of a bin directory is its version.
func lastNumber(dir string) int {
	found := digits.FindAllString(dir, -1)
	if len(found) == 0 {
		return 0
	}
	n, err := strconv.Atoi(found[len(found)-1])
	if err != nil {
		return 0
	}
	return n
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (([0-9]+)[0-9a-z.]*)`)

// inspect reads the version of the binaries in dir. os.ErrNotExist: there are
// none.
func inspect(ctx context.Context, dir string, o owner) (binaries, error) {
	bin := binaries{postgres: filepath.Join(dir, "postgres"), initdb: filepath.Join(dir, "initdb")}
	for _, program := range []string{bin.postgres, bin.initdb} {
		if _, err := os.Stat(program); err != nil {
			return binaries{}, err
		}
	}
	out, err := o.command(ctx, "/", bin.postgres, "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("ask for version: %w", err)
	}
	match := versionLine.FindStringSubmatch(string(out))
	if match == nil {
		return binaries{}, errors.New("postgres --version prints no version of PostgreSQL")
	}
	bin.version = match[1]
	if bin.major, err = strconv.Atoi(match[2]); err != nil {
		return binaries{}, fmt.Errorf("read major version: %w", err)
	}
	return bin, nil
}

// clusterMajor is the major version that made the cluster, 0 when there is none.
func clusterMajor(data string) (int, error) {
	file := filepath.Join(data, "PG_VERSION")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read cluster version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read cluster version in %s: %w", file, err)
	}
	return major, nil
}
