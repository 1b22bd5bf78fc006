package runtimes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// resultFile is where a sandbox leaves its column of a runtime's rows.
type resultFile string

// result is a cell, or the reason why there are none.
type result struct{ Fault, Said, Skipped string }

func results(kind, layout string) resultFile {
	return resultFile(filepath.Join(os.Getenv(session), kind+","+layout))
}

func (f resultFile) add(t *testing.T, fault, said string) {
	f.append(t, result{Fault: fault, Said: said})
}

func (f resultFile) skip(t *testing.T, why string) { f.append(t, result{Skipped: why}) }

func (f resultFile) append(t *testing.T, r result) {
	t.Helper()
	out, err := os.OpenFile(string(f), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := json.NewEncoder(out).Encode(r); err != nil {
		t.Fatal(err)
	}
}

func (f resultFile) read(t *testing.T) (cells map[string]string, skipped string) {
	cells = make(map[string]string)
	in, err := os.Open(string(f))
	if err != nil {
		return cells, "" // another test was asked for
	}
	defer in.Close()
	for lines := json.NewDecoder(in); lines.More(); {
		var r result
		if err := lines.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Skipped != "" {
			skipped = r.Skipped
		} else {
			cells[r.Fault] = r.Said
		}
	}
	return cells, skipped
}

// printTable prints the table as Markdown. Faults of the same outcome share a
// row.
func printTable(t *testing.T) {
	t.Helper()
	fmt.Print("\n| runtime | fault | without us | first | first-last | wrapped |\n| --- | --- | --- | --- | --- | --- |\n")
	var skips []string
	for _, kind := range kinds {
		columns := make(map[string]map[string]string)
		for _, layout := range layouts {
			var skipped string
			if columns[layout], skipped = results(kind.name, layout).read(t); skipped != "" {
				skips = append(skips, fmt.Sprintf("NOT RUN: %s, %s: %s\n", kind.name, layout, skipped))
			}
		}
		var outcomes []string
		of := make(map[string][]string)
		for _, f := range faults {
			var cells []string
			for _, layout := range layouts {
				cells = append(cells, cmp.Or(columns[layout][f.name], "-"))
			}
			outcome := strings.Join(cells, " | ")
			if strings.Trim(outcome, "-| ") == "" {
				continue
			}
			if of[outcome] == nil {
				outcomes = append(outcomes, outcome)
			}
			of[outcome] = append(of[outcome], f.name)
		}
		for _, outcome := range outcomes {
			fmt.Printf("| %s | %s | %s |\n", kind.name, strings.Join(of[outcome], "; "), outcome)
		}
	}
	fmt.Println()
	for i, note := range notes {
		fmt.Printf("(%d) %s\n", i+1, note)
	}
	fmt.Printf("\n%s", strings.Join(skips, ""))
}
