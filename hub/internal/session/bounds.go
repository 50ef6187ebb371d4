package session

import (
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What one cluster may make the hub keep. An agent may be broken, or not ours at all: it must not fill the store.
const (
	// maxStrays is how many modules a session may report on that its cluster was not given.
	maxStrays = 20
	// defaultReportBytes is how large the reports of a cluster may be together.
	defaultReportBytes = 16 << 20
	// maxDigestBytes is how long a digest may be.
	maxDigestBytes = 32
	// plainReport is how large a report may be without a look at what its words are: most are a few hundred bytes.
	plainReport = 2 << 10
)

// excess counts what a session did not keep.
type excess struct {
	unasked       uint64
	unaskedModule string
	shortened     uint64
}

// checked is a report that the protocol allows, its words cut to what the protocol allows.
func checked(st *agentv1.SyncStatus) (*agentv1.SyncStatus, error) {
	value, err := wire.SyncStatusFromProto(st)
	if err != nil || proto.Size(st) <= plainReport {
		return st, err
	}
	return wire.SyncStatusToProto(value), nil
}

// unasked are the modules of a frame that the cluster was not given, and those of which the hub keeps reports already.
func (r *reports) unasked(rd store.Reader, refs []fleet.ModuleRef) (unasked, kept map[fleet.ModuleRef]bool) {
	for _, ref := range refs {
		if _, wanted := rd.Get(store.DesiredKey(r.x.cluster, ref)); wanted {
			continue
		}
		if unasked == nil {
			unasked = map[fleet.ModuleRef]bool{}
		}
		unasked[ref] = true
	}
	if unasked == nil {
		return nil, nil
	}
	kept = map[fleet.ModuleRef]bool{}
	rd.Scan(store.ObservedPrefix+string(r.x.cluster)+"/", func(e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok {
			if _, wanted := rd.Get(store.DesiredKey(r.x.cluster, ref)); !wanted {
				kept[ref] = true
			}
		}
		return true
	})
	return unasked, kept
}

// admit reports whether the hub keeps a report on a module that the cluster was not given: of a few, which a person must
// see. That one is gone of which the hub knows nothing is no news.
func (r *reports) admit(ref fleet.ModuleRef, st *agentv1.SyncStatus, kept map[fleet.ModuleRef]bool) bool {
	for k := range kept {
		r.strays[k] = true
	}
	switch {
	case r.strays[ref]:
		return true
	case st.GetPhase() == string(fleet.PhaseRemoved):
		return false
	case len(r.strays) < maxStrays:
		r.strays[ref] = true
		return true
	}
	r.excess.unasked++
	r.excess.unaskedModule = ref.String()
	return false
}

// holdings are the sizes of a cluster's reports in the store. Only the committing goroutine touches them.
type holdings struct {
	bytes map[string]int
	total int
}

func (r *reports) holdings(rd store.Reader) holdings {
	h := holdings{bytes: map[string]int{}}
	store.Scan(rd, store.ObservedPrefix+string(r.x.cluster)+"/", func(o *storev1.ObservedRecord, e store.Entry) bool {
		h.set(e.Key, proto.Size(o))
		return true
	})
	return h
}

func (h *holdings) set(key string, bytes int) {
	h.total += bytes - h.bytes[key]
	if h.bytes[key] = bytes; bytes == 0 {
		delete(h.bytes, key)
	}
}

func (h *holdings) with(key string, bytes int) int { return h.total + bytes - h.bytes[key] }

// after is the total with all of the ops.
func (h *holdings) after(ops []store.Op) int {
	total := h.total
	for _, op := range ops {
		total += sizeOf(op) - h.bytes[op.Key]
	}
	return total
}

func sizeOf(op store.Op) int {
	if op.Delete {
		return 0
	}
	return proto.Size(op.Value)
}

// bounded keeps the reports of the cluster within their limit together: one that goes over it loses its sentences, and is
// dropped if that is not enough. So is the one before it then, which says what is not so any more. The leader deletes records
// too, so that they are counted anew before anything is lost. In a store that is full every long report loses its sentences:
// the reserve is for what must always be possible, and a fleet that fails everywhere says much.
func (r *reports) bounded(rd store.Reader, ops []store.Op) []store.Op {
	limit, full := r.x.server.o.MaxReportBytes, r.x.server.o.Store.Full() != nil
	if r.held.bytes == nil || r.held.after(ops) > limit {
		r.held = r.holdings(rd)
	}
	kept := ops[:0]
	for _, op := range ops {
		n := sizeOf(op)
		if n > 0 && r.held.with(op.Key, n) > limit || n > plainReport && full {
			n = r.shorten(op)
		}
		if n > 0 && r.held.with(op.Key, n) > limit {
			op, n, r.lossy = store.Op{Key: op.Key, Delete: true}, 0, true
		}
		r.held.set(op.Key, n)
		kept = append(kept, op)
	}
	return kept
}

// shorten leaves only the states of a report, and returns how large it is then.
func (r *reports) shorten(op store.Op) int {
	if rec, ok := op.Value.(*storev1.ObservedRecord); ok {
		rec.Status = statesOnly(rec.GetStatus())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.excess.shortened++
	return sizeOf(op)
}

// statesOnly is a report without sentences about objects.
func statesOnly(st *agentv1.SyncStatus) *agentv1.SyncStatus {
	value, err := wire.SyncStatusFromProto(st)
	if err != nil {
		return st // it was checked when it came
	}
	value.Exceptions = nil
	for i := range value.Extras {
		value.Extras[i].Reason, value.Extras[i].Message = "", ""
	}
	for i := range value.Holds {
		value.Holds[i].Reason = ""
	}
	return wire.SyncStatusToProto(value)
}

// refusals are those of modules that the cluster was given, their sentences cut to what the protocol allows.
func (r *reports) refusals(rd store.Reader, in []*agentv1.Refusal) []*agentv1.Refusal {
	var out []*agentv1.Refusal
	seen := map[fleet.ModuleRef]bool{}
	for _, x := range in {
		ref, err := fleet.ParseModuleRef(x.GetModule())
		if err != nil || seen[ref] {
			continue
		}
		if _, wanted := rd.Get(store.DesiredKey(r.x.cluster, ref)); !wanted {
			continue
		}
		seen[ref] = true
		out = append(out, &agentv1.Refusal{Module: ref.String(), Generation: x.GetGeneration(), Code: wire.CutText(x.GetCode()), Message: wire.CutText(x.GetMessage())})
	}
	return out
}
