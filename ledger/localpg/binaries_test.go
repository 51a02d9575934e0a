package localpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// install makes a directory with programs that only know their version.
func install(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s (Debian %s-1)'\n", version, version)
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testOwner(t *testing.T) owner {
	t.Helper()
	o, err := clusterOwner(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestFind(t *testing.T) {
	t.Parallel()
	lib := newDir(t)
	for _, version := range []string{"9.6", "13.4", "15.18", "17.2"} {
		major, _, _ := strings.Cut(version, ".")
		install(t, filepath.Join(lib, major, "bin"), version)
	}
	onPath := install(t, filepath.Join(newDir(t), "bin"), "16.3")
	pgConfig := filepath.Join(newDir(t), "pg_config")
	if err := os.WriteFile(pgConfig, []byte("#!/bin/sh\necho "+onPath+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	globs := []string{filepath.Join(lib, "*", "bin")}
	tests := map[string]struct {
		where        search
		binDir       string
		clusterMajor int
		want         string
	}{
		"newest of the distribution": {where: search{globs: globs, path: []string{onPath}}, want: "17.2"},
		"pg_config before it":        {where: search{pgConfig: pgConfig, globs: globs}, want: "16.3"},
		"a broken pg_config":         {where: search{pgConfig: "/bin/false", globs: globs}, want: "17.2"},
		"PATH at last":               {where: search{path: []string{"/nowhere", onPath}}, want: "16.3"},
		"configured":                 {where: search{globs: globs}, binDir: onPath, want: "16.3"},
		"the cluster's own version":  {where: search{pgConfig: pgConfig, globs: globs}, clusterMajor: 15, want: "15.18"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin, err := test.where.find(t.Context(), test.binDir, test.clusterMajor, testOwner(t))
			if err != nil {
				t.Fatal(err)
			}
			if bin.version != test.want {
				t.Errorf("found version %s in %s, want %s", bin.version, filepath.Dir(bin.postgres), test.want)
			}
		})
	}
}

func TestFindErrors(t *testing.T) {
	t.Parallel()
	old := install(t, filepath.Join(newDir(t), "bin"), "13.4")
	empty := newDir(t)
	fresh := install(t, filepath.Join(newDir(t), "bin"), "17.2")
	tests := map[string]struct {
		where        search
		binDir       string
		clusterMajor int
		want         []string
	}{
		"none":          {want: []string{"PostgreSQL 15 or newer", InstallCommand, "bin_dir", "database URL"}},
		"too old":       {where: search{path: []string{old}}, want: []string{old, "PostgreSQL 13.4 is too old", InstallCommand}},
		"configured":    {binDir: empty, where: search{path: []string{fresh}}, want: []string{empty, "no such file"}},
		"other cluster": {where: search{path: []string{fresh}}, clusterMajor: 16, want: []string{fresh, "cannot open a cluster of version 16", InstallCommand + "-16"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := test.where.find(t.Context(), test.binDir, test.clusterMajor, testOwner(t))
			if !errors.Is(err, ErrNoBinaries) {
				t.Fatalf("error is %v", err)
			}
			for _, word := range test.want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error does not say %q: %v", word, err)
				}
			}
		})
	}
}

func TestStartWithoutBinaries(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "data")
	_, err := start(t.Context(), Config{DataDir: dir}, search{}, limits{}, zap.NewNop())
	if !errors.Is(err, ErrNoBinaries) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory was made all the same: %v", err)
	}
}
