package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newRemove() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "remove CONFLIST",
		Short: "Take the durable-args stanzas out of a conflist",
		Long: `Take the durable-args stanzas out of a conflist.

That undoes insert exactly. What is journaled stays, but from now on no DEL is
compared with it: what the DEL of a running pod has lost is lost. Better remove
the stanzas when no pod runs ("durable-argsctl list").`,
		Example: `  durable-argsctl remove --dry-run /etc/cni/net.d/10-pods.conflist
  durable-argsctl remove /etc/cni/net.d/10-pods.conflist`,
		Args: exactArgs("CONFLIST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			e := conflistEdit{cmd: cmd, path: args[0], dryRun: dryRun}
			return e.run(e.remove)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be changed, as a diff, and change nothing")
	return cmd
}

func (e conflistEdit) remove(c *conflistText) (edits []edit, done string, err error) {
	edits, err = c.removal()
	if err != nil || len(edits) == 0 {
		return nil, "it has no durable-args stanza, nothing to do", err
	}
	after, err := c.edited(edits)
	if err == nil && len(after.ours()) > 0 {
		err = errors.New("a durable-args stanza would be left; take it out by hand")
	}
	return edits, "the stanzas are taken out", err
}
