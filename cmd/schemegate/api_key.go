package main

import (
	"fmt"

	"github.com/schemegate/schemegate/gateway/api"
)

// apiKeyCommand makes bearer keys.
type apiKeyCommand struct {
	New apiKeyNewCommand `cmd:"" help:"Make a key, show it once, and print its entry for the configuration."`
}

type apiKeyNewCommand struct {
	Tenant   string `required:"" placeholder:"T" help:"Whose key it is."`
	Name     string `required:"" placeholder:"N" help:"What the key is for, such as core-banking."`
	Operator bool   `help:"Let it decide about links: hold, resume, sign on and off."`
}

// Run prints the key, and its hash as the configuration takes it.
func (k *apiKeyNewCommand) Run(p process) error {
	key, entry, err := api.NewKey(k.Tenant, k.Name)
	if err != nil {
		return err
	}
	right := ""
	if k.Operator {
		right = ", operator: true"
	}
	fmt.Fprintf(p.stdout, "Give this to the client; it is not shown again:\n\n  %s\n\nPut this under api.keys:\n\n    - {tenant: %s, name: %s, sha256: %s%s}\n",
		key, entry.Tenant, entry.Name, entry.SHA256, right)
	return nil
}
