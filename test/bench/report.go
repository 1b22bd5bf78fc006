package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is a Markdown table.
type table struct {
	head []string
	rows [][]string
}

func (t table) String() string {
	widths := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, row := range all {
		for i, cell := range row {
			fmt.Fprintf(&b, "| %s%s ", cell, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				b.WriteString("| " + strings.Repeat("-", width) + " ")
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// report is what a run has found: it is printed as it grows.
type report struct {
	out     io.Writer
	targets table
	bars    []bar
}

// bar is a row of the chart.
type bar struct {
	group, name string
	ms          []float64
}

func (r *report) add(title, explanation string, t table) {
	fmt.Fprintf(r.out, "## %s\n\n%s\n\n%s\n", title, explanation, t)
}

func (r *report) bar(group, name string, ms []float64) {
	r.bars = append(r.bars, bar{group, name, ms})
}

// target says whether what should be at most limit is. Where the interval holds
// the limit, this run cannot tell.
func (r *report) target(what string, limit float64, measured []float64) {
	low, high := interval(measured)
	verdict := "cannot tell"
	switch {
	case high <= limit:
		verdict = "met"
	case low > limit:
		verdict = "MISSED"
	}
	r.targets.rows = append(r.targets.rows, []string{what, times(measured), verdict})
}

// fact is target for what has no noise.
func (r *report) fact(what string, limit, measured float64) {
	verdict := "met"
	if measured > limit {
		verdict = "MISSED"
	}
	r.targets.rows = append(r.targets.rows, []string{what, fmt.Sprintf("%.4g", measured), verdict})
}
