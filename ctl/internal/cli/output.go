package cli

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	kyaml "sigs.k8s.io/yaml"

	"towline.dev/towline/ctl/internal/table"
	"towline.dev/towline/pkg/resource"
)

// output is how a command prints what it got.
type output struct {
	format    string // -o
	sortBy    string
	noHeaders bool

	path func(io.Writer, *yaml.Node) error // jsonpath, compiled
}

var formats = []string{"table", "wide", "name", "json", "yaml", "jsonpath="}

func (o *output) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, wide, name, json, yaml or jsonpath=`TEMPLATE`")
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "column, or JSONPath such as .status.drift")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "print no headers")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)))
}

// must is for calls that fail only when the program is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// parse checks -o.
func (o *output) parse() error {
	template, isPath := strings.CutPrefix(o.format, "jsonpath=")
	if isPath {
		path, err := resource.JSONPath(template)
		if err != nil {
			return usagef("-o jsonpath: %w", err)
		}
		o.path = path
		return nil
	}
	if !slices.Contains(formats, o.format) {
		return usagef("-o %s: is none of table, wide, name, json, yaml and jsonpath=…", o.format)
	}
	return nil
}

// structured reports that the output is for programs.
func (o *output) structured() bool { return o.path != nil || o.format == "json" || o.format == "yaml" }

// forPrograms reports that what is printed is no text for people.
func (o *output) forPrograms() bool { return o.structured() || o.format == "name" }

func (o *output) style(a *app) table.Style {
	return table.Style{Color: a.color(), NoHeaders: o.noHeaders, Wide: o.format == "wide", Width: a.width()}
}

// view is how a kind is shown.
type view[M proto.Message] struct {
	kind  string
	name  func(M) string
	table func(a *app, items []M) *table.Table
	// foot is said below the table, to people.
	foot func(a *app, items []M) string
}

// print writes items: as a list, or the one that was asked for by name.
func (v view[M]) print(a *app, o *output, items []M, single bool) error {
	items, err := v.sorted(a, o, items)
	if err != nil {
		return err
	}
	switch {
	case o.structured():
		n := resource.List(items)
		if single && len(items) == 1 {
			n = resource.Node(items[0])
		}
		return o.node(a, n)
	case o.format == "name":
		for _, item := range items {
			a.printf("%s/%s\n", v.kind, v.name(item))
		}
		return nil
	}
	if err := v.table(a, items).Write(a.Out, o.style(a)); err != nil {
		return err
	}
	if v.foot != nil {
		a.footf("%s", v.foot(a, items))
	}
	return nil
}

// node writes a tree for programs.
func (o *output) node(a *app, n *yaml.Node) error {
	switch {
	case o.path != nil:
		if err := o.path(a.Out, n); err != nil {
			return usagef("-o jsonpath: %w", err)
		}
		a.printf("\n")
		return nil
	case o.format == "yaml":
		return resource.WriteYAML(a.Out, n)
	}
	return resource.WriteJSON(a.Out, n)
}

// sorted orders items by a column's text or by a JSONPath; numbers by their value.
func (v view[M]) sorted(a *app, o *output, items []M) ([]M, error) {
	if o.sortBy == "" {
		return items, nil
	}
	keys, err := v.sortKeys(a, o, items)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return compareText(keys[x], keys[y]) })
	out := make([]M, len(items))
	for i, from := range order {
		out[i] = items[from]
	}
	return out, nil
}

func (v view[M]) sortKeys(a *app, o *output, items []M) ([]string, error) {
	keys := make([]string, len(items))
	t := v.table(a, items)
	for c, column := range t.Columns {
		if !strings.EqualFold(column.Name, o.sortBy) {
			continue
		}
		for i := range items {
			keys[i] = t.Rows[i][c].Text
		}
		return keys, nil
	}
	path, err := resource.JSONPath(o.sortBy)
	if err != nil || !strings.ContainsAny(o.sortBy, ".{") {
		return nil, usagef("--sort-by %s: is no column and no JSONPath", o.sortBy)
	}
	for i, item := range items {
		var b strings.Builder
		if err := path(&b, resource.Node(item)); err != nil {
			return nil, usagef("--sort-by %s: %w", o.sortBy, err)
		}
		keys[i] = b.String()
	}
	return keys, nil
}

// compareText compares as a person does: times by their length, and the numbers in a text by their value.
func compareText(x, y string) int {
	if nx, ny, ok := both(x, y, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); ok {
		return cmp.Compare(nx, ny)
	}
	if dx, dy, ok := both(x, y, spanOf); ok {
		return cmp.Compare(dx, dy)
	}
	for x != "" && y != "" {
		nx, restX := leadingNumber(x)
		ny, restY := leadingNumber(y)
		if nx == "" || ny == "" {
			if x[0] != y[0] {
				break
			}
			x, y = x[1:], y[1:]
			continue
		}
		if c := cmp.Or(cmp.Compare(len(nx), len(ny)), strings.Compare(nx, ny)); c != 0 {
			return c
		}
		x, y = restX, restY
	}
	return strings.Compare(x, y)
}

// both reads two texts as the same thing.
func both[T any](x, y string, read func(string) (T, error)) (T, T, bool) {
	a, errA := read(x)
	b, errB := read(y)
	return a, b, errA == nil && errB == nil
}

// leadingNumber is the whole number, without leading zeros, with which a text begins; empty: it begins with none.
func leadingNumber(s string) (number, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	digits := s[:len(s)-len(rest)]
	if number = strings.TrimLeft(digits, "0"); number == "" && digits != "" {
		number = "0"
	}
	return number, rest
}

// printPlain writes a value that is no message as JSON or YAML.
func (a *app) printPlain(v any, format string) error {
	if format == "yaml" {
		data, err := kyaml.Marshal(v)
		a.printf("%s", data)
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	a.printf("%s\n", data)
	return err
}
