package record

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// SecretPart is one of the secrets of a name: that for every cluster, or for those of its scope.
type SecretPart struct {
	Scope  fleet.SecretScope
	Secret *towlinev1.Secret
	Values *storev1.SealedValues
}

// ScopeOf is the scope of a stored secret. One that is not valid is of no cluster.
func ScopeOf(s *towlinev1.Secret) (fleet.SecretScope, bool) {
	if s.GetScope() == nil {
		return fleet.SecretScope{}, true
	}
	scope, err := fleet.NewSecretScope(s.GetScope().GetCluster(), s.GetScope().GetLabelSelector())
	return scope, err == nil
}

// SecretParts are the secrets of a name, that for every cluster first.
func SecretParts(rec *storev1.SecretRecord) (out []SecretPart) {
	if rec.GetSecret() != nil {
		out = append(out, SecretPart{Secret: rec.GetSecret(), Values: rec.GetValues()})
	}
	for _, x := range rec.GetScoped() {
		if scope, ok := ScopeOf(x.GetSecret()); ok && !scope.Everywhere() {
			out = append(out, SecretPart{scope, x.GetSecret(), x.GetValues()})
		}
	}
	return out
}

// PartOf is the secret of a name for a scope; false: there is none.
func PartOf(rec *storev1.SecretRecord, scope fleet.SecretScope) (SecretPart, bool) {
	parts := SecretParts(rec)
	i := slices.IndexFunc(parts, func(p SecretPart) bool { return p.Scope == scope })
	if i < 0 {
		return SecretPart{}, false
	}
	return parts[i], true
}

// WithPart is a record in which a part has the place of that of its scope. The record may be nil.
func WithPart(rec *storev1.SecretRecord, p SecretPart) *storev1.SecretRecord {
	out := WithoutPart(rec, p.Scope)
	if out == nil {
		out = &storev1.SecretRecord{}
	}
	if p.Scope.Everywhere() {
		out.Secret, out.Values = p.Secret, p.Values
		return out
	}
	out.Scoped = append(out.Scoped, &storev1.ScopedSecret{Secret: p.Secret, Values: p.Values})
	slices.SortFunc(out.Scoped, func(a, b *storev1.ScopedSecret) int {
		x, y := a.GetSecret().GetScope(), b.GetSecret().GetScope()
		return cmp.Or(cmp.Compare(x.GetLabelSelector(), y.GetLabelSelector()), cmp.Compare(x.GetCluster(), y.GetCluster()))
	})
	return out
}

// WithoutPart is a record without the part of a scope; nil: none is left.
func WithoutPart(rec *storev1.SecretRecord, scope fleet.SecretScope) *storev1.SecretRecord {
	if rec == nil {
		return nil
	}
	out := proto.CloneOf(rec)
	if scope.Everywhere() {
		out.Secret, out.Values = nil, nil
	} else {
		out.Scoped = slices.DeleteFunc(out.Scoped, func(x *storev1.ScopedSecret) bool {
			of, _ := ScopeOf(x.GetSecret())
			return of == scope
		})
	}
	if out.GetSecret() == nil && len(out.GetScoped()) == 0 {
		return nil
	}
	return out
}

// SecretFor is the secret of a name whose values a cluster gets; false: it gets none. An error is *fleet.AmbiguousScopes.
func SecretFor(rec *storev1.SecretRecord, c fleet.Cluster) (SecretPart, bool, error) {
	parts := SecretParts(rec)
	scopes := make([]fleet.SecretScope, len(parts))
	for i, p := range parts {
		scopes[i] = p.Scope
	}
	i, err := fleet.PickSecretScope(scopes, &c)
	if err != nil || i < 0 {
		return SecretPart{}, false, err
	}
	return parts[i], true, nil
}

// AsLabelled reports that a sync is what its revision comes to for a cluster with its labels and annotations of now: that of other ones stays
// until the new one is rendered and can be assigned. What cannot be told of is as it should be.
func AsLabelled(r store.Reader, s *fleet.Sync, c fleet.Cluster) bool {
	rev, _, ok := store.Get[*storev1.RevisionRecord](store.Untracked(r), store.RevisionKey(s.Module, s.Revision))
	if !ok || len(rev.GetRevision().GetSpec().GetBindings())+len(rev.GetRevision().GetSpec().GetOverrides()) == 0 {
		return true
	}
	m, err := wire.ModuleFromProto(ModuleOfRevision(s.Module, rev))
	if err != nil {
		return true
	}
	if values, err := assemble.Values(m.Bindings, c); err != nil || !maps.Equal(values, s.Values) {
		return false
	}
	if !HasVariants(rev) {
		return true
	}
	v, err := VariantIn(rev, VariantFor(r, s.Module, rev, m.Overrides, c))
	return err == nil && Digest(v.GetBundle()) == s.Bundle
}

// FetchingUsers are the modules whose sources use a secret, or the calls that ask for a look at them, and after them the catalogs, as catalog/NAME.
func FetchingUsers(r store.Reader, secret fleet.ModuleRef) (out []string) {
	store.Scan(r, store.ModulePrefix+secret.Project+"/", func(rec *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if ok && rec.GetDeleting() == "" && slices.Contains(SecretNames(rec.GetModule().GetSpec().GetSource()), secret.Name) {
			out = append(out, ref.Name)
		}
		return true
	})
	for _, name := range CatalogSecretUsers(r, secret.Project)[secret] {
		out = append(out, fleet.CatalogOrigin(name))
	}
	return out
}
