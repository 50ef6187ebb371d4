package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestPruneHistories: 10,000 random histories of revisions, policies, failures, what other people do, and an agent that dies after
// any of its side effects. A naive model that knows who made each object, what the newest revision lists and what the last word on each
// object was finds nothing deleted that should stay, and nothing left that should go.
func TestPruneHistories(t *testing.T) {
	histories := uint64(10_000)
	if testing.Short() {
		histories = 500
	}
	total := tally{}
	for seed := range histories {
		h := newHistory(seed)
		for range 20 {
			h.step()
		}
		h.settle()
		h.leave()
		if len(h.wrong) > 0 {
			t.Fatalf("history %d: %v", seed, h.wrong)
		}
		total.add(h.tally)
	}
	t.Logf("%+v", total)
	for what, n := range map[string]int{"deletes": total.deletes, "crashes": total.crashes, "intents": total.intents, "foreign": total.foreign, "kept": total.kept, "made again": total.again} {
		if n < int(histories)/10 {
			t.Errorf("%s: only %d in all histories: they prove little", what, n)
		}
	}
}

// tally is how often what matters came about.
type tally struct{ deletes, crashes, intents, foreign, kept, again int }

func (x *tally) add(y tally) {
	x.deletes, x.crashes, x.intents = x.deletes+y.deletes, x.crashes+y.crashes, x.intents+y.intents
	x.foreign, x.kept, x.again = x.foreign+y.foreign, x.kept+y.kept, x.again+y.again
}

// livingObject is an object as the cluster has it.
type livingObject struct {
	uid    string
	ours   bool // the agent made it, whatever anybody believes
	marked bool // it carries the module's marks, whoever wrote them
}

type history struct {
	rand    *rand.Rand
	cluster map[fleet.ObjectID]*livingObject
	// records are durable.
	records    map[fleet.ObjectID]Record
	generation uint64
	desired    map[fleet.ObjectID]bool
	policies   []fleet.Policy
	hold, gone bool
	calm       bool // nothing fails any more
	uids       int
	effects    int // until the agent dies; below 0: it lives

	// never is the naive last word on each object.
	never map[fleet.ObjectID]bool
	wrong []string
	tally
}

var historyNames = []string{"a", "b", "c", "d", "e", "f"}

func newHistory(seed uint64) *history {
	h := &history{rand: rand.New(rand.NewPCG(seed, 1)), cluster: map[fleet.ObjectID]*livingObject{}, records: map[fleet.ObjectID]Record{},
		desired: map[fleet.ObjectID]bool{}, never: map[fleet.ObjectID]bool{}, effects: -1}
	h.put()
	return h
}

func (h *history) chance(n int) bool { return h.rand.IntN(n) == 0 }

// fails reports that something does not work out this time.
func (h *history) fails() bool { return !h.calm && h.chance(10) }

type died struct{}

// did counts a side effect, after which the agent may die.
func (h *history) did() {
	if h.effects--; h.effects == 0 {
		h.crashes++
		panic(died{})
	}
}

// living runs what the agent does until it dies.
func (h *history) living(run func()) {
	defer func() {
		h.effects = -1
		if x := recover(); x != nil && x != (died{}) {
			panic(x)
		}
	}()
	run()
}

func (h *history) step() {
	if h.chance(3) {
		h.effects = 1 + h.rand.IntN(12)
	}
	switch h.rand.IntN(6) {
	case 0:
		h.effects = -1
		h.put()
	case 1, 2:
		h.living(h.apply)
	case 3, 4:
		h.living(h.prune)
	case 5:
		h.effects = -1
		h.others()
	}
}

// put is a new revision: some objects, and a word on some.
func (h *history) put() {
	h.generation++
	h.desired, h.policies = map[fleet.ObjectID]bool{}, nil
	defer h.remember()
	for _, name := range historyNames {
		id, said := cm(name), ""
		if h.chance(4) {
			said = []string{fleet.PruneNever, fleet.PruneOnUpdate}[h.rand.IntN(2)]
			h.policies = append(h.policies, fleet.Policy{Match: fleet.PolicyMatch{Names: []string{name}}, Prune: said})
		}
		if h.chance(2) {
			h.desired[id] = true
		}
		r, known := h.records[id]
		if known && h.desired[id] { // noted as the revision is taken
			r.Prune = fleet.Resolve(h.policies, id, nil).Prune
			h.records[id] = r
		}
		if said != "" && known || h.desired[id] {
			h.never[id] = said == fleet.PruneNever
		}
	}
}

// remember notes what the revision says of what it does not list.
func (h *history) remember() {
	for id, r := range h.records {
		if !h.desired[id] {
			h.records[id] = Remember(h.policies, r)
		}
	}
}

// others are people and programs beside the agent.
func (h *history) others() {
	id := cm(historyNames[h.rand.IntN(len(historyNames))])
	switch h.rand.IntN(4) {
	case 0:
		delete(h.cluster, id)
	case 1: // another object under the name, perhaps a copy of ours with its marks
		h.cluster[id] = &livingObject{uid: h.uid(), marked: h.chance(2)}
	case 2:
		h.hold = !h.hold
	}
}

func (h *history) uid() string {
	h.uids++
	return fmt.Sprint("uid-", h.uids)
}

// apply writes what is listed, as far as nothing fails.
func (h *history) apply() {
	if h.hold {
		return
	}
	for _, id := range sorted(h.desired) {
		if h.fails() {
			continue // the API server does not take it
		}
		r, known := h.records[id]
		live := h.cluster[id]
		if live != nil && !h.mayWrite(r, known, id) {
			continue // a conflict
		}
		if !known {
			h.records[id] = Record{ID: id, Version: "v1", Module: shop, State: Intent, Lineage: 1, Prune: fleet.Resolve(h.policies, id, nil).Prune}
			h.intents++
			h.did()
		}
		if live == nil {
			if known {
				h.again++
			}
			live = &livingObject{uid: h.uid(), ours: true}
			h.cluster[id] = live
		}
		live.marked = true
		h.did()
		r = owned(id)
		r.UID, r.Generation, r.Born = live.uid, h.generation, h.generation
		r.Prune = fleet.Resolve(h.policies, id, nil).Prune
		h.records[id] = r
		h.did()
	}
}

// mayWrite reports that a live object is the module's, by its record or by what stands on it.
func (h *history) mayWrite(r Record, known bool, id fleet.ObjectID) bool {
	s := h.look(id)
	return known && r.UID == s.UID || shopHere.Proven(id, s.Labels, s.Annotations, s.Proof)
}

// look is a live GET.
func (h *history) look(id fleet.ObjectID) Seen {
	live := h.cluster[id]
	if live == nil {
		return Seen{}
	}
	s := Seen{Found: true, UID: live.uid, Proof: Proof{Applied: live.ours, Marked: live.ours && live.marked}}
	if live.marked {
		s.Labels = map[string]string{fleet.HubLabel: shopHere.Hub}
		s.Annotations = map[string]string{fleet.OwnerAnnotation: fleet.OwnerMark(shop, shopHere.ClusterUID, id)}
	}
	return s
}

// applied reports that all that is listed is there as the newest revision has it.
func (h *history) applied() bool {
	for id := range h.desired {
		live, r := h.cluster[id], h.records[id]
		if live == nil || r.State != Owned || r.UID != live.uid || r.Generation != h.generation {
			return false
		}
	}
	return true
}

func (h *history) input() PruneInput {
	in := input()
	in.Age.Generation, in.Policies, in.Hold = h.generation, h.policies, h.hold
	in.Tombstone, in.Complete = h.gone, !h.fails()
	in.Applied = h.applied()
	in.Ready, in.Records = in.Applied, nil
	in.Desired = func(id fleet.ObjectID) bool { return h.desired[id] }
	for _, id := range sorted(h.records) {
		in.Records = append(in.Records, h.records[id])
	}
	return in
}

// prune does what Prune says, each object after a look at it.
func (h *history) prune() {
	in := h.input()
	out := Prune(in)
	for _, k := range out.Kept {
		if k.Reason == ReasonKept {
			h.kept++
		}
	}
	for _, r := range slices.Concat(out.Settle, out.Release, slices.Concat(out.Delete...)) {
		if h.fails() {
			return // nothing is done after what fails
		}
		h.end(in, r, slices.Contains(out.Release, r), slices.Contains(out.Settle, r))
	}
}

// end carries out what is decided about one object.
func (h *history) end(in PruneInput, r Record, release, settle bool) {
	s := h.look(r.ID)
	verdict, _ := Verify(in, r, s, shopHere)
	switch {
	case verdict == Gone || verdict == Foreign:
		h.foreign++
		delete(h.records, r.ID)
	case verdict == Another || settle:
		r.UID, r.State = s.UID, Owned
		h.records[r.ID] = r
	case release || verdict == Release:
		h.cluster[r.ID].marked = false
		h.did()
		delete(h.records, r.ID)
	case verdict == Delete:
		h.judge(in, r)
		h.deletes++
		delete(h.cluster, r.ID)
		h.did()
		delete(h.records, r.ID)
	}
	h.did()
}

// judge is the naive model's word on a delete.
func (h *history) judge(in PruneInput, r Record) {
	live := h.cluster[r.ID]
	why := ""
	switch {
	case !live.ours:
		why = "somebody else made it"
	case !h.gone && h.desired[r.ID]:
		why = "the newest revision lists it"
	case h.never[r.ID]:
		why = "it is to be kept"
	case h.hold:
		why = "nothing may be written"
	case !h.gone && !h.applied():
		why = "the newest revision is not applied"
	case !h.gone && !in.Complete:
		why = "the newest revision is not known in full"
	default:
		return
	}
	h.wrong = append(h.wrong, fmt.Sprintf("%s was deleted in generation %d: %s", r.ID, h.generation, why))
}

// settle lets the agent work until there is nothing to do, with nobody in its way.
func (h *history) settle() {
	h.hold, h.calm, h.effects = false, true, -1
	for id, live := range h.cluster {
		if h.desired[id] && !live.ours {
			delete(h.cluster, id)
		}
	}
	for range 4 {
		h.living(h.apply)
		h.living(h.prune)
	}
	for id, live := range h.cluster {
		if live.ours && live.marked && !h.desired[id] && !h.never[id] {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is left", id))
		}
	}
	for id := range h.desired {
		if live := h.cluster[id]; live == nil || !live.ours {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is not there", id))
		}
	}
}

// leave has the module go: of what it made only what is to be kept is left, and nothing carries its marks that it made.
func (h *history) leave() {
	h.generation++
	h.gone, h.desired, h.policies = true, map[fleet.ObjectID]bool{}, nil
	for range 4 {
		h.living(h.prune)
	}
	for id, live := range h.cluster {
		if live.ours && (live.marked || !h.never[id]) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is left by the module that went", id))
		}
	}
}
