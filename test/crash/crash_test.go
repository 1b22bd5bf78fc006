package crash

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/durable-args/durable-args/test/sandbox"
)

const (
	budgetVar = "CRASH_BUDGET"
	// defaultBudget is what go test ./... takes.
	defaultBudget = "25s"
	// rowsVar names the file in which the sandboxes leave their rows.
	rowsVar = "CRASH_ROWS"
)

func TestMain(m *testing.M) {
	if image := os.Getenv(imageVar); image != "" {
		fmt.Fprintln(os.Stderr, "the disk's server:", serveDisk(image))
		os.Exit(1)
	}
	sandbox.Main(m)
}

// method is one way to cut the power on one file system.
type method struct {
	name  string
	share int // of the budget
	filesystem
	run func(t *testing.T, f filesystem, until time.Time, writers []*writer) report
}

func methods() []method {
	var all []method
	for _, f := range filesystems {
		all = append(all, method{"cuts", 3, f, cuts})
	}
	for _, f := range filesystems {
		all = append(all, method{"states", 2, f, states})
	}
	return all
}

// missing says why m cannot be had here, and what stands in for it; empty if it
// can be had.
func (m method) missing() string {
	if missing := m.filesystem.missing(); missing != "" {
		return missing + "; the other file systems stand in for it"
	}
	if m.name == "cuts" && !m.shutdown {
		return "it cannot be cut off; its states stand in for that"
	}
	if _, err := os.Stat("/dev/fuse"); err != nil && m.name == "states" {
		return "the kernel has no FUSE; cuts stand in for it"
	}
	return ""
}

// row is a line of the table.
type row struct {
	FileSystem, Method, Writer string
	tally
	Skipped string
}

func TestPowerCuts(t *testing.T) {
	budget, err := time.ParseDuration(cmp.Or(os.Getenv(budgetVar), defaultBudget))
	if err != nil {
		t.Fatalf("%s: %v", budgetVar, err)
	}
	shares := 0
	for _, m := range methods() {
		if m.missing() == "" {
			shares += m.share
		}
	}
	outside := os.Getenv(rowsVar) == ""
	if outside {
		os.Setenv(rowsVar, filepath.Join(t.TempDir(), "rows"))
		defer printTable(t)
	}
	for _, m := range methods() {
		t.Run(m.name+"/"+m.filesystem.name, func(t *testing.T) {
			if missing := m.missing(); missing != "" {
				// In the table, too: go test does not show what it skips.
				writeRow(t, row{FileSystem: m.filesystem.name, Method: m.name, Skipped: missing})
				t.Skip(missing)
			}
			budget := budget * time.Duration(m.share) / time.Duration(shares)
			if outside {
				fmt.Fprintf(os.Stderr, "%s on %s, for %s\n", m.name, m.filesystem.name, budget.Round(time.Second))
			}
			if !sandbox.Enter(t) {
				return
			}
			writers := writers(furnish(t))
			r := m.run(t, m.filesystem, time.Now().Add(budget), writers)
			for _, w := range writers {
				writeRow(t, row{m.filesystem.name, m.name, w.name, *r[w], ""})
			}
			r.verify(t)
		})
	}
}

func writeRow(t *testing.T, r row) {
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(os.Getenv(rowsVar), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

func printTable(t *testing.T) {
	f, err := os.Open(os.Getenv(rowsVar))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const format = "| %-11s | %-7s | %-31s | %7s | %12s | %6s | %6s | %20s |\n"
	fmt.Printf(format, "file system", "method", "writer", "checked", "acknowledged", "lost", "torn", "torn, unacknowledged")
	fmt.Printf(format, "---", "---", "---", "--:", "--:", "--:", "--:", "--:")
	for rows := json.NewDecoder(f); rows.More(); {
		var r row
		if err := rows.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Skipped != "" {
			fmt.Printf("| %-11s | %-7s | SKIPPED: %s |\n", r.FileSystem, r.Method, r.Skipped)
			continue
		}
		fmt.Printf(format, r.FileSystem, r.Method, r.Writer, fmt.Sprint(r.Checked), fmt.Sprint(r.Acknowledged),
			fmt.Sprint(r.Lost), fmt.Sprint(r.Torn), fmt.Sprint(r.Harmless))
	}
}
