package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
)

const forgetHelp = `Drops an attachment from the journal without a replay. It first says what that
may leave behind on the node: the plugins that get no DEL, the addresses that
stay reserved and the host ports that stay forwarded. CONTAINER is a container's
ID or its beginning.

On a terminal it asks; elsewhere it needs --yes. An attachment that is being
added, deleted or replayed just now is refused.`

func newForget(n *node) *cobra.Command {
	var sel selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget CONTAINER",
		Short: "Drops an attachment without a replay",
		Long:  forgetHelp,
		Example: `  durable-argsctl forget 5b6e0c
  durable-argsctl forget 5b6e0c --network web --ifname eth0 --yes`,
		Args:              exactArgs("CONTAINER"),
		ValidArgsFunction: n.completeContainer,
		RunE: func(cmd *cobra.Command, args []string) error {
			return forget(cmd, n, sel, args[0], yes)
		},
	}
	sel.flags(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func forget(cmd *cobra.Command, n *node, sel selection, container string, yes bool) error {
	store, err := n.openJournal(cmd)
	if err != nil || store == nil {
		return err
	}
	defer store.Close()
	key, err := sel.findOne(cmd, store, container)
	if err != nil {
		return err
	}
	rec, err := store.Read(key)
	if err != nil {
		return fmt.Errorf("%s is not dropped, since nobody can say what that would leave behind: %w", key, err)
	}
	cmd.PrintErr(leftBehind(rec, time.Now()))
	if !yes {
		in, ok := terminal(cmd.InOrStdin())
		if !ok {
			return usage("this is no terminal, so nobody can be asked; to drop %s, add --yes", key)
		}
		cmd.PrintErrf("Drop %s? [y/N] ", key)
		answer, _ := bufio.NewReader(in).ReadString('\n')
		if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))) {
			return fmt.Errorf("%s stays in the journal", key)
		}
	}
	f, err := store.TryLock(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // deleted meanwhile
	case errors.Is(err, journal.ErrLocked):
		return fmt.Errorf("%s is in use: it is being added, deleted or replayed just now; try again when that is over", key)
	case err != nil:
		return err
	}
	defer f.Close()
	if now, then := f.Record().Newest(), rec.Newest(); now != nil && (then == nil || !now.Time.Equal(then.Time)) {
		return fmt.Errorf("%s stays in the journal: it has been added again just now", key)
	}
	return f.Remove()
}

// leftBehind says what rec's attachment has on the node.
func leftBehind(rec journal.Record, now time.Time) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s would be dropped without a DEL.\n", rec.Key)
	list := func(what string, names []string) {
		var once []string
		for _, name := range names {
			if name != "" && !slices.Contains(once, name) {
				once = append(once, name)
			}
		}
		if len(once) > 0 {
			fmt.Fprintf(&text, "  %-26s%s\n", what, printable(strings.Join(once, ", ")))
		}
	}
	var plugins, addresses, ports []string
	for _, add := range rec.Adds {
		for _, config := range add.Chain {
			plugins = append(plugins, pluginName(config))
		}
		for _, address := range replay.Addresses(add.Result) {
			addresses = append(addresses, address.String())
		}
		ports = append(ports, hostPorts(add.RuntimeConfig)...)
	}
	if add := rec.Newest(); add != nil {
		namespace, name := pod(add.Args)
		list("pod:", []string{strings.Trim(namespace+"/"+name, "/")})
		list("added:", []string{age(add.Time, now) + " ago"})
		list("network namespace:", []string{strings.ReplaceAll(netnsOf(rec), "-", " ")})
	}
	if rec.Unknown > 0 || len(rec.Damaged) > 0 {
		list("cannot be read:", []string{fmt.Sprintf("%d entries, which may hold more than what follows", rec.Unknown+len(rec.Damaged))})
	}
	list("plugins without a DEL:", plugins)
	list("addresses that may stay:", addresses)
	list("host ports that may stay:", ports)
	return text.String()
}

// hostPorts are the ports of the node that capability args ask for.
func hostPorts(runtimeConfig json.RawMessage) []string {
	var config struct {
		PortMappings []struct {
			HostPort int    `json:"hostPort"`
			Protocol string `json:"protocol"`
			HostIP   string `json:"hostIP"`
		} `json:"portMappings"`
	}
	if json.Unmarshal(runtimeConfig, &config) != nil {
		return nil
	}
	var ports []string
	for _, m := range config.PortMappings {
		port := fmt.Sprintf("%d/%s", m.HostPort, m.Protocol)
		if m.HostIP != "" {
			port = m.HostIP + ":" + port
		}
		ports = append(ports, port)
	}
	return ports
}
