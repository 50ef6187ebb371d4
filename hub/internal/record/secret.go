package record

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// secretField is what a field is called that names a secret, in a source of any kind.
const secretField = "secret_name"

// SecretNames are the secrets that a source names, sorted.
func SecretNames(src *towlinev1.Source) []string {
	var out []string
	if src != nil {
		eachSecretName(src.ProtoReflect(), func(name string) { out = append(out, name) })
	}
	if f := src.GetFollow(); f.GetWebhook() && f.GetSecretName() == "" {
		out = append(out, follow.DefaultWebhook)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func eachSecretName(m protoreflect.Message, fn func(string)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				eachSecretName(v.List().Get(i).Message(), fn)
			}
		case fd.IsList():
		case fd.Message() != nil:
			eachSecretName(v.Message(), fn)
		case fd.Name() == secretField && fd.Kind() == protoreflect.StringKind:
			fn(v.String())
		}
		return true
	})
}

// SecretsOf are the secrets that a module uses, in its source or in its bindings, sorted.
func SecretsOf(spec *towlinev1.ModuleSpec) []string {
	out := append(SecretNames(spec.GetSource()), boundSecrets(spec)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// boundSecrets are the secrets that agents need.
func boundSecrets(spec *towlinev1.ModuleSpec) (out []string) {
	for _, b := range spec.GetBindings() {
		if name := b.GetSecret().GetName(); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// SecretPuts are the modules whose newest put uses secrets, sorted by name, by project and name of the secret: of a project, or of all.
func SecretPuts(r store.Reader, project string) map[fleet.ModuleRef][]string {
	prefix := store.ModulePrefix
	if project != "" {
		prefix += project + "/"
	}
	out := map[fleet.ModuleRef][]string{}
	store.Scan(r, prefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if !ok || rec.GetDeleting() != "" {
			return true
		}
		for _, name := range SecretsOf(rec.GetModule().GetSpec()) {
			secret := fleet.ModuleRef{Project: ref.Project, Name: name}
			out[secret] = append(out[secret], ref.Name)
		}
		return true
	})
	return out
}

// SecretUsers are those, and the modules of which a revision that is in use needs secrets in its clusters, as after a rollback.
func SecretUsers(r store.Reader, project string) map[fleet.ModuleRef][]string {
	out := SecretPuts(r, project)
	InUse(r, project, func(ref fleet.ModuleRef, rev *storev1.RevisionRecord) {
		for _, name := range boundSecrets(rev.GetRevision().GetSpec()) {
			secret := fleet.ModuleRef{Project: ref.Project, Name: name}
			out[secret] = append(out[secret], ref.Name)
		}
	})
	for secret, names := range out {
		slices.Sort(names)
		out[secret] = slices.Compact(names)
	}
	return out
}
