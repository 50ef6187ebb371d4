package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// secretsPerFrame is how many bytes of sealed values a frame has at most, but for one that is larger by itself.
const secretsPerFrame = 256 << 10

// maxSecretSets is how many sets of policies are remembered by the secrets that they use.
const maxSecretSets = 10_000

// secretSets remembers which secrets the bindings of policy sets use. It is safe for concurrent use.
type secretSets struct {
	mu sync.Mutex
	of map[fleet.Digest][]fleet.SecretKey
}

// use are the secrets of the bindings in a policy set, by its digest.
func (s *Server) use(ctx context.Context, d fleet.Digest) ([]fleet.SecretKey, error) {
	if d.IsZero() {
		return nil, nil
	}
	s.secrets.mu.Lock()
	keys, known := s.secrets.of[d]
	s.secrets.mu.Unlock()
	if known {
		return keys, nil
	}
	content, err := s.o.Bundles.Content(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("policies %s: %w", d.Short(), err)
	}
	set, err := wire.PolicySetFromContent(content)
	if err != nil {
		return nil, fmt.Errorf("policies %s: %w", d.Short(), err)
	}
	for _, b := range set.Bindings {
		if b.Secret != nil {
			keys = append(keys, *b.Secret)
		}
	}
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	if s.secrets.of == nil || len(s.secrets.of) >= maxSecretSets {
		s.secrets.of = map[fleet.Digest][]fleet.SecretKey{}
	}
	s.secrets.of[d] = keys
	return keys, nil
}

// usedSecret is what the modules of a cluster use of a secret.
type usedSecret struct {
	keys []string
	by   []*fleet.Sync
}

// used are the secrets that the modules of the cluster use, as the records say that were read last. A module whose policies
// cannot be read is not taken by the agent either, and keeps back nothing of the others. Where they can be read later, nobody would: that is an
// error, and ends the session.
func (x *session) used(ctx context.Context) (map[fleet.ModuleRef]usedSecret, error) {
	out := map[fleet.ModuleRef]usedSecret{}
	for i := range x.known.read {
		s := x.known.read[i].sync
		if s == nil {
			continue
		}
		keys, err := x.server.use(ctx, s.Policies)
		switch {
		case errors.Is(err, fleet.ErrUnavailable), err != nil && ctx.Err() != nil:
			return nil, err
		case err != nil:
			x.log.Warn("secrets of a module are not sent: which it uses cannot be read", "module", s.Module.String(), "error", err)
		}
		for _, k := range keys {
			ref := fleet.ModuleRef{Project: s.Module.Project, Name: k.Name}
			out[ref] = usedSecret{append(out[ref].keys, k.Key), append(out[ref].by, s)}
		}
	}
	return out, nil
}

// sendSecrets sends the agent all values that its modules use, sealed for it, if any of them changed since it was sent them last.
func (x *session) sendSecrets(ctx context.Context, st stream) error {
	if len(x.hello.GetSealingKey()) == 0 || !slices.Contains(x.hello.GetFeatures(), wire.FeatureSecretBindings) || !x.machine.takes() {
		return nil
	}
	used, err := x.used(ctx)
	if err != nil {
		return err
	}
	x.usesSecrets.Store(len(used) > 0)
	if len(used) == 0 && x.sentSecrets == "" {
		return nil
	}
	records, state, err := x.secretRecords(ctx, used)
	if err != nil || state == x.sentSecrets {
		return err
	}
	var list []*agentv1.SealedSecret
	for _, ref := range sortedRefs(used) {
		list = append(list, x.seal(ref, records[ref], used[ref].keys))
	}
	for _, frame := range secretFrames(list, x.known.made.assemblage.Digest) {
		if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Secrets{Secrets: frame}}); err != nil {
			return err
		}
	}
	x.sentSecrets, x.scopes = state, map[fleet.ModuleRef]fleet.SecretScope{}
	for ref, rec := range records {
		if rec.problem == nil {
			x.scopes[ref] = rec.Scope
		}
	}
	return nil
}

// secretFor is the secret of a name that is for the cluster, and the revision of its write. There is none, or problem says why it cannot be told
// which.
type secretFor struct {
	record.SecretPart
	revision int64
	problem  error
	absent   bool // the problem is that nobody has set a value for the cluster
}

// secretRecords are the secrets that are used as they are for this cluster, and a text that is another one whenever what is to be sent is.
func (x *session) secretRecords(ctx context.Context, used map[fleet.ModuleRef]usedSecret) (map[fleet.ModuleRef]secretFor, string, error) {
	records, state := map[fleet.ModuleRef]secretFor{}, "secrets"
	err := x.server.o.Store.View(ctx, 0, func(r store.Reader) error {
		cluster := record.Cluster(x.server.clusterRecord(r, x.cluster))
		cluster.Name, x.keepsBack = x.cluster, false
		for _, ref := range sortedRefs(used) {
			keys := slices.Compact(slices.Sorted(slices.Values(used[ref].keys)))
			s := x.readSecret(r, ref, used[ref].by, cluster)
			records[ref] = s
			state += fmt.Sprintf("\n%s %q %s %x %v", ref, keys, s.Scope, s.Values.GetNonce(), s.problem)
		}
		return nil
	})
	return records, state, err
}

// readSecret is what the store has of a secret for the cluster.
func (x *session) readSecret(r store.Reader, ref fleet.ModuleRef, by []*fleet.Sync, cluster fleet.Cluster) secretFor {
	key := store.SecretKey(ref.Project, ref.Name)
	if store.DamageOf(r, key) != nil {
		return secretFor{problem: secrets.Damaged(ref.Project, ref.Name)}
	}
	rec, e, stored := store.Get[*storev1.SecretRecord](r, key)
	part, ok, err := record.SecretFor(rec, cluster)
	if kept, is := x.keptBack(r, ref, rec, part, by, cluster); is {
		kept.revision, x.keepsBack = e.ModRevision, true
		return kept
	}
	switch {
	case err != nil:
		return secretFor{problem: fmt.Errorf("secret %s: %w", ref.Display(), err)}
	case !ok && stored:
		return secretFor{absent: true, problem: fleet.Errorf(fleet.ErrNotFound, "secret %s has no values for cluster %s: towline secret set %s --cluster %s KEY=-",
			ref.Display(), cluster.Name, ref.Display(), cluster.Name)}
	case !ok:
		return secretFor{absent: true, problem: secrets.Missing(ref.Project, ref.Name)}
	}
	return secretFor{SecretPart: part, revision: e.ModRevision}
}

// keptBack is what the cluster has instead of a secret which is for it by its labels of now, while a module is there as it was made for other
// labels, which would get values of one kind of cluster with the objects of another one: what it was sent before, as it is now. What was sent
// in another session is not known, and the agent keeps it.
func (x *session) keptBack(r store.Reader, ref fleet.ModuleRef, rec *storev1.SecretRecord, part record.SecretPart, by []*fleet.Sync, cluster fleet.Cluster) (secretFor, bool) {
	byLabels := slices.ContainsFunc(record.SecretParts(rec), func(p record.SecretPart) bool { return p.Scope.Labels != "" })
	before, sent := x.scopes[ref]
	if !byLabels || part.Scope.Cluster != "" || sent && part.Values != nil && before == part.Scope {
		return secretFor{}, false
	}
	i := slices.IndexFunc(by, func(s *fleet.Sync) bool { return !record.AsLabelled(r, s, cluster) })
	if i < 0 {
		return secretFor{}, false
	}
	asNow := slices.ContainsFunc(by, func(s *fleet.Sync) bool { return record.AsLabelled(r, s, cluster) }) // to which those of before do not belong
	if kept, has := record.PartOf(rec, before); sent && has && !asNow {
		return secretFor{SecretPart: kept}, true
	}
	return secretFor{problem: fleet.Errorf(fleet.ErrPrecondition, "secret %s: which values are for cluster %s by its labels is told once module %s is there by them, too",
		ref.Display(), cluster.Name, by[i].Module.Display())}, true
}

// seal is one secret for the agent, or why it gets none.
func (x *session) seal(ref fleet.ModuleRef, rec secretFor, keys []string) *agentv1.SealedSecret {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	out := &agentv1.SealedSecret{Project: ref.Project, Name: ref.Name, Keys: keys}
	if rec.problem != nil {
		out.Problem, out.Absent = rec.problem.Error(), rec.absent
		return out
	}
	values, err := x.server.o.Secrets.Open(ref.Project, ref.Name, rec.Scope, rec.Values)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	maps.DeleteFunc(values, func(key string, _ []byte) bool { return !slices.Contains(keys, key) })
	sealed, err := wire.SealSecret(x.hello.GetSealingKey(), ref.Project, ref.Name, values)
	if err != nil {
		x.log.Warn("a secret is not sealed for the agent", "secret", ref.String(), "error", err)
		out.Problem = "the hub cannot seal it for the agent: " + err.Error()
		return out
	}
	sealed.Keys, sealed.Scope = keys, "*"
	if !rec.Scope.Everywhere() {
		sealed.Scope = rec.Scope.String()
	}
	sealed.Version, sealed.ChangedMillis = rec.revision, rec.Secret.GetChanged().AsTime().UnixMilli()
	return sealed
}

func sortedRefs(used map[fleet.ModuleRef]usedSecret) []fleet.ModuleRef {
	return slices.SortedFunc(maps.Keys(used), func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) })
}

// secretFrames are secrets in as many frames as they need, for the agent that is to have an assemblage.
func secretFrames(list []*agentv1.SealedSecret, assemblage fleet.Digest) []*agentv1.Secrets {
	frames, size := []*agentv1.Secrets{{First: true, ResultsIn: assemblage.Bytes()}}, 0
	for _, s := range list {
		if size += len(s.GetSealed()); size > secretsPerFrame && len(frames[len(frames)-1].GetSecrets()) > 0 {
			frames, size = append(frames, &agentv1.Secrets{}), len(s.GetSealed())
		}
		newest := frames[len(frames)-1]
		newest.Secrets = append(newest.Secrets, s)
	}
	frames[len(frames)-1].Last = true
	return frames
}
