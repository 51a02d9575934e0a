package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/schemegate/schemegate/configs"
)

// checkConfigCommand names every fault of a configuration: file, line, key, value and rule. Keys are read as the daemon would
// read them, so that a missing one is found before the start.
type checkConfigCommand struct {
	File   string `arg:"" optional:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
	Config string `type:"existingfile" placeholder:"FILE" help:"The same, as the other commands name it."`
}

// Run prints one line a fault, or ok.
func (c *checkConfigCommand) Run(p process) error {
	file := c.File
	if file == "" {
		file = c.Config
	}
	if file == "" || c.File != "" && c.Config != "" {
		return errors.New("check configuration: one file is needed")
	}
	loaded, faults, data, err := readConfig(file)
	if err != nil {
		return err
	}
	for _, fault := range unreadable(loaded) {
		known := slices.ContainsFunc(faults, func(f configs.Fault) bool { return f.Path == fault.Path })
		if !known { // a secret without a place cannot be read either, and that has been said
			faults = append(faults, fault)
		}
	}
	if len(faults) == 0 {
		fmt.Fprintln(p.stdout, "ok")
		return nil
	}
	for _, fault := range faults.Locate(file, data) {
		fmt.Fprintln(p.stdout, fault)
	}
	return errFound
}

// unreadable names the secrets that cannot be read as they must be.
func unreadable(c config) configs.Faults {
	var faults configs.Faults
	c.Gateway.Vault.CheckKeys("vault", &faults)
	if !c.Database.Password.IsZero() {
		if _, err := c.Database.Password.Read(); err != nil {
			faults.Add("database.password", err.Error(), nil)
		}
	}
	return faults
}
