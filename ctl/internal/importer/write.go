package importer

import (
	"errors"
	"io"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	"towline.dev/towline/pkg/resource"
)

// Write writes the module as YAML below what is to be known of it, and counts what it does not have.
func (m Module) Write(w io.Writer) (dropped int, err error) {
	comment := func(text string) {
		_, failed := io.WriteString(w, "# "+table.Clean(strings.Join(strings.Fields(text), " "))+"\n")
		err = errors.Join(err, failed)
	}
	comment(m.From)
	for _, part := range []struct {
		kind  NoteKind
		title string
	}{{Dropped, "Not carried over:"}, {Check, "Look at:"}} {
		of := m.notesOf(part.kind)
		if len(of) > 0 {
			comment(part.title)
		}
		for _, n := range of {
			comment("- " + n.Path + ": " + n.Text)
		}
	}
	return len(m.notesOf(Dropped)), errors.Join(err, resource.WriteYAML(w, resource.Sparse(m.Module)))
}

func (m Module) notesOf(kind NoteKind) (out []Note) {
	for _, n := range m.Notes {
		if n.Kind == kind {
			out = append(out, n)
		}
	}
	return out
}
