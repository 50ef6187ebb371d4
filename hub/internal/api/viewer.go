package api

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/rpc"
)

// What people put may hold secrets: inline manifests, literals, addresses with credentials. The protos mark such fields
// with debug_redact. Admins read them back as they put them; everybody else sees every answer of every call with them
// masked, by interceptors around all handlers, so that no handler has to think of it.

// MaskUnary masks answers for callers that are no admins.
func MaskUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	resp, err := h(ctx, req)
	if m, ok := resp.(proto.Message); ok && err == nil && !readsSecrets(ctx) {
		return withoutSecrets(m), nil
	}
	return resp, err
}

// MaskStream masks every message of a stream for callers that are no admins.
func MaskStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if !readsSecrets(ss.Context()) {
		ss = maskedStream{ss}
	}
	return h(srv, ss)
}

type maskedStream struct{ grpc.ServerStream }

// SendMsg sends the message as the caller may see it.
func (s maskedStream) SendMsg(m any) error {
	if p, ok := m.(proto.Message); ok {
		m = withoutSecrets(p)
	}
	return s.ServerStream.SendMsg(m)
}

func readsSecrets(ctx context.Context) bool {
	c, ok := rpc.CallerFrom(ctx)
	return ok && c.Kind == rpc.KindUser && c.Role == rpc.RoleAdmin
}

// withoutSecrets is the message, or a copy of it with its secrets masked.
func withoutSecrets(m proto.Message) proto.Message {
	if !holdsSecrets(m.ProtoReflect().Descriptor()) {
		return m
	}
	out := proto.Clone(m)
	eachSecret(out.ProtoReflect(), "", func(s secret) {
		if fd := s.field; fd.IsMap() && fd.MapValue().Kind() == protoreflect.StringKind {
			maskFiles(s.in.Mutable(fd).Map())
			return
		}
		if m, ok := s.structure(); ok {
			maskStruct(m)
			return
		}
		if s.field.Kind() != protoreflect.StringKind || s.field.IsList() {
			s.in.Clear(s.field) // nothing of the kind there is yet: better gone than shown
			return
		}
		s.in.Set(s.field, protoreflect.ValueOfString(s.mask()(s.in.Get(s.field).String())))
	})
	return out
}

// secret is a populated field that holds one, and where it stands in the message.
type secret struct {
	in    protoreflect.Message
	field protoreflect.FieldDescriptor
	path  string
}

// structure is the content of a field that holds a map of anything, such as a chart's values.
func (s secret) structure() (*structpb.Struct, bool) {
	if s.field.IsMap() || s.field.IsList() || s.field.Message() == nil {
		return nil, false
	}
	m, ok := s.in.Get(s.field).Message().Interface().(*structpb.Struct)
	return m, ok
}

// maskStruct leaves the names: of all that is not a map or a list itself, it hides the value.
func maskStruct(m *structpb.Struct) {
	for _, v := range m.GetFields() {
		maskValue(v)
	}
}

func maskValue(v *structpb.Value) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		maskStruct(kind.StructValue)
	case *structpb.Value_ListValue:
		for _, x := range kind.ListValue.GetValues() {
			maskValue(x)
		}
	default:
		v.Kind = &structpb.Value_StringValue{StringValue: fleet.Masked}
	}
}

// maskedIn is where a value of a map of anything stands for one that was hidden.
func maskedIn(v *structpb.Value, at string) (where string, masked bool) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return at, kind.StringValue == fleet.Masked
	case *structpb.Value_StructValue:
		for _, key := range slices.Sorted(maps.Keys(kind.StructValue.GetFields())) {
			if where, masked = maskedIn(kind.StructValue.GetFields()[key], at+"."+key); masked {
				return where, true
			}
		}
	case *structpb.Value_ListValue:
		for i, x := range kind.ListValue.GetValues() {
			if where, masked = maskedIn(x, fmt.Sprintf("%s[%d]", at, i)); masked {
				return where, true
			}
		}
	}
	return at, false
}

// mask is how the field's values are masked.
func (s secret) mask() func(string) string {
	if m, ok := addresses[s.field.FullName()]; ok {
		return m
	}
	return func(string) string { return fleet.Masked }
}

// addresses are shown in part, so that people see what is asked.
var addresses = map[protoreflect.FullName]func(string) string{
	"towline.v1.HttpSource.url":     maskURL,
	"towline.v1.GitSource.url":      maskURL,
	"towline.v1.HelmSource.repo":    maskURL,
	"towline.v1.MetricGate.address": maskURL,
	"towline.v1.WebhookGate.url":    maskHook,
}

// holders says by message type whether it can hold secrets.
var holders sync.Map

func holdsSecrets(md protoreflect.MessageDescriptor) bool {
	if known, ok := holders.Load(md.FullName()); ok {
		return known.(bool)
	}
	found := findSecrets(md, map[protoreflect.FullName]bool{})
	holders.Store(md.FullName(), found)
	return found
}

func findSecrets(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[md.FullName()] {
		return false
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if isSecret(fd) || inner(fd) != nil && findSecrets(inner(fd), seen) {
			return true
		}
	}
	return false
}

func isSecret(fd protoreflect.FieldDescriptor) bool {
	o, ok := fd.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact()
}

// inner is the type of the messages in a field; nil: it has none.
func inner(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		return fd.MapValue().Message()
	}
	return fd.Message()
}

// eachSecret calls fn for every populated field of the message that holds a secret.
func eachSecret(m protoreflect.Message, at string, fn func(secret)) {
	var fields []protoreflect.FieldDescriptor
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, fd)
		return true
	})
	for _, fd := range fields {
		where := strings.TrimPrefix(at+"."+fd.JSONName(), ".")
		if isSecret(fd) {
			fn(secret{m, fd, where})
			continue
		}
		if md := inner(fd); md == nil || !holdsSecrets(md) {
			continue
		}
		switch v := m.Get(fd); {
		case fd.IsList():
			for i := range v.List().Len() {
				eachSecret(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", where, i), fn)
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, x protoreflect.Value) bool {
				eachSecret(x.Message(), where+"."+k.String(), fn)
				return true
			})
		default:
			eachSecret(v.Message(), where, fn)
		}
	}
}

// notShown stands for a file that is not shown at all.
const notShown = "*** not shown: it holds no manifests, or none that can be read ***\n"

func maskFiles(files protoreflect.Map) {
	var names []protoreflect.MapKey
	files.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		names = append(names, k)
		return true
	})
	for _, k := range names {
		files.Set(k, protoreflect.ValueOfString(maskFile(k.String(), files.Get(k).String())))
	}
}

func maskFile(name, text string) string {
	if !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(path.Ext(name))) {
		return notShown
	}
	masked, err := manifest.MaskFile(name, []byte(text))
	if err != nil {
		return notShown
	}
	return string(masked)
}

// maskURL hides credentials, the values of the query, and the fragment.
func maskURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return fleet.Masked
	}
	out := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	text := out.String()
	if u.User != nil {
		text = strings.Replace(text, "://", "://"+fleet.Masked+"@", 1)
	}
	var query []string
	for _, part := range strings.Split(u.RawQuery, "&") {
		if name, _, found := strings.Cut(part, "="); found {
			query = append(query, name+"="+fleet.Masked)
		} else if part != "" {
			query = append(query, fleet.Masked)
		}
	}
	if len(query) > 0 {
		text += "?" + strings.Join(query, "&")
	}
	if u.Fragment != "" {
		text += "#" + fleet.Masked
	}
	return text
}

// maskHook also hides the path.
func maskHook(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return fleet.Masked
	}
	bare := url.URL{Scheme: u.Scheme, Host: u.Host}
	if strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.User == nil {
		return s
	}
	return bare.String() + "/" + fleet.Masked
}

// refuseMasked finds what was read without its secrets and is put back so: it would take the place of the secrets.
func refuseMasked(m proto.Message) error {
	var err error
	eachSecret(m.ProtoReflect(), "", func(s secret) {
		if where, masked := s.isMasked(); err == nil && masked {
			err = fleet.Invalidf(where, "is masked (%s): it was read by somebody who may not see it; put the value itself, or what an admin reads", fleet.Masked)
		}
	})
	return err
}

// isMasked reports that the field holds what stands for a secret, and where.
func (s secret) isMasked() (where string, masked bool) {
	if m, ok := s.structure(); ok {
		return maskedIn(structpb.NewStructValue(m), s.path)
	}
	v := s.in.Get(s.field)
	if _, ok := addresses[s.field.FullName()]; ok {
		return s.path, strings.Contains(v.String(), fleet.Masked)
	}
	if !s.field.IsMap() {
		return s.path, s.field.Kind() == protoreflect.StringKind && !s.field.IsList() && v.String() == fleet.Masked
	}
	v.Map().Range(func(k protoreflect.MapKey, x protoreflect.Value) bool {
		masked = x.String() == notShown || manifest.MaskedIn(k.String(), []byte(x.String()))
		where = s.path + " " + k.String()
		return !masked
	})
	return where, masked
}
