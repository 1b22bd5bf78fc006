package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// say tells what was not asked for, which has no place on stdout.
func say(cmd *cobra.Command, format string, args ...any) {
	cmd.PrintErrf("durable-argsctl: "+format+"\n", args...)
}

// output is the value of -o: empty for people, or "json".
type output string

const jsonOutput output = "json"

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "format" }

func (o *output) Set(s string) error {
	if s != string(jsonOutput) {
		return errors.New(`the only format is "json"`)
	}
	*o = jsonOutput
	return nil
}

// addOutput gives cmd the flag -o.
func addOutput(cmd *cobra.Command, o *output) {
	cmd.Flags().VarP(o, "output", "o", `"json" for programs (default: a text for people)`)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{string(jsonOutput)}, cobra.ShellCompDirectiveNoFileComp))
}

// writeJSON prints v as it is documented for programs.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable is s as it may be shown: what a container was given must not reach
// the terminal as an escape sequence.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

// The colours of a table's cells.
const (
	plain  = ""
	red    = "\x1b[31m"
	yellow = "\x1b[33m"

	endColour = "\x1b[0m"
)

// column is how a table treats a column.
type column struct {
	name string
	// least is to how many characters it may be shortened, 0 if it must not be.
	least int
	// keepEnd says that the end of a cell tells more than its beginning.
	keepEnd bool
	// keepPrefix says that a cell is shortened to what can be typed instead of it.
	keepPrefix bool
}

type cell struct{ text, colour string }

// table fits into the terminal, or into 80 columns where there is none.
type table struct {
	columns []column
	rows    [][]cell
}

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

func (t *table) print(out io.Writer) error {
	widths := t.widths(tableWidth(out))
	coloured := hasColour(out)
	w := bufio.NewWriter(out)
	var header []cell
	for _, c := range t.columns {
		header = append(header, cell{c.name, plain})
	}
	for _, row := range append([][]cell{header}, t.rows...) {
		gap := ""
		for i, c := range row {
			text := t.columns[i].fit(c.text, widths[i])
			w.WriteString(gap)
			gap = strings.Repeat(" ", 2+widths[i]-utf8.RuneCountInString(text))
			if coloured && c.colour != plain {
				text = c.colour + text + endColour
			}
			w.WriteString(text)
		}
		w.WriteString("\n")
	}
	return w.Flush()
}

// widths takes room from the widest column that can spare some, until the
// table fits.
func (t *table) widths(available int) []int {
	widths := make([]int, len(t.columns))
	sum := 2 * (len(widths) - 1)
	for i, c := range t.columns {
		widths[i] = len(c.name)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
		sum += widths[i]
	}
	for ; sum > available; sum-- {
		widest := -1
		for i, c := range t.columns {
			if c.least > 0 && widths[i] > max(c.least, len(c.name)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

func (c column) fit(text string, width int) string {
	runes := []rune(text)
	switch {
	case len(runes) <= width:
		return text
	case c.keepPrefix:
		return string(runes[:width])
	case c.keepEnd:
		return "…" + string(runes[len(runes)-width+1:])
	default:
		return string(runes[:width-1]) + "…"
	}
}

func tableWidth(out io.Writer) int {
	if f, ok := terminal(out); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return max(80, int(size.Col))
		}
	}
	return 80
}

// hasColour reports whether colours may be written to out (https://no-color.org).
func hasColour(out io.Writer) bool {
	_, ok := terminal(out)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// terminal returns the terminal that stream, an io.Reader or io.Writer, is.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	if !ok {
		return nil, false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return f, err == nil
}

// progress is a line on a terminal's stderr, for what takes longer than a second.
type progress struct {
	out   *os.File // nil if it is no terminal
	began time.Time
	doing string
	total int
}

func newProgress(cmd *cobra.Command, doing string, total int) *progress {
	out, ok := terminal(cmd.ErrOrStderr())
	if !ok {
		out = nil
	}
	return &progress{out, time.Now(), doing, total}
}

// at says that the i-th, from 0, is being done.
func (p *progress) at(i int, what any) {
	if p.out != nil && time.Since(p.began) > time.Second {
		line := []rune(fmt.Sprintf("%s %d of %d: %v", p.doing, i+1, p.total, what))
		fmt.Fprintf(p.out, "\r\x1b[K%s", string(line[:min(len(line), tableWidth(p.out)-1)]))
	}
}

// clear makes room for other lines.
func (p *progress) clear() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// age is how long ago something was, in its largest unit.
func age(then, now time.Time) string {
	switch d := max(0, now.Sub(then)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
