package resource

import (
	"bytes"
	"errors"
	"regexp"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// group is that of Towline's own kinds.
var group, _, _ = strings.Cut(fleet.APIVersion, "/")

// Is reports that a document is a Towline resource of a kind.
func (d Document) Is(kind string) bool { return d.Kind() == kind && d.Group() == group }

// Unread is a file, or a folder, that cannot be read. Data is what a file has, as far as it is known.
type Unread struct {
	Err  error // begins with where it is
	Data []byte
}

// MayHave reports that there may be a Towline resource of a kind and a name in it.
func (u Unread) MayHave(kind, name string) bool {
	return u.Data == nil || elsewhere(u.Data) || bytes.Contains(u.Data, []byte(name)) && MayHold(u.Data, kind)
}

// elsewhere reports that what a file has is not to be seen in it: it is encrypted, or kept in Git LFS and not fetched.
func elsewhere(data []byte) bool { return !manifest.IsText(data) || manifest.IsPointer(data) }

// MayHold reports that a text that cannot be read may have a Towline resource of a kind. A chart's templates have none.
func MayHold(data []byte, kind string) bool {
	return bytes.Contains(data, []byte(group+"/")) && bytes.Contains(data, []byte(kind))
}

// Names reports that what is known of it has the name where that of a Towline resource of a kind would stand.
func (u Unread) Names(kind, name string) bool {
	return MayHold(u.Data, kind) && regexp.MustCompile(`\bname["']?\s*:\s*["']?`+regexp.QuoteMeta(name)+`(["'\s,}]|$)`).Match(u.Data)
}

// Below are the documents of files and directories with all that is below these, and what of that cannot be read: what it has nobody knows.
func Below(paths []string) (found []Document, unread []Unread) {
	return Readable(paths, Options{Recursive: true})
}

// Readable are the documents of what Load reads, whatever they say, and what of that cannot be read.
func Readable(paths []string, opts Options) (found []Document, unread []Unread) {
	for _, path := range paths {
		files, _, err := expand(path, opts.Recursive)
		for _, e := range unjoined(err) {
			if loop := (*Error)(nil); !errors.As(e, &loop) { // a link to a directory that it is in has nothing else than that
				unread = append(unread, Unread{Err: e})
			}
		}
		for _, file := range files {
			data, source, err := read(file, opts.Stdin)
			var docs []Document
			if err == nil {
				docs, err = ParseDocuments(source, data)
			}
			if found = append(found, docs...); err != nil {
				unread = append(unread, Unread{Err: unjoined(err)[0], Data: data})
			}
		}
	}
	return found, unread
}

// unjoined are the errors that an error joins.
func unjoined(err error) (out []error) {
	joined, is := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !is:
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		out = append(out, unjoined(e)...)
	}
	return out
}
