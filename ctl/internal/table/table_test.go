package table

import (
	"strings"
	"testing"
)

func render(t *testing.T, s Style) string {
	t.Helper()
	tab := Table{Columns: []Column{{Name: "NAME"}, {Name: "N", Right: true}, {Name: "LABELS", Wide: true}, {Name: "WHAT"}}}
	tab.Add(Cell{Text: "a-long-name", Color: Cyan}, Cell{Text: "7"}, Cell{Text: "x=y"}, Cell{Text: "one two three four five six"})
	tab.Add(Cell{Text: "b"}, Cell{Text: "123"}, Cell{Text: ""}, Cell{Text: "line\nbreak\x1b[31m"})
	var b strings.Builder
	if err := tab.Write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	for _, tc := range []struct {
		name  string
		style Style
		want  string
	}{
		{"piped cells are never cut", Style{}, `
NAME           N  WHAT
a-long-name    7  one two three four five six
b            123  line break[31m
`},
		{"wide shows all columns", Style{Wide: true, NoHeaders: true}, `
a-long-name    7  x=y  one two three four five six
b            123       line break[31m
`},
		{"a terminal cuts the last column only", Style{Width: 32}, `
NAME           N  WHAT
a-long-name    7  one two three…
b            123  line break[31m
`},
		{"a very narrow terminal leaves a readable rest", Style{Width: 5, NoHeaders: true}, `
a-long-name    7  one two thr…
b            123  line break[…
`},
		{"colour does not change widths", Style{Color: true, NoHeaders: true}, "\n" +
			"\x1b[36ma-long-name\x1b[0m    7  one two three four five six\n" +
			"b            123  line break[31m\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := "\n" + render(t, tc.style); got != tc.want {
				t.Errorf("got:%s\nwant:%s", got, tc.want)
			}
		})
	}
}

func TestAppendKeepsWidths(t *testing.T) {
	tab := Table{Columns: []Column{{Name: "NAME"}, {Name: "N", Right: true}}}
	tab.Add(Cell{Text: "abcdef"}, Cell{Text: "1"})
	var b strings.Builder
	if err := tab.Write(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	if err := tab.Append(&b, Style{}, []Cell{{Text: "x"}, {Text: "2"}}); err != nil {
		t.Fatal(err)
	}
	if want := "NAME    N\nabcdef  1\nx       2\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// TestNarrowTerminal: columns go in the order of their worth, and sentences go on below.
func TestNarrowTerminal(t *testing.T) {
	tab := Table{Columns: []Column{{Name: "NAME"}, {Name: "N", Right: true, Spare: 2}, {Name: "SAYS", Sentence: true}, {Name: "SINCE", Spare: 1}}}
	tab.Add(Cell{Text: "shop", Color: Cyan}, Cell{Text: "7"}, Cell{Text: "one two three four five six seven"}, Cell{Text: "3d"})
	tab.Add(Cell{Text: "base"}, Cell{Text: "123"}, Cell{Text: "a-word-that-is-longer-than-the-column"}, Cell{Text: "5m"})
	for _, tc := range []struct {
		style Style
		want  string
	}{
		{Style{}, `
NAME    N  SAYS                                   SINCE
shop    7  one two three four five six seven      3d
base  123  a-word-that-is-longer-than-the-column  5m
`},
		{Style{Width: 50}, `
NAME  SAYS                                   SINCE
shop  one two three four five six seven      3d
base  a-word-that-is-longer-than-the-column  5m
`},
		{Style{Width: 40}, `
NAME  SAYS
shop  one two three four five six seven
base  a-word-that-is-longer-than-the-col
      umn
`},
		{Style{Width: 20, Color: true, NoHeaders: true}, "\n" +
			"\x1b[36mshop\x1b[0m  one two three\n" +
			"      four five six\n" +
			"      seven\n" +
			"base  a-word-that-is\n" +
			"      -longer-than-t\n" +
			"      he-column\n"},
	} {
		var b strings.Builder
		if err := tab.Write(&b, tc.style); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != tc.want {
			t.Errorf("width %d: got:%s\nwant:%s", tc.style.Width, got, tc.want)
		}
	}
}
