package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

const listHelp = `Shows one row for each attachment in the journal.

NETNS is "alive", "gone", or "before boot" if it was made before the last one.
RESULT says whether the final result is journaled, too. DEBT is how many replays
have failed since ADD and which plugin failed last; beside it stands whether
lines of the file are damaged, entries are of a newer version, nothing is owed
any more (settled), or the file cannot be read.

With -o json: an array with an object for each attachment, whose fields are

  network, containerID, ifName    strings
  podNamespace, podName           strings from CNI_ARGS, empty if not there
  added                           time of the newest ADD (RFC 3339), or null
  netns                           "alive", "gone", "before-boot", "unknown"
  layout                          "first", "wrapped", or empty
  result                          whether the final result is journaled
  debt                            null, or {"attempts": 3, "plugin": "portmap"}
  damagedLines                    array of line numbers
  unknownEntries                  how many entries are of a newer version
  error                           why it cannot be read, empty if it can

Fields may be added to it, but none is taken away or changes its meaning.`

func newList(n *node) *cobra.Command {
	var format output
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Shows the attachments in the journal",
		Long:  listHelp,
		Example: `  durable-argsctl list
  durable-argsctl list -o json | jq -r '.[] | select(.debt) | .containerID'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return list(cmd, n, format) },
	}
	addOutput(cmd, &format)
	return cmd
}

func list(cmd *cobra.Command, n *node, format output) error {
	store, err := n.openJournal(cmd)
	if err != nil {
		return err
	}
	rows := []listed{}
	var failed bool
	if store != nil {
		defer store.Close()
		keys, err := allKeys(store)
		if err != nil {
			say(cmd, "%v", err)
			failed = true
		}
		for _, row := range readAll(store, keys) {
			if row == nil {
				continue // removed since
			}
			if row.Error != "" {
				say(cmd, "%s", row.Error)
				failed = true
			}
			rows = append(rows, *row)
		}
	}
	if format == jsonOutput {
		err = writeJSON(cmd.OutOrStdout(), rows)
	} else if len(rows) > 0 {
		err = listTable(rows, time.Now()).print(cmd.OutOrStdout())
	} else if store != nil {
		say(cmd, "the journal in %s is empty", n.dataDir)
	}
	if err == nil && failed {
		return errFinding
	}
	return err
}

// listed is an attachment as list shows it.
type listed struct {
	Network        string     `json:"network"`
	ContainerID    string     `json:"containerID"`
	IfName         string     `json:"ifName"`
	PodNamespace   string     `json:"podNamespace"`
	PodName        string     `json:"podName"`
	Added          *time.Time `json:"added"`
	NetNS          string     `json:"netns"`
	Layout         string     `json:"layout"`
	Result         bool       `json:"result"`
	Debt           *debt      `json:"debt"`
	DamagedLines   []int      `json:"damagedLines"`
	UnknownEntries int        `json:"unknownEntries"`
	Error          string     `json:"error"`
}

type debt struct {
	Attempts int    `json:"attempts"`
	Plugin   string `json:"plugin"`
}

// readAll reads the files of keys on all cores. A row is nil if its file has
// gone.
func readAll(store *journal.Store, keys []journal.Key) []*listed {
	rows := make([]*listed, len(keys))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(keys)); i = next.Add(1) - 1 {
				rec, err := store.Read(keys[i])
				if !errors.Is(err, fs.ErrNotExist) {
					rows[i] = newListed(keys[i], rec, err)
				}
			}
		})
	}
	workers.Wait()
	return rows
}

func newListed(key journal.Key, rec journal.Record, err error) *listed {
	row := &listed{
		Network:        key.Network,
		ContainerID:    key.ContainerID,
		IfName:         key.IfName,
		NetNS:          netnsUnknown,
		DamagedLines:   append([]int{}, rec.Damaged...),
		UnknownEntries: rec.Unknown,
	}
	if err != nil {
		row.Error = err.Error()
		return row
	}
	if add := rec.Newest(); add != nil {
		row.PodNamespace, row.PodName = pod(add.Args)
		row.Added = &add.Time
		row.NetNS = netnsOf(rec)
		row.Layout = add.Layout
		row.Result = add.Result != nil
	}
	if n := len(rec.Attempts); n > 0 {
		row.Debt = &debt{n, rec.Attempts[n-1].Plugin}
	}
	return row
}

// pod reads Kubernetes' names, which podman uses, too, from CNI_ARGS.
func pod(args []byte) (namespace, name string) {
	for pair := range strings.SplitSeq(string(args), ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			namespace = value
		case "K8S_POD_NAME":
			name = value
		}
	}
	return namespace, name
}

// The states of a network namespace.
const (
	netnsAlive      = "alive"
	netnsGone       = "gone"
	netnsBeforeBoot = "before-boot"
	netnsUnknown    = "unknown"
)

// netnsOf is the state of the newest ADD's, or alive if an earlier one's is.
func netnsOf(rec journal.Record) string {
	state := netnsUnknown
	for _, add := range rec.Adds {
		if state = netnsState(add.NetNS); state == netnsAlive {
			break
		}
	}
	return state
}

func netnsState(id journal.NetNS) string {
	boot, err := netnsid.BootID()
	if err != nil {
		return netnsUnknown
	}
	switch live, err := netnsid.ID(id).Alive(); {
	case err != nil, live && id.Path == "":
		return netnsUnknown
	case live:
		return netnsAlive
	case id.BootID != "" && id.BootID != boot: // import leaves it empty
		return netnsBeforeBoot
	default:
		return netnsGone
	}
}

func listTable(rows []listed, now time.Time) *table {
	t := &table{columns: []column{
		{name: "NETWORK", least: 7},
		{name: "CONTAINER", least: 12, keepPrefix: true},
		{name: "IF"},
		{name: "POD", least: 6, keepEnd: true},
		{name: "AGE"},
		{name: "NETNS"},
		{name: "LAYOUT"},
		{name: "RESULT"},
		{name: "DEBT", least: 7},
	}}
	for _, row := range rows {
		added, result, colour := "-", "no", plain
		remarks := cell{row.remarks(), red}
		if remarks.text == "" {
			remarks = cell{"-", plain}
		}
		if row.Added != nil {
			added = age(*row.Added, now)
		}
		if row.Result {
			result = "yes"
		}
		if row.NetNS != netnsAlive {
			colour = yellow
		}
		t.add(
			cell{row.Network, plain},
			cell{row.ContainerID, plain},
			cell{row.IfName, plain},
			cell{row.pod(), plain},
			cell{added, plain},
			cell{strings.ReplaceAll(row.NetNS, "-", " "), colour},
			cell{cmp.Or(row.Layout, "-"), plain},
			cell{result, plain},
			remarks,
		)
	}
	return t
}

func (row listed) pod() string {
	name := strings.TrimPrefix(row.PodNamespace+"/"+row.PodName, "/")
	return cmp.Or(printable(strings.TrimSuffix(name, "/")), "-")
}

func (row listed) remarks() string {
	var remarks []string
	if row.Debt != nil {
		remarks = append(remarks, fmt.Sprintf("%d %s", row.Debt.Attempts, printable(row.Debt.Plugin)))
	}
	if len(row.DamagedLines) > 0 {
		remarks = append(remarks, "damaged")
	}
	if row.UnknownEntries > 0 {
		remarks = append(remarks, "newer")
	}
	if row.Error != "" {
		remarks = append(remarks, "unreadable")
	}
	if len(remarks) == 0 && row.Added == nil {
		remarks = append(remarks, "settled")
	}
	return strings.Join(remarks, ", ")
}
