package api

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What a secret may hold, and a project of secrets: they go with the project in one transaction.
const (
	maxSecretKeys     = 100
	maxSecretKey      = 253
	maxSecretBytes    = 64 << 10
	maxProjectSecrets = 100
	stateReadable     = "Readable"
	stateUnreadable   = "Unreadable"
	secretKind        = "Secret"
	// maxScopedBytes is how much a secret takes in the store with all that it has for some clusters.
	maxScopedBytes     = 768 << 10
	allowedInSecretKey = `letters, digits, ".", "-" and "_"`
)

var secretKey = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// SetSecret makes a secret or changes values of one.
func (a *API) SetSecret(ctx context.Context, req *towlinev1.SetSecretRequest) (*towlinev1.SetSecretResponse, error) {
	ref, scope, err := scopedRef(req)
	if err != nil {
		return nil, err
	}
	shown := secrets.Scoped(ref.Project, ref.Name, scope)
	if err := checkSecret(req); err != nil {
		return nil, named("secret", shown, err)
	}
	resp := &towlinev1.SetSecretResponse{}
	set := func(w store.Writer) error {
		*resp = towlinev1.SetSecretResponse{}
		return a.setSecret(ctx, w, scoped{ref, scope}, req, resp)
	}
	if req.GetDryRun() {
		err = a.o.Store.View(ctx, 0, func(r store.Reader) error { return set(store.Dry(r)) })
	} else {
		resp.Revision, err = a.o.Store.Update(ctx, set)
	}
	if err != nil {
		return nil, named("secret", shown, err)
	}
	if resp.GetResult() != resultUnchanged {
		resp.Secret.Metadata.ResourceVersion = resp.GetRevision()
	}
	return resp, a.o.Store.View(ctx, resp.GetRevision(), func(r store.Reader) error {
		resp.Secret.UsedBy = usersOf(r, ref)
		return nil
	})
}

// secretRef names a secret: it is one of its project, as a module is.
func secretRef(proj, name string) (fleet.ModuleRef, error) {
	ref := fleet.ModuleRef{Project: project(proj), Name: name}
	if err := fleet.ValidateLabel(ref.Project); err != nil {
		return ref, fleet.Invalid("project", err.Error())
	}
	if err := fleet.ValidateLabel(name); err != nil {
		return ref, fleet.Invalid("name", err.Error())
	}
	return ref, nil
}

// scoped names a secret, of which there may be others for other clusters.
type scoped struct {
	fleet.ModuleRef
	scope fleet.SecretScope
}

// display is the secret as the command line takes it.
func (s scoped) display() string { return secrets.Scoped(s.Project, s.Name, s.scope) }

// namesSecret is a request about a secret.
type namesSecret interface {
	GetProject() string
	GetName() string
	GetScope() *towlinev1.SecretScope
}

// scopedRef names the secret of a request, and which clusters it is for.
func scopedRef(req namesSecret) (fleet.ModuleRef, fleet.SecretScope, error) {
	ref, err := secretRef(req.GetProject(), req.GetName())
	if err != nil || req.GetScope() == nil {
		return ref, fleet.SecretScope{}, err
	}
	scope, err := fleet.NewSecretScope(req.GetScope().GetCluster(), req.GetScope().GetLabelSelector())
	if err != nil {
		return ref, scope, named("secret", ref.Display(), err)
	}
	return ref, scope, nil
}

// scopeToProto is nil for every cluster.
func scopeToProto(s fleet.SecretScope) *towlinev1.SecretScope {
	if s.Everywhere() {
		return nil
	}
	return &towlinev1.SecretScope{Cluster: string(s.Cluster), LabelSelector: s.Labels}
}

// checkSecret refuses what no secret may hold. No message has a value in it.
func checkSecret(req *towlinev1.SetSecretRequest) error {
	if len(req.GetValues()) == 0 && len(req.GetRemove()) == 0 {
		return fleet.Invalid("values", "has none: give KEY=VALUE")
	}
	for _, key := range slices.Concat(slices.Sorted(maps.Keys(req.GetValues())), req.GetRemove()) {
		if !secretKey.MatchString(key) || len(key) > maxSecretKey {
			return fleet.Invalidf("values", "%.40q is no key: use at most %d %s", key, maxSecretKey, allowedInSecretKey)
		}
	}
	for _, key := range req.GetRemove() {
		if _, both := req.GetValues()[key]; both {
			return fleet.Invalidf("remove", "%s is to be set, too", key)
		}
	}
	return checkSize(req.GetValues())
}

func checkSize(values map[string][]byte) error {
	total := 0
	for key, value := range values {
		total += len(key) + len(value)
	}
	if len(values) > maxSecretKeys {
		return fleet.Errorf(fleet.ErrExhausted, "values: has %d keys; at most %d", len(values), maxSecretKeys)
	}
	if total > maxSecretBytes {
		return fleet.Errorf(fleet.ErrExhausted, "values: has %d bytes; at most %d", total, maxSecretBytes)
	}
	return nil
}

func (a *API) setSecret(ctx context.Context, w store.Writer, ref scoped, req *towlinev1.SetSecretRequest, resp *towlinev1.SetSecretResponse) error {
	project, _, ok := store.Get[*storev1.ProjectRecord](w, store.ProjectPrefix+ref.Project)
	if !ok && ref.Project != fleet.DefaultProject {
		return fleet.NotFound(projectObject(ref.Project), "project %s does not exist; apply a Project of that name first", ref.Project)
	}
	key := store.SecretKey(ref.Project, ref.Name)
	rec, entry, err := storedSecret(w, ref, req.GetReplace())
	if err != nil {
		return err
	}
	old, has := record.PartOf(rec, ref.scope)
	prev := old.Secret.GetMetadata()
	if err := record.AsSeen(w, key, secrets.Object(ref.Project, ref.Name), prev, &towlinev1.Metadata{Uid: req.GetUid(), ResourceVersion: req.GetResourceVersion()}); err != nil {
		return err
	}
	have, err := a.valuesOf(ref.ModuleRef, old)
	if err != nil && !req.GetReplace() {
		return err
	}
	want := merged(have, req)
	if len(want) == 0 {
		return fleet.Forbids(secrets.Object(ref.Project, ref.Name), "would have no value left; to delete it: towline delete secret %s", ref.display())
	}
	if err := checkSize(want); err != nil {
		return err
	}
	if err == nil && has && old.Values.GetKeyId() == a.o.Keys.NewestID() && maps.EqualFunc(have, want, bytes.Equal) {
		resp.Result, resp.Secret = resultUnchanged, a.showSecret(ref.ModuleRef, old, entry.ModRevision)
		return nil
	}
	if err := mayScope(w, ref, rec, has); err != nil {
		return err
	}
	next := record.SecretPart{Scope: ref.scope, Secret: a.nextSecret(ctx, ref, req, prev)}
	next.Secret.Keys = slices.Sorted(maps.Keys(want))
	if next.Values, err = a.o.Keys.Seal(ref.Project, ref.Name, ref.scope, want); err != nil {
		return err
	}
	resp.Result = putResult(!has, true)
	if err := a.roomForSecret(w, ref, rec, ok, project, next); err != nil {
		return err
	}
	stored := record.WithPart(rec, next)
	if n := proto.Size(stored); n > maxScopedBytes {
		return fleet.Errorf(fleet.ErrExhausted, "has %d bytes with its values for all clusters; at most %d: use several secrets", n, maxScopedBytes)
	}
	w.Grows()
	w.Put(key, stored)
	resp.Secret = a.showSecret(ref.ModuleRef, next, 0)
	return nil
}

// storedSecret is the record of a secret; nil: there is none, or it is damaged and to be replaced.
func storedSecret(w store.Writer, ref scoped, replace bool) (*storev1.SecretRecord, store.Entry, error) {
	key := store.SecretKey(ref.Project, ref.Name)
	if store.DamageOf(w, key) != nil {
		switch {
		case !ref.scope.Everywhere():
			return nil, store.Entry{}, damagedWhole(ref)
		case !replace:
			return nil, store.Entry{}, secrets.Damaged(ref.Project, ref.Name)
		}
		return nil, store.Entry{}, nil
	}
	rec, entry, _ := store.Get[*storev1.SecretRecord](w, key)
	return rec, entry, nil
}

// mayScope says why a secret cannot be for some clusters only: a source uses it, or there is a cluster of which it could not be told which
// values it gets. Those that are there may always get other values.
func mayScope(w store.Writer, ref scoped, rec *storev1.SecretRecord, has bool) error {
	if ref.scope.Everywhere() || has {
		return nil
	}
	if users := record.FetchingUsers(w, ref.ModuleRef); len(users) > 0 {
		return fleet.Forbids(secrets.Object(ref.Project, ref.Name), "the source of %s uses it, and is fetched for all clusters: give it no --cluster and no -l, or take another name for what only some clusters get", usersText(users))
	}
	next := record.WithPart(rec, record.SecretPart{Scope: ref.scope, Secret: &towlinev1.Secret{Scope: scopeToProto(ref.scope)}})
	for _, c := range record.Clusters(store.Untracked(w)) {
		if _, _, err := record.SecretFor(next, record.Cluster(c)); err != nil {
			return err
		}
	}
	return nil
}

// valuesOf are the values that a secret has; nil: there is none.
func (a *API) valuesOf(ref fleet.ModuleRef, part record.SecretPart) (map[string][]byte, error) {
	if part.Secret == nil {
		return nil, nil
	}
	return a.o.Keys.Open(ref.Project, ref.Name, part.Scope, part.Values)
}

// merged is what a secret has after a request.
func merged(have map[string][]byte, req *towlinev1.SetSecretRequest) map[string][]byte {
	want := map[string][]byte{}
	if !req.GetReplace() {
		maps.Copy(want, have)
	}
	maps.Copy(want, req.GetValues())
	for _, key := range req.GetRemove() {
		delete(want, key)
	}
	return want
}

func (a *API) nextSecret(ctx context.Context, ref scoped, req *towlinev1.SetSecretRequest, prev *towlinev1.Metadata) *towlinev1.Secret {
	now := timestamppb.New(a.now())
	meta := &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: prev.GetUid(), Generation: prev.GetGeneration() + 1,
		CreationTimestamp: prev.GetCreationTimestamp(), ChangedBy: who(ctx), ChangeReason: req.GetReason()}
	if meta.Uid == "" {
		meta.Uid, meta.CreationTimestamp = string(uuid.NewUUID()), now
	}
	return &towlinev1.Secret{ApiVersion: fleet.APIVersion, Kind: secretKind, Metadata: meta, Changed: now, Scope: scopeToProto(ref.scope)}
}

// roomForSecret says why a project or a secret takes no more. Who deletes the project in this moment finds it changed.
func (a *API) roomForSecret(w store.Writer, ref scoped, rec *storev1.SecretRecord, stored bool, project *storev1.ProjectRecord, next record.SecretPart) error {
	if rec != nil {
		return nil
	}
	others := slices.DeleteFunc(secretKeys(w, ref.Project), func(key string) bool { return key == store.SecretKey(ref.Project, ref.Name) })
	if n := len(others); n >= maxProjectSecrets { // a damaged one is not there as one, and makes room for itself
		return fleet.Errorf(fleet.ErrExhausted, "project %s has %d secrets; at most %d: delete those that nothing uses, or put several values into one", ref.Project, n, maxProjectSecrets)
	}
	if stored {
		changed := proto.CloneOf(project)
		changed.NewestSecret = next.Secret.GetMetadata().GetUid()
		w.Put(store.ProjectPrefix+ref.Project, changed)
	}
	return nil
}

// secretKeys are the keys of a project's secrets, with those of damaged records.
func secretKeys(r store.Reader, project string) (keys []string) {
	r.Scan(store.SecretsOf(project), func(e store.Entry) bool {
		keys = append(keys, e.Key)
		return true
	})
	for _, d := range r.Damaged(store.SecretsOf(project)) {
		keys = append(keys, d.Key)
	}
	return keys
}

// showSecret is a secret as people see it: without values.
func (a *API) showSecret(ref fleet.ModuleRef, part record.SecretPart, version int64) *towlinev1.Secret {
	s := proto.CloneOf(part.Secret)
	s.Metadata.ResourceVersion = version
	s.State, s.KeyId = stateReadable, part.Values.GetKeyId()
	_, err := a.valuesOf(ref, part)
	var why *secrets.Unreadable
	if errors.As(err, &why) {
		s.State, s.Reason, s.Facts = stateUnreadable, why.Reason, &towlinev1.Facts{Detail: why.Detail}
	}
	return s
}

// damagedWhole refuses to change one of the secrets in a damaged record: what the others have would go with it, and which there were cannot
// be told.
func damagedWhole(ref scoped) error {
	shown := secrets.Display(ref.Project, ref.Name)
	return fleet.Errorf(fleet.ErrCorrupt, "secret %s: the hub's record of %s is damaged, with all that it has for other clusters, which is not dropped for this: "+
		"put a backup back, or delete all of it (towline secret delete %s) and set anew what is for every cluster, and what is for some",
		ref.display(), shown, shown)
}

func damagedSecret(ref fleet.ModuleRef) *towlinev1.Secret {
	return &towlinev1.Secret{ApiVersion: fleet.APIVersion, Kind: secretKind, Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project},
		State: stateDamaged, Reason: fleet.SecretDamaged}
}

// usersOf are the modules and catalogs that use a secret.
func usersOf(r store.Reader, ref fleet.ModuleRef) []string {
	return record.AllSecretUsers(r, ref.Project)[ref]
}

// unscoped says which secret a source cannot use: what it has is for some clusters only, or may be.
func unscoped(r store.Reader, project string, src *towlinev1.Source) error {
	for _, name := range record.SecretNames(src) {
		key := store.SecretKey(project, name)
		if store.DamageOf(r, key) != nil {
			continue // the fetch says so
		}
		rec, _, _ := store.Get[*storev1.SecretRecord](r, key)
		if len(rec.GetScoped()) > 0 {
			return fleet.Invalidf("source.secretName", "secret %s has values for some clusters only (%s), and a source is fetched for all: name another one", secrets.Display(project, name),
				record.SecretParts(rec)[len(record.SecretParts(rec))-1].Scope)
		}
	}
	return nil
}

// missingSecrets warns of the secrets that a module uses and that are not there.
func missingSecrets(r store.Reader, m *wire.Module) []*towlinev1.Note {
	var out []*towlinev1.Note
	source := proto.CloneOf(m.Source)
	source.Follow = nil // no rollout waits for the secret of calls
	names := record.SecretNames(source)
	for _, b := range m.Bindings {
		if b.Secret != nil && !slices.Contains(names, b.Secret.Name) {
			names = append(names, b.Secret.Name)
		}
	}
	for _, name := range names {
		key := store.SecretKey(m.Ref.Project, name)
		if _, ok := store.Untracked(r).Get(key); !ok && store.DamageOf(r, key) == nil {
			out = append(out, note(fleet.WarnNoSecret, &towlinev1.Facts{Names: []string{secrets.Display(m.Ref.Project, name)}}))
		}
	}
	return out
}

// GetSecret reads one.
func (a *API) GetSecret(ctx context.Context, req *towlinev1.GetSecretRequest) (*towlinev1.GetSecretResponse, error) {
	ref, scope, err := scopedRef(req)
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetSecretResponse{}
	return resp, a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		key := store.SecretKey(ref.Project, ref.Name)
		if store.DamageOf(r, key) != nil {
			resp.Secret = damagedSecret(ref)
		} else {
			rec, e, _ := store.Get[*storev1.SecretRecord](r, key)
			part, ok := record.PartOf(rec, scope)
			if !ok {
				return noPart(scoped{ref, scope}, rec)
			}
			resp.Secret = a.showSecret(ref, part, e.ModRevision)
		}
		resp.Secret.UsedBy = usersOf(r, ref)
		return nil
	})
}

// noPart says that there is no secret for a scope, and what others there are of its name.
func noPart(ref scoped, rec *storev1.SecretRecord) error {
	parts := record.SecretParts(rec)
	if len(parts) == 0 {
		return secrets.Missing(ref.Project, ref.Name)
	}
	var others []string
	for _, p := range parts {
		others = append(others, secrets.Scoped(ref.Project, ref.Name, p.Scope))
	}
	if len(others) > maxNamed {
		others = append(others[:maxNamed:maxNamed], "…")
	}
	return fleet.NotFound(secrets.Object(ref.Project, ref.Name), "secret %s is not there; there is: %s", ref.display(), strings.Join(others, ", "))
}

// ListSecrets reads them.
func (a *API) ListSecrets(ctx context.Context, req *towlinev1.ListSecretsRequest) (*towlinev1.ListSecretsResponse, error) {
	prefix := store.SecretPrefix
	if req.GetProject() != "" {
		prefix = store.SecretsOf(req.GetProject())
	}
	resp := &towlinev1.ListSecretsResponse{}
	return resp, a.view(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		var lines []line[*towlinev1.Secret]
		users := record.AllSecretUsers(r, req.GetProject())
		add := func(key string, scope fleet.SecretScope, show func(fleet.ModuleRef) *towlinev1.Secret) {
			proj, name, ok := store.SplitSecret(key)
			if !ok || req.GetName() != "" && name != req.GetName() {
				return
			}
			ref := fleet.ModuleRef{Project: proj, Name: name}
			lines = append(lines, line[*towlinev1.Secret]{key: proj + "\x00" + name + "\x00" + scope.String(), show: func() *towlinev1.Secret {
				s := show(ref)
				s.UsedBy = users[ref]
				return s
			}})
		}
		store.Scan(r, prefix, func(rec *storev1.SecretRecord, e store.Entry) bool {
			for _, part := range record.SecretParts(rec) {
				add(e.Key, part.Scope, func(ref fleet.ModuleRef) *towlinev1.Secret { return a.showSecret(ref, part, e.ModRevision) })
			}
			return true
		})
		for _, d := range r.Damaged(prefix) {
			add(d.Key, fleet.SecretScope{}, damagedSecret)
		}
		sortLines(lines)
		resp.Secrets, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
}

// DeleteSecret removes one that no module uses, or that is to go all the same.
func (a *API) DeleteSecret(ctx context.Context, req *towlinev1.DeleteSecretRequest) (*towlinev1.DeleteSecretResponse, error) {
	name, scope, err := scopedRef(req)
	if err != nil {
		return nil, err
	}
	ref := scoped{name, scope}
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		key := store.SecretKey(ref.Project, ref.Name)
		var left *storev1.SecretRecord
		if store.DamageOf(w, key) == nil {
			rec, _, _ := store.Get[*storev1.SecretRecord](w, key)
			part, ok := record.PartOf(rec, scope)
			if !ok {
				return noPart(ref, rec)
			}
			if err := fleet.SameUID(secrets.Object(ref.Project, ref.Name), part.Secret.GetMetadata().GetUid(), req.GetUid()); err != nil {
				return err
			}
			left = record.WithoutPart(rec, scope)
		} else if !scope.Everywhere() {
			return damagedWhole(ref)
		}
		if users := usersOf(w, name); len(users) > 0 && !req.GetUsed() {
			return fleet.Forbids(secrets.Object(ref.Project, ref.Name), "secret %s is used by %s: have them use another secret first", ref.display(), usersText(users))
		}
		if left != nil {
			w.Put(key, left)
		} else {
			w.Delete(key)
		}
		return nil
	})
	return &towlinev1.DeleteSecretResponse{Revision: rev}, err
}

// usersText says who uses a secret.
func usersText(users []string) string {
	first := slices.IndexFunc(users, func(name string) bool { return strings.Contains(name, "/") })
	switch first {
	case -1:
		return someOf("module", users)
	case 0:
		return strings.Join(users[:min(len(users), maxNamed)], ", ")
	}
	return someOf("module", users[:first]) + " and " + strings.Join(users[first:min(len(users), first+maxNamed)], ", ")
}

// maxNamed is how many names stand in a sentence.
const maxNamed = 5

// someOf is "module a", or "modules a, b", with the first of many.
func someOf(kind string, names []string) string {
	if len(names) > 1 {
		kind += "s"
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed:maxNamed], "…")
	}
	return kind + " " + strings.Join(names, ", ")
}
