package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

const showHelp = `Shows everything that is journaled for a container's attachments: what the
runtime gave on ADD, the network namespace and its state, the chain, the final
result, and the replays that have failed, in the plugins' own words. CONTAINER
is a container's ID or its beginning.

With -o json: an array with an object for each attachment, whose fields are

  network, containerID, ifName    strings
  file                            name of the journal file
  adds                            the ADDs that are owed, oldest first
  attempts                        the replays that have failed since the last ADD:
                                  objects with time, plugin, error
  damagedLines                    array of line numbers
  unknownEntries                  how many entries are of a newer version

and those of an object in adds

  time                            when it was journaled (RFC 3339)
  layout                          "first" or "wrapped"
  args                            CNI_ARGS
  argsBase64                      the same, only if args is not UTF-8
  runtimeConfig                   the capability args, or null
  cniVersion, path                strings; path is CNI_PATH
  netns                           object with path, device, inode, bootID, cookie
                                  and state, which is as in list
  conflist                        the configuration file as found
  chain                           array of the plugins' configurations
  result                          the final result, or null

Fields may be added to it, but none is taken away or changes its meaning.`

func newShow(n *node) *cobra.Command {
	var format output
	var sel selection
	cmd := &cobra.Command{
		Use:   "show CONTAINER",
		Short: "Shows everything that is journaled for a container",
		Long:  showHelp,
		Example: `  durable-argsctl show 5b6e0c
  durable-argsctl show 5b6e0c --ifname eth0 -o json | jq '.[].adds[].result'`,
		Args:              exactArgs("CONTAINER"),
		ValidArgsFunction: n.completeContainer,
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, n, sel, args[0], format)
		},
	}
	sel.flags(cmd)
	addOutput(cmd, &format)
	return cmd
}

func show(cmd *cobra.Command, n *node, sel selection, container string, format output) error {
	store, err := n.openJournal(cmd)
	if err != nil {
		return err
	}
	found := []shown{}
	var failed bool
	if store != nil {
		defer store.Close()
		keys, err := sel.find(cmd, store, container)
		if err != nil {
			return err
		}
		for _, key := range keys {
			rec, err := store.Read(key)
			if err != nil {
				say(cmd, "reading %s: %v", key, err)
				failed = true
				continue
			}
			found = append(found, newShown(filepath.Join(n.dataDir, key.String()), rec))
		}
	}
	if format == jsonOutput {
		err = writeJSON(cmd.OutOrStdout(), found)
	} else {
		var text bytes.Buffer
		for i, s := range found {
			if i > 0 {
				text.WriteString("\n")
			}
			s.print(&text, time.Now())
		}
		_, err = text.WriteTo(cmd.OutOrStdout())
	}
	if err == nil && failed {
		return errFinding
	}
	return err
}

// shown is an attachment as show shows it.
type shown struct {
	Network        string         `json:"network"`
	ContainerID    string         `json:"containerID"`
	IfName         string         `json:"ifName"`
	File           string         `json:"file"`
	Adds           []shownAdd     `json:"adds"`
	Attempts       []shownAttempt `json:"attempts"`
	DamagedLines   []int          `json:"damagedLines"`
	UnknownEntries int            `json:"unknownEntries"`
}

type shownAdd struct {
	Time          time.Time         `json:"time"`
	Layout        string            `json:"layout"`
	Args          string            `json:"args"`
	ArgsBase64    []byte            `json:"argsBase64,omitempty"`
	RuntimeConfig json.RawMessage   `json:"runtimeConfig"`
	CNIVersion    string            `json:"cniVersion"`
	Path          string            `json:"path"`
	NetNS         shownNetNS        `json:"netns"`
	Conflist      string            `json:"conflist"`
	Chain         []json.RawMessage `json:"chain"`
	Result        json.RawMessage   `json:"result"`
}

type shownNetNS struct {
	journal.NetNS
	State string `json:"state"`
}

type shownAttempt struct {
	Time   time.Time `json:"time"`
	Plugin string    `json:"plugin"`
	Error  string    `json:"error"`
}

func newShown(file string, rec journal.Record) shown {
	s := shown{
		Network:        rec.Key.Network,
		ContainerID:    rec.Key.ContainerID,
		IfName:         rec.Key.IfName,
		File:           file,
		Adds:           []shownAdd{},
		Attempts:       []shownAttempt{},
		DamagedLines:   append([]int{}, rec.Damaged...),
		UnknownEntries: rec.Unknown,
	}
	for _, add := range rec.Adds {
		a := shownAdd{
			Time:          add.Time,
			Layout:        add.Layout,
			Args:          string(add.Args),
			RuntimeConfig: add.RuntimeConfig,
			CNIVersion:    add.CNIVersion,
			Path:          add.Path,
			NetNS:         shownNetNS{add.NetNS, netnsState(add.NetNS)},
			Conflist:      string(add.Conflist),
			Chain:         append([]json.RawMessage{}, add.Chain...),
			Result:        add.Result,
		}
		if !utf8.Valid(add.Args) {
			a.ArgsBase64 = add.Args
		}
		s.Adds = append(s.Adds, a)
	}
	for _, attempt := range rec.Attempts {
		s.Attempts = append(s.Attempts, shownAttempt{attempt.Time, attempt.Plugin, attempt.Error})
	}
	return s
}

func (s shown) print(w io.Writer, now time.Time) {
	field := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-15s "+format+"\n", append([]any{name}, args...)...)
	}
	field("Attachment:", "%s/%s@%s", s.Network, s.ContainerID, s.IfName)
	field("File:", "%s", s.File)
	if len(s.DamagedLines) > 0 {
		field("Damaged lines:", "%v", s.DamagedLines)
	}
	if s.UnknownEntries > 0 {
		field("Newer entries:", "%d of a version that this one does not know", s.UnknownEntries)
	}
	if len(s.Adds) == 0 {
		field("Owed:", "nothing that can be read")
	}
	for i, a := range s.Adds {
		field(fmt.Sprintf("ADD %d of %d:", i+1, len(s.Adds)), "%s (%s ago)", a.Time.Local().Format(time.RFC3339), age(a.Time, now))
		field("  Layout:", "%s", a.Layout)
		field("  CNI version:", "%s", a.CNIVersion)
		field("  CNI_PATH:", "%s", printable(a.Path))
		for j, pair := range strings.Split(a.Args, ";") {
			name := ""
			if j == 0 {
				name = "  CNI_ARGS:"
			}
			field(name, "%s", printable(pair))
		}
		field("  Netns:", "%s, %s", printable(a.NetNS.Path), strings.ReplaceAll(a.NetNS.State, "-", " "))
		field("", "device %d, inode %d, cookie %d", a.NetNS.Device, a.NetNS.Inode, a.NetNS.Cookie)
		field("", "boot %s", a.NetNS.BootID)
		fmt.Fprintf(w, "  Capability args:\n%s", indented(a.RuntimeConfig))
		fmt.Fprintf(w, "  Chain, in ADD order:\n")
		for _, config := range a.Chain {
			fmt.Fprintf(w, "    %s\n%s", pluginName(config), indented(config))
		}
		fmt.Fprintf(w, "  Result:\n%s", indented(a.Result))
	}
	for i, attempt := range s.Attempts {
		field(fmt.Sprintf("Failed replay %d:", i+1), "%s (%s ago), plugin %s", attempt.Time.Local().Format(time.RFC3339), age(attempt.Time, now), printable(attempt.Plugin))
		for line := range strings.Lines(attempt.Error) {
			fmt.Fprintf(w, "    %s\n", printable(strings.TrimSuffix(line, "\n")))
		}
	}
}

func pluginName(config json.RawMessage) string {
	p, err := chain.Parse(config)
	if err != nil {
		return "cannot be read: " + printable(err.Error())
	}
	return p.Type
}

// indented is raw as lines of a text. Strings in JSON have no control
// characters, so that it may be shown as it is.
func indented(raw json.RawMessage) string {
	const margin = "      "
	if len(raw) == 0 {
		return margin + "none\n"
	}
	var buf bytes.Buffer
	if err := json.Indent(&buf, raw, margin, "  "); err != nil {
		return margin + printable(string(raw)) + "\n"
	}
	return margin + buf.String() + "\n"
}
