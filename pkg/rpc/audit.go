package rpc

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// AuditEntry is one write: who did what to what, and why.
type AuditEntry struct {
	Caller  Caller
	Method  string
	Subject string
	// Kind is the request's field that names the subject, such as module or cluster; empty: a field that tells no kind.
	Kind string
	// Clusters are those that the request names in which something is done with the subject.
	Clusters []string
	Reason   string
	// Result is OK or the code of the error.
	Result string
	At     time.Time
	// Detail is what the method has noted of what it did.
	Detail string
	// Response is what was answered; nil: an error, or a stream.
	Response proto.Message
}

// detailKey is of where a method may note what it did.
type detailKey struct{}

// NoteDetail has the record of a write tell what it did, where the request alone does not. It is for the method itself, before it answers.
func NoteDetail(ctx context.Context, detail string) {
	if at, ok := ctx.Value(detailKey{}).(*string); ok {
		*at = detail
	}
}

func detailOf(ctx context.Context) string {
	if at, ok := ctx.Value(detailKey{}).(*string); ok {
		return *at
	}
	return ""
}

// subjectFields are the request fields that name what is written, most telling first.
var subjectFields = []protoreflect.Name{"name", "id", "serial", "module", "catalog", "cluster", "digest", "project"}

// kindFields are those of them that tell the kind as well.
var kindFields = []protoreflect.Name{"module", "catalog", "cluster", "project"}

// subject names what the request is about, such as shop/web or prod-eu-01, and its kind as far as the name of the field tells it.
func subject(m proto.Message) (kind, name string) {
	r := m.ProtoReflect()
	project := text(r, "project")
	for _, f := range subjectFields {
		fd := r.Descriptor().Fields().ByName(f)
		if fd == nil || !r.Has(fd) || fd.IsList() || fd.IsMap() {
			continue
		}
		if slices.Contains(kindFields, f) {
			kind = string(f)
		}
		switch {
		case fd.Kind() == protoreflect.StringKind && f == "project":
			return kind, project
		case fd.Kind() == protoreflect.StringKind:
			return kind, join(project, text(r, f))
		case fd.Kind() == protoreflect.MessageKind:
			return kind, resource(r.Get(fd).Message())
		}
	}
	return "", ""
}

// within are the clusters that a request names beside its subject.
func within(m proto.Message, kind string) (out []string) {
	r := m.ProtoReflect()
	if kind == "cluster" {
		return nil
	}
	if one := text(r, "cluster"); one != "" {
		out = append(out, one)
	}
	fd := r.Descriptor().Fields().ByName("clusters")
	if fd == nil || !fd.IsList() || fd.Kind() != protoreflect.StringKind {
		return out
	}
	for i := range r.Get(fd).List().Len() {
		out = append(out, cut(r.Get(fd).List().Get(i).String(), maxName))
	}
	return out
}

// resource names a resource by its metadata.
func resource(r protoreflect.Message) string {
	fd := r.Descriptor().Fields().ByName("metadata")
	if fd == nil || fd.Kind() != protoreflect.MessageKind {
		return ""
	}
	meta := r.Get(fd).Message()
	return join(text(meta, "project"), text(meta, "name"))
}

// isDryRun reports that the request asks what would be, and changes nothing: that is no write. One that has noted what a set wants is.
func isDryRun(req any) bool {
	m, ok := req.(proto.Message)
	if !ok {
		return false
	}
	return is(m, "dry_run") && !is(m, "wants")
}

// is reports that a request says so.
func is(m proto.Message, field protoreflect.Name) bool {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(field)
	return fd != nil && fd.Kind() == protoreflect.BoolKind && r.Get(fd).Bool()
}

// changedNothing reports that what was asked for was so already: a pipeline says the same of hundreds of modules every few minutes.
func changedNothing(resp any) bool {
	m, ok := resp.(proto.Message)
	return ok && m != nil && text(m.ProtoReflect(), "result") == "unchanged"
}

// reasonOf is the request's reason field.
func reasonOf(m proto.Message) string { return text(m.ProtoReflect(), "reason") }

func text(r protoreflect.Message, field protoreflect.Name) string {
	fd := r.Descriptor().Fields().ByName(field)
	if fd == nil || fd.Kind() != protoreflect.StringKind || fd.IsList() {
		return ""
	}
	return cut(r.Get(fd).String(), maxName)
}

// maxName is the bytes of a name that an entry has at most: refused requests are recorded, too, with whatever they name.
const maxName = 256

func join(project, name string) string { return strings.TrimPrefix(project+"/"+name, "/") }
