// Package table owns how rows become aligned text: column widths, colour, and what is cut on a terminal. It must not
// know what the rows are about or where they come from.
package table

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"towline.dev/towline/pkg/fleet"
)

// gap stands between two columns.
const gap = "  "

const (
	// minLast is the narrowest that the last column is cut to.
	minLast = 12
	// minSentence is how much room a sentence has at least, as long as others can do without theirs.
	minSentence = 40
)

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
	// Sentence: what a terminal has no room for is written below, and not cut.
	Sentence bool
	// Spare says what is left out first where a terminal is too narrow: the highest. 0 is never.
	Spare int
}

// Style says for whom a table is written.
type Style struct {
	Color     bool
	NoHeaders bool
	Wide      bool
	// Width is that of the terminal; 0 cuts and leaves out nothing. With Wide nothing is left out, either.
	Width int
}

// Table is columns and rows of one cell for each of them.
type Table struct {
	Columns []Column
	Rows    [][]Cell
	widths  []int
	shown   []int // indexes of columns
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

// measure decides which columns are shown, and how wide.
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
	t.shown = nil
	for i, c := range t.Columns {
		if !c.Wide || s.Wide {
			t.shown = append(t.shown, i)
		}
	}
	if s.Width > 0 && !s.Wide {
		t.fit(s.Width)
	}
}

// Last is the index of the column that is shown last.
func (t *Table) Last(s Style) int {
	t.measure(s)
	return t.shown[len(t.shown)-1]
}

// fit leaves out what a terminal has no room for, and gives sentences the room that the others leave.
func (t *Table) fit(width int) {
	for t.least() > width {
		spare := slices.MaxFunc(t.shown, func(a, b int) int { return cmp.Compare(t.Columns[a].Spare, t.Columns[b].Spare) })
		if t.Columns[spare].Spare == 0 {
			break
		}
		t.shown = slices.DeleteFunc(t.shown, func(i int) bool { return i == spare })
	}
	room := width - t.least() // below 0: sentences are narrower yet
	for n, i := range t.shown {
		if t.Columns[i].Sentence {
			least := t.leastOf(n)
			given := max(min(t.widths[i]-least, room), min(minLast-least, 0))
			t.widths[i], room = least+given, room-given
		}
	}
}

// least is how wide the columns are at least.
func (t *Table) least() int {
	sum := len(gap) * (len(t.shown) - 1)
	for n := range t.shown {
		sum += t.leastOf(n)
	}
	return sum
}

func (t *Table) leastOf(n int) int {
	i := t.shown[n]
	switch {
	case t.Columns[i].Sentence:
		return min(t.widths[i], minSentence)
	case n == len(t.shown)-1:
		return min(t.widths[i], minLast)
	}
	return t.widths[i]
}

// line writes a row. What a sentence has no room for stands below it.
func (t *Table) line(b *strings.Builder, row []Cell, s Style, head bool) {
	cells, height := make([][]string, len(t.shown)), 1
	used := 0
	for n, i := range t.shown {
		text := Clean(row[i].Text)
		cells[n] = []string{text}
		switch last := n == len(t.shown)-1; {
		case t.Columns[i].Sentence && s.Width > 0 && !s.Wide:
			cells[n] = wrap(text, t.widths[i])
		case last && s.Width > 0:
			cells[n][0] = cut(text, max(s.Width-used, minLast))
		}
		height = max(height, len(cells[n]))
		used += t.widths[i] + len(gap)
	}
	for y := range height {
		var line strings.Builder
		for n, i := range t.shown {
			text := ""
			if y < len(cells[n]) {
				text = cells[n][y]
			}
			t.cell(&line, n, Cell{Text: text, Color: row[i].Color}, s.Color, head)
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

// cell writes the text of a column in its width.
func (t *Table) cell(line *strings.Builder, n int, c Cell, color, head bool) {
	i, last := t.shown[n], n == len(t.shown)-1
	pad := strings.Repeat(" ", max(t.widths[i]-utf8.RuneCountInString(c.Text), 0))
	painted := Paint(color, c.Color, c.Text)
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
}

// wrap divides text into lines of at most width, between words where it can. There is always one.
func wrap(text string, width int) []string {
	var out []string
	rest := []rune(text)
	for len(rest) > width {
		at := width
		for at > 0 && rest[at] != ' ' {
			at--
		}
		if at == 0 {
			at = width
		}
		out = append(out, strings.TrimRight(string(rest[:at]), " "))
		for rest = rest[at:]; len(rest) > 0 && rest[0] == ' '; {
			rest = rest[1:]
		}
	}
	if len(rest) > 0 || len(out) == 0 {
		out = append(out, string(rest))
	}
	return out
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// Clean makes text safe for one line of a terminal.
func Clean(s string) string { return fleet.CleanText(s) }
