package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// tableWidth is the number of columns that a table fits.
const tableWidth = 80

// output is the flag -o.
type output string

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "format" }

func (o *output) Set(format string) error {
	if format != "json" {
		return fmt.Errorf("the only format is json")
	}
	*o = output(format)
	return nil
}

// addOutput gives cmd the flag -o.
func addOutput(cmd *cobra.Command, o *output) {
	cmd.Flags().VarP(o, "output", "o", "print json instead of a table")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"json"}, cobra.ShellCompDirectiveNoFileComp))
}

// writeJSON writes v for programs, and for people who look at what they get.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeTable writes rows under a head. It cuts what is in the widest columns
// until all fits.
func writeTable(w io.Writer, head []string, rows [][]string) error {
	const gap = 2
	rows = append([][]string{head}, rows...)
	widths := make([]int, len(head))
	total := gap * (len(head) - 1)
	for i := range head {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for ; total > tableWidth; total-- {
		widths[slices.Index(widths, slices.Max(widths))]--
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if runes := []rune(cell); len(runes) > widths[i] {
				cell = string(runes[:widths[i]-1]) + "…"
			}
			fmt.Fprintf(&line, "%-*s", widths[i]+gap, cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
