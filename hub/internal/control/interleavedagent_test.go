package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// kube is a Kubernetes cluster with its agent, which does in one act what it is told, and reports it.
type kube struct {
	name   fleet.ClusterName
	uid    string
	serial string
	epoch  uint64
	fence  store.Fence
	opened registry.Opened
	leaf   *x509.Certificate
	// incarnation is that of the store which the agent follows, empty: none yet, and generation the last one of it that it was told.
	incarnation string
	generation  uint64
	up          bool
	fails       map[fleet.ModuleRef]bool
	has         map[fleet.ModuleRef][]fleet.ObjectID
	// kept is what keepLegacy keeps there, with the revision that listed it last, and revision what it was given last of a module.
	kept     map[fleet.ModuleRef]map[fleet.ObjectID]int64
	revision map[fleet.ModuleRef]int64
	// removed is the last removal of a module that the hub was told is done, by its generation, and left that it was told that all is let go.
	removed map[fleet.ModuleRef]uint64
	left    bool
}

// joins has another Kubernetes cluster join under a name, whether there was one or not, or the same one again.
func (w *interleaved) joins(name fleet.ClusterName) {
	w.joinsAs(name, func() bool { return w.tape.pick(3) == 2 })
}

// joinsAs has a Kubernetes cluster join under a name: the one that has it, if there is one, or another one.
func (w *interleaved) joinsAs(name fleet.ClusterName, same func() bool) {
	req := &towlinev1.JoinClusterRequest{Name: string(name), Labels: map[string]string{"zone": one(w.tape, "x", "y")}}
	got, err := w.api.JoinCluster(w.ctx, req)
	if err != nil {
		req.Labels, req.Reissue = nil, true
		got, err = w.api.JoinCluster(w.ctx, req)
	}
	if err != nil {
		w.note("join %s: %v", name, err)
		return
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	w.must(err)
	k := w.kubes[name]
	if k == nil || !same() {
		k = &kube{name: name, uid: fmt.Sprintf("uid-%d", len(w.made)+1), up: true, fails: map[fleet.ModuleRef]bool{}, has: map[fleet.ModuleRef][]fleet.ObjectID{},
			kept: map[fleet.ModuleRef]map[fleet.ObjectID]int64{}, revision: map[fleet.ModuleRef]int64{}, removed: map[fleet.ModuleRef]uint64{}}
		w.made[k.uid] = k
	}
	w.single.begins(w)
	defer w.single.ends(w)
	id, err := w.registry.Enroll(w.ctx, registry.Enrollment{Token: got.GetToken(), CSR: csr, ClusterUID: k.uid, Remote: "192.0.2.1:5"})
	w.note("join %s as %s: %v", name, k.uid, err)
	if err != nil {
		return
	}
	leaf, err := x509.ParseCertificate(id.Certificates[0])
	w.must(err)
	k.serial, k.leaf = fmt.Sprintf("%032x", leaf.SerialNumber), leaf
	k.epoch, k.incarnation, k.generation = 0, "", 0
	w.kubes[name] = k
	w.ClusterChanged(name)
}

// opens has the agent open its session, if it has none that stands.
func (w *interleaved) opens(k *kube) bool {
	ctx := rpc.WithCaller(w.ctx, rpc.Caller{Kind: rpc.KindAgent, Name: string(k.name), Cluster: k.name, CertSerial: k.serial, Leaf: k.leaf})
	ahead := clusterOf(w.last, k.name).GetRegressed() != ""
	if k.epoch > 0 && (!ahead || !record.AcceptedRestore(store.Untracked(w.last), k.name)) {
		return !ahead
	}
	follows := hubOf(w.last).GetIncarnation()
	if k.incarnation != "" && k.incarnation != follows {
		follows = ""
	}
	o, err := w.registry.OpenSession(ctx, registry.Admission{Cluster: k.name, InstanceID: k.uid, ClusterUID: k.uid, Hub: "test", Features: wire.Features(), Follows: follows}, false)
	if err != nil {
		w.note("session of %s (%s): %v", k.name, k.uid, err)
		return false
	}
	k.epoch, k.fence, k.opened = o.Epoch, o.Fence, o
	w.ClusterChanged(k.name)
	return w.welcomes(k)
}

// acts has the agent do what it is told, and say so.
func (w *interleaved) acts(name fleet.ClusterName) {
	k := w.kubes[name]
	if k == nil || !k.up || clusterOf(w.last, name) == nil {
		return
	}
	w.single.begins(w)
	defer w.single.ends(w)
	if !w.opens(k) {
		return
	}
	puts := w.does(k)
	if w.single.loses(w) {
		return
	}
	for key, rec := range puts {
		if e, ok := w.last.Get(key); ok && sameWord(e.Value, rec) || !ok && rec == nil {
			delete(puts, key)
		}
	}
	if len(puts) == 0 {
		return
	}
	_, err := w.store.As(store.Session).Update(w.ctx, func(x store.Writer) error {
		x.Fence(k.fence)
		for key, rec := range puts {
			switch {
			case rec != nil:
				x.Put(key, rec)
			default:
				x.Delete(key)
			}
		}
		return nil
	})
	w.note("agent of %s (%s) reports: %v", name, k.uid, err)
	if err == nil {
		w.told(k, puts)
	}
	if err != nil { // the session is over
		k.epoch = 0
		w.ClusterChanged(name)
	}
}

// told notes what the hub knows of an agent by now.
func (w *interleaved) told(k *kube, puts map[string]recordOrNone) {
	for key, rec := range puts {
		_, ref, _ := store.SplitClusterModule(key)
		switch rec := rec.(type) {
		case *storev1.ObservedRecord:
			if rec.GetStatus().GetPhase() == string(fleet.PhaseRemoved) {
				k.removed[ref] = rec.GetStatus().GetGeneration()
			}
		case *storev1.AckRecord:
			k.left = k.left || rec.GetLeaving()
		}
	}
}

// sameWord reports that an agent has said the same before.
func sameWord(was, is proto.Message) bool {
	a, ok := was.(*storev1.ObservedRecord)
	b, too := is.(*storev1.ObservedRecord)
	if ok && too {
		return a.GetEpoch() == b.GetEpoch() && sameStatus(a.GetStatus(), b.GetStatus())
	}
	return is != nil && proto.Equal(was, is)
}

func sameStatus(a, b *agentv1.SyncStatus) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.ObservedMillis, b.ObservedMillis = 0, 0
	return proto.Equal(a, b)
}

// does is what the agent reports of what it is told now, as its session keeps it.
func (w *interleaved) does(k *kube) map[string]recordOrNone {
	puts := map[string]recordOrNone{}
	report := func(ref fleet.ModuleRef, st fleet.SyncStatus) {
		puts[store.ObservedKey(k.name, ref)] = &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st), Epoch: k.epoch, Since: time.Now().UnixMilli()}
	}
	var told uint64
	w.must(w.store.View(w.ctx, 0, func(r store.Reader) error {
		rec, _, _ := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(k.name))
		hold := held(r, k.name)
		stands := record.Stands(r)
		leaves := rec.GetRemoving() != "" && !stands
		store.Scan(r, store.DesiredPrefix+string(k.name)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
			told = max(told, record.GivenGeneration(d))
			_, ref, _ := store.SplitClusterModule(e.Key)
			switch {
			case leaves:
				if record.GivenGeneration(d) > 0 {
					report(ref, simagent.Removed(fleet.Tombstone{Module: ref, Generation: record.GivenGeneration(d)}))
				}
			case record.Elsewhere(d, record.DeletedTakes(r, ref, moduleOf(r, ref)), rec):
			case d.GetTombstone() != nil:
				dead, err := wire.TombstoneFromProto(d.GetTombstone())
				w.must(err)
				if !dead.Hold && !w.said.isOf(r, k.name, ref, d) {
					w.finds("%s in %s: %s is told a removal that was not ordered of it", ref.Name, k.name, k.uid)
				}
				report(ref, k.removes(dead, hold || stands))
			case d.GetSync() != nil:
				s, err := wire.SyncFromProto(d.GetSync())
				w.must(err)
				report(ref, w.applies(k, s, hold))
			}
			return true
		})
		store.Scan(r, store.ObservedPrefix+string(k.name)+"/", func(_ *storev1.ObservedRecord, e store.Entry) bool {
			_, ref, _ := store.SplitClusterModule(e.Key)
			if _, there := r.Get(store.DesiredKey(k.name, ref)); !there && len(k.has[ref]) == 0 {
				puts[e.Key] = nil
			}
			return true
		})
		puts[store.AckKey(k.name)] = &storev1.AckRecord{Epoch: k.epoch, Generation: told, StatusDigest: []byte("status"), Leaving: leaves, Told: told}
		k.generation = max(k.generation, told)
		return nil
	}))
	return puts
}

func (k *kube) removes(dead fleet.Tombstone, hold bool) fleet.SyncStatus {
	st := simagent.Removed(dead)
	if hold || dead.Hold {
		st.Phase, st.Reason = fleet.PhaseHeld, "Held"
		return st
	}
	delete(k.has, dead.Module)
	delete(k.kept, dead.Module)
	return st
}

func (w *interleaved) applies(k *kube, s fleet.Sync, hold bool) fleet.SyncStatus {
	st := simagent.Ready(s)
	if k.fails[s.Module] {
		st = simagent.Failing(s)
	}
	if hold || s.Hold {
		st.Ready, st.Phase, st.Reason = false, fleet.PhaseHeld, "Held"
		return st
	}
	b, err := w.o.Bundles.Get(w.ctx, s.Bundle)
	w.must(err)
	var lists, drops, keeps []fleet.ObjectID
	for _, e := range assemble.Resolved(b.Entries, s.Values) {
		lists = append(lists, e.ID)
	}
	for _, id := range k.has[s.Module] {
		if !slices.Contains(lists, id) {
			drops = append(drops, id)
		}
	}
	if !s.Policies.IsZero() {
		keeps, drops = w.keeps(k, s, drops, &st), nil
	}
	if many := len(drops) > 1 && 2*len(drops) > len(k.has[s.Module]); many {
		for _, id := range drops {
			if !s.PruneConfirmed || len(s.PruneShown) > 0 && !slices.Contains(s.PruneShown, assemble.HeirKey(id)) {
				keeps = append(keeps, id)
				st.Extras = append(st.Extras, fleet.ExtraObject{ID: id, Version: "v1", Held: true, Reason: "AwaitingConfirm"})
			} else if !w.said.confirmed[confirmation(id.String(), s.Module, k.uid)] {
				w.finds("%s in %s: %s deletes %s, about which nobody was asked", s.Module.Name, k.name, k.uid, id)
			}
		}
	}
	for _, id := range lists { // what a person let go before is asked about anew
		delete(w.said.confirmed, confirmation(id.String(), s.Module, k.uid))
		delete(k.kept[s.Module], id)
	}
	k.revision[s.Module] = s.Revision
	k.has[s.Module] = append(lists, keeps...)
	return st
}
