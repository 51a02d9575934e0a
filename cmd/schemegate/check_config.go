package main

import "fmt"

// checkConfigCommand names every fault of a configuration: file, line, key, value and rule. Keys are read as the daemon would
// read them, so that a missing one is found before the start.
type checkConfigCommand struct {
	Config string `arg:"" type:"existingfile" placeholder:"FILE" help:"The configuration."`
}

// Run prints one line a fault, or ok.
func (c *checkConfigCommand) Run(p process) error {
	loaded, faults, data, err := readConfig(c.Config)
	if err != nil {
		return err
	}
	loaded.Gateway.Vault.CheckKeys("vault", &faults)
	if !loaded.Database.Password.IsZero() {
		if _, err := loaded.Database.Password.Read(); err != nil {
			faults.Add("database.password", err.Error(), nil)
		}
	}
	if len(faults) == 0 {
		fmt.Fprintln(p.stdout, "ok")
		return nil
	}
	for _, fault := range faults.Locate(c.Config, data) {
		fmt.Fprintln(p.stdout, fault)
	}
	return errFound
}
