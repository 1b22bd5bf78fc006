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

func TestMain(m *testing.M) { sandbox.Main(m) }

// method is one way to cut the power on one file system.
type method struct {
	name, unit string
	share      int // of the budget
	filesystem
	run func(t *testing.T, f filesystem, until time.Time, writers []*writer) report
}

func methods() []method {
	var all []method
	for _, f := range filesystems {
		if f.shutdown {
			all = append(all, method{"cuts", "cuts", 2, f, cuts})
		}
	}
	return all
}

// row is a line of the table.
type row struct {
	FileSystem, Method, Writer                         string
	Checked, Acknowledged, Lost, Torn, Wrong, Harmless int
	Skipped                                            string
}

func TestPowerCuts(t *testing.T) {
	budget, err := time.ParseDuration(cmp.Or(os.Getenv(budgetVar), defaultBudget))
	if err != nil {
		t.Fatalf("%s: %v", budgetVar, err)
	}
	shares := 0
	for _, m := range methods() {
		shares += m.share
	}
	outside := os.Getenv(rowsVar) == ""
	if outside {
		os.Setenv(rowsVar, filepath.Join(t.TempDir(), "rows"))
		defer printTable(t)
	}
	for _, m := range methods() {
		t.Run(m.name+"/"+m.filesystem.name, func(t *testing.T) {
			if missing := m.missing(); missing != "" {
				skip(t, m, missing)
			}
			if !sandbox.Enter(t) {
				return
			}
			writers := writers(furnish(t))
			r := m.run(t, m.filesystem, time.Now().Add(budget*time.Duration(m.share)/time.Duration(shares)), writers)
			for _, w := range writers {
				writeRow(t, row{m.filesystem.name, m.unit, w.name, r[w].checked, r[w].acknowledged, r[w].lost, r[w].torn, r[w].wrong, r[w].harmless, ""})
			}
			r.verify(t)
		})
	}
}

// skip says so in the table, too: go test hides it.
func skip(t *testing.T, m method, missing string) {
	writeRow(t, row{FileSystem: m.filesystem.name, Method: m.unit, Skipped: missing})
	t.Skip(missing)
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
	const format = "| %-11s | %-6s | %-28s | %8s | %12s | %8s | %8s |\n"
	fmt.Printf(format, "file system", "method", "writer", "checked", "acknowledged", "lost", "torn")
	for rows := json.NewDecoder(f); rows.More(); {
		var r row
		if err := rows.Decode(&r); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%+v\n", r)
	}
}
