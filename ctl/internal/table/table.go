// Package table owns how rows become aligned text: column widths, colour, and what is cut on a terminal. It must not
// know what the rows are about or where they come from.
package table

import (
	"io"
	"strings"
	"unicode/utf8"

	"towline.dev/towline/pkg/fleet"
)

// gap stands between two columns.
const gap = "  "

// minLast is the narrowest that the last column is cut to.
const minLast = 12

// Color marks what a cell means; it is never the only sign of it.
type Color int

// Colours by meaning.
const (
	Plain  Color = iota
	Green        // succeeded, healthy
	Yellow       // moving or waiting
	Red          // failed, degraded, conflict
	Grey         // away or unknown
	Cyan         // ids and commands
	Bold         // headers
)

var codes = map[Color]string{Green: "32", Yellow: "33", Red: "31", Grey: "90", Cyan: "36", Bold: "1"}

// Paint puts colour around text; with on false it is the text.
func Paint(on bool, c Color, text string) string {
	if !on || c == Plain || text == "" {
		return text
	}
	return "\x1b[" + codes[c] + "m" + text + "\x1b[0m"
}

// Cell is one field of a row.
type Cell struct {
	Text  string
	Color Color
}

// Column describes one column.
type Column struct {
	Name  string
	Right bool // numbers
	Head  bool // of a right column: its name stays left
	Wide  bool // only with -o wide
}

// Style says for whom a table is written.
type Style struct {
	Color     bool
	NoHeaders bool
	Wide      bool
	// Width is that of the terminal; 0 cuts nothing.
	Width int
}

// Table is columns and rows of one cell for each of them.
type Table struct {
	Columns []Column
	Rows    [][]Cell
	widths  []int
}

// Add puts a row at the end.
func (t *Table) Add(cells ...Cell) { t.Rows = append(t.Rows, cells) }

// Write writes headers and rows. Widths stay for later Append calls.
func (t *Table) Write(w io.Writer, s Style) error {
	t.measure(s)
	var b strings.Builder
	if !s.NoHeaders {
		head := make([]Cell, len(t.Columns))
		for i, c := range t.Columns {
			head[i] = Cell{Text: c.Name, Color: Bold}
		}
		t.line(&b, head, s, true)
	}
	for _, row := range t.Rows {
		t.line(&b, row, s, false)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Append writes one more row in the widths of the last Write, for streams.
func (t *Table) Append(w io.Writer, s Style, row []Cell) error {
	if t.widths == nil {
		t.measure(s)
	}
	var b strings.Builder
	t.line(&b, row, s, false)
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Table) measure(s Style) {
	t.widths = make([]int, len(t.Columns))
	for i, c := range t.Columns {
		if !s.NoHeaders {
			t.widths[i] = utf8.RuneCountInString(c.Name)
		}
		for _, row := range t.Rows {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(Clean(row[i].Text)))
		}
	}
}

// shown lists the indexes of the columns that s shows.
func (t *Table) shown(s Style) []int {
	var out []int
	for i, c := range t.Columns {
		if !c.Wide || s.Wide {
			out = append(out, i)
		}
	}
	return out
}

func (t *Table) line(b *strings.Builder, row []Cell, s Style, head bool) {
	shown := t.shown(s)
	used := 0
	var line strings.Builder
	for n, i := range shown {
		text := Clean(row[i].Text)
		last := n == len(shown)-1
		if last && s.Width > 0 {
			text = cut(text, max(s.Width-used, minLast))
		}
		pad := strings.Repeat(" ", max(t.widths[i]-utf8.RuneCountInString(text), 0))
		painted := Paint(s.Color, row[i].Color, text)
		switch {
		case t.Columns[i].Right && !(head && t.Columns[i].Head):
			line.WriteString(pad + painted)
		case last:
			line.WriteString(painted)
		default:
			line.WriteString(painted + pad)
		}
		if !last {
			line.WriteString(gap)
		}
		used += t.widths[i] + len(gap)
	}
	b.WriteString(strings.TrimRight(line.String(), " "))
	b.WriteByte('\n')
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// Clean makes text safe for one line of a terminal.
func Clean(s string) string { return fleet.CleanText(s) }
