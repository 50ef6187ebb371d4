package session

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// reporter is a session with a live fence whose reports are committed by hand.
func reporter(t *testing.T, modules int) *session {
	t.Helper()
	s := newServer(t, &gates{})
	rev, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{})
		w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for from := 0; from < modules; from += store.MaxOps {
		if _, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
			for n := from; n < min(from+store.MaxOps, modules); n++ {
				ref := fleet.ModuleRef{Project: "default", Name: fmt.Sprintf("m%d", n)}
				w.Put(store.DesiredKey("a", ref), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: 1}})
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	return newSession(s, "a", registry.Opened{Epoch: 1, Fence: store.Fence{Key: store.SessionKey("a"), ModRevision: rev}}, &agentv1.Hello{})
}

func (x *session) report(t *testing.T, seq uint64, syncs ...*agentv1.SyncStatus) {
	t.Helper()
	if err := x.reports.add(&agentv1.Status{Epoch: 1, Sequence: seq, Syncs: syncs, Digest: []byte("status")}); err != nil {
		t.Fatal(err)
	}
	if err := x.reports.commit(t.Context(), x.reports.take()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (x *session) stored(t *testing.T) (records map[string]*storev1.ObservedRecord, bytes int, ack *storev1.AckRecord) {
	t.Helper()
	records = map[string]*storev1.ObservedRecord{}
	if err := x.server.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		store.Scan(r, store.ObservedPrefix+"a/", func(o *storev1.ObservedRecord, e store.Entry) bool {
			records[strings.TrimPrefix(e.Key, store.ObservedPrefix+"a/")] = o
			bytes += proto.Size(o)
			return true
		})
		ack, _, _ = store.Get[*storev1.AckRecord](r, store.AckKey("a"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return records, bytes, ack
}

func wordy(module string, exceptions, length int) *agentv1.SyncStatus {
	text := strings.Repeat("x", length)
	st := &agentv1.SyncStatus{Module: module, Generation: 1, Bundle: make([]byte, 32), Phase: "Failed", States: make([]byte, 8), Message: "broken"}
	for range exceptions {
		st.Exceptions = append(st.Exceptions, &agentv1.ObjectException{Reason: text, Message: text, Field: text, Want: text, Live: text, ChangedBy: text})
	}
	return st
}

// However much a cluster's agent has to say, its records are bounded: sentences go first, the states of objects stay
// exact.
func TestReportsOfAClusterAreBounded(t *testing.T) {
	const modules, bound = 40, 1 << 20
	x := reporter(t, modules)
	x.server.o.MaxReportBytes = bound
	for n := range modules {
		x.report(t, uint64(n+1), wordy(fmt.Sprintf("default/m%d", n), 100, 250))
	}
	records, bytes, ack := x.stored(t)
	if len(records) != modules || bytes > bound+bound/10 {
		t.Errorf("%d records of %d bytes are stored", len(records), bytes)
	}
	full := 0
	for name, o := range records {
		if len(o.GetStatus().GetStates()) != 8 || o.GetStatus().GetMessage() != "broken" {
			t.Errorf("%s lost more than its sentences: %v", name, o.GetStatus())
		}
		if len(o.GetStatus().GetExceptions()) == 100 {
			full++
		}
	}
	if full == 0 || full == modules || ack.GetShortened() == 0 {
		t.Errorf("%d of %d records are whole; %d were shortened", full, modules, ack.GetShortened())
	}
	// The limit is of what is there now.
	for n := range modules {
		x.report(t, uint64(modules+n+1), &agentv1.SyncStatus{Module: fmt.Sprintf("default/m%d", n), Generation: 1, Bundle: make([]byte, 32), Phase: "Applied", States: make([]byte, 8)})
	}
	x.report(t, 1000, wordy("default/m3", 100, 250))
	if records, _, _ = x.stored(t); len(records["default/m3"].GetStatus().GetExceptions()) != 100 {
		t.Error("there is room again, and the report was shortened")
	}
}

// A report that is dropped, for there is no room for it, takes the one before along: that says what is not so any more.
func TestReportThatIsDroppedLeavesNoOlderOne(t *testing.T) {
	x := reporter(t, 2)
	for n, m := range []string{"default/m0", "default/m1"} {
		x.report(t, uint64(n+1), &agentv1.SyncStatus{Module: m, Generation: 1, Bundle: make([]byte, 32), Phase: "Applied", Ready: true, States: make([]byte, 8)})
	}
	_, bytes, _ := x.stored(t)
	x.server.o.MaxReportBytes = bytes
	failed := wordy("default/m0", 0, 0)
	failed.Message = strings.Repeat("x", 200)
	x.report(t, 3, failed)
	records, _, ack := x.stored(t)
	if o := records["default/m0"]; o.GetStatus().GetReady() || len(records) != 1 || ack.GetShortened() == 0 {
		t.Errorf("it failed, and the hub has: %v", o)
	}
	if len(ack.GetStatusDigest()) > 0 {
		t.Error("the hub says that it has what it dropped: the next session asks for nothing")
	}
	x.server.o.MaxReportBytes *= 10
	x.report(t, 4, failed)
	if records, _, _ = x.stored(t); records["default/m0"].GetStatus().GetPhase() != "Failed" {
		t.Errorf("there is room again: %v", records)
	}
}

// One word of an agent is no longer than the protocol says, whatever the agent sends.
func TestReportsAreCutToWhatTheProtocolAllows(t *testing.T) {
	x := reporter(t, 1)
	st := wordy("default/m0", 1, 100_000)
	st.Message = strings.Repeat("y", 100_000)
	x.report(t, 1, st)
	if _, bytes, _ := x.stored(t); bytes > 10_000 {
		t.Errorf("%d bytes are stored", bytes)
	}
}

func TestDigestsAreBounded(t *testing.T) {
	x := reporter(t, 1)
	if err := x.reports.add(&agentv1.Status{Epoch: 1, Sequence: 1, Digest: make([]byte, 1<<20)}); err == nil {
		t.Error("a digest of a megabyte is taken")
	}
	x.reports.ack(&agentv1.Ack{Epoch: 1, Digest: make([]byte, 1<<20)})
	x.report(t, 1)
	if _, _, ack := x.stored(t); proto.Size(ack) > 1000 {
		t.Errorf("the acknowledgement has %d bytes", proto.Size(ack))
	}
}

func TestRefusalsAreOfWhatWasSent(t *testing.T) {
	x := reporter(t, 1)
	a := &agentv1.Ack{Epoch: 1, Generation: 1}
	for n := range 5000 {
		a.Refused = append(a.Refused, &agentv1.Refusal{Module: fmt.Sprintf("default/m%d", n), Generation: 1, Code: "UNDECODABLE", Message: strings.Repeat("x", 1000)})
	}
	x.reports.ack(a)
	x.report(t, 1)
	if _, _, ack := x.stored(t); len(ack.GetRefused()) != 1 || len(ack.GetRefused()[0].GetMessage()) > 300 {
		t.Errorf("%d refusals are stored", len(ack.GetRefused()))
	}
}

// What the agent of another cluster of the name could not take is not said of this one: neither by what is stored, nor when the
// first report of this one is.
func TestRefusalOfAnotherClusterIsNone(t *testing.T) {
	x := reporter(t, 1)
	ref := fleet.ModuleRef{Project: "default", Name: "m0"}
	rev, err := storetest.All(x.server.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 1, StatusDigest: []byte("x"),
			Refused: []*agentv1.Refusal{{Module: ref.String(), Generation: 1, Code: "UNDECODABLE"}}})
		w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 3, VoidBefore: 3})
		w.Put(store.DesiredKey("a", ref), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: 1, Revision: 1,
			Bundle: fleet.DigestOf([]byte("b"))})})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	x.epoch, x.opened = 3, registry.Opened{Epoch: 3, Fence: store.Fence{Key: store.SessionKey("a"), ModRevision: rev}}
	failed := func() string {
		t.Helper()
		var why string
		if err := x.server.o.Store.View(t.Context(), rev, func(r store.Reader) error {
			tr, _ := record.At(r, "a", true).Track(ref)
			why = tr.Input.Refused
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := failed(); why != "" {
		t.Errorf("before a report: %s", why)
	}
	x.report(t, 1)
	if _, _, ack := x.stored(t); ack.GetEpoch() != 3 || len(ack.GetRefused()) != 0 || failed() != "" {
		t.Errorf("after it: %v", ack)
	}
}

// brimming is a store that is full.
type brimming struct{ store.Store }

func (brimming) Full() error { return fleet.Errorf(fleet.ErrExhausted, "the store is full") }

// In a full store long reports lose their sentences: its reserve is for what must always be possible.
func TestLongReportsAreShortenedInAFullStore(t *testing.T) {
	x := reporter(t, 2)
	x.server.o.Store = brimming{x.server.o.Store}
	x.report(t, 1, wordy("default/m0", 100, 250), wordy("default/m1", 1, 20))
	records, bytes, ack := x.stored(t)
	if len(records) != 2 || bytes > 2000 || ack.GetShortened() != 1 || len(records["default/m0"].GetStatus().GetStates()) != 8 ||
		len(records["default/m1"].GetStatus().GetExceptions()) != 1 {
		t.Errorf("%d bytes, %d shortened: %v", bytes, ack.GetShortened(), records)
	}
}
