package main

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// versionCommand shows which program this is.
type versionCommand struct{}

// Run prints version, revision and the Go release it was built with.
func (versionCommand) Run(p process) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("read build information: this program has none")
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	fmt.Fprintf(p.stdout, "schemegate %s", info.Main.Version)
	if revision := settings["vcs.revision"]; revision != "" {
		fmt.Fprintf(p.stdout, " %s", revision)
	}
	if settings["vcs.modified"] == "true" {
		fmt.Fprint(p.stdout, " (changed)")
	}
	fmt.Fprintf(p.stdout, " %s\n", info.GoVersion)
	return nil
}
