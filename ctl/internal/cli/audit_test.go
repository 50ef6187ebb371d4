package cli

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

func init() { auditEvery = time.Millisecond }

func (h *fakeHub) ListAuditEntries(_ context.Context, r *v1.ListAuditEntriesRequest) (*v1.ListAuditEntriesResponse, error) {
	h.note(r)
	h.audited++
	if h.audited > 1 && h.watchEnds != nil {
		return nil, rpc.ToStatus(h.watchEnds)
	}
	if h.noAudit != nil {
		return nil, rpc.ToStatus(h.noAudit)
	}
	found := slices.DeleteFunc(slices.Clone(h.audit), func(e *v1.AuditEntry) bool {
		return r.GetMethod() != "" && e.GetMethod() != r.GetMethod() || r.GetSubjectKind() != "" && (e.GetSubjectKind() != r.GetSubjectKind() || e.GetSubject() != r.GetSubject())
	})
	return &v1.ListAuditEntriesResponse{Entries: found}, nil
}

// The audit is followed without an entry that is shown twice, or left out because it came later than a newer one.
func TestAuditIsFollowed(t *testing.T) {
	start := time.Date(2026, 7, 2, 9, 0, 0, 0, time.UTC)
	entry := func(seconds int, method string) *v1.AuditEntry {
		return &v1.AuditEntry{Time: timestamppb.New(start.Add(time.Duration(seconds) * time.Second)), Caller: "ana", Method: method, Result: "OK"}
	}
	all := []*v1.AuditEntry{entry(0, "PutModule"), entry(100, "PutHold")}
	var away error
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out, Now: func() time.Time { return start.Add(200 * time.Second) }, Zone: time.UTC}}
	breaks := 0
	a.onBreak = func(error) { breaks++ }
	o := &getOptions{}
	o.format = "jsonpath={.method}"
	if err := o.parse(); err != nil {
		t.Fatal(err)
	}
	tail := auditTail{watcher: &watcher[*v1.AuditEntry]{a: a, o: o, view: auditView, keep: func(*v1.AuditEntry) bool { return true },
		absent: func([]*v1.AuditEntry) error { return nil }}, since: start.Add(-time.Hour), shown: map[string]time.Time{},
		ask: func(since time.Time) (found []*v1.AuditEntry, err error) {
			for _, e := range all {
				if !e.GetTime().AsTime().Before(since) {
					found = append(found, e)
				}
			}
			return found, away
		}}
	look := func(want string) {
		t.Helper()
		out.Reset()
		if err := tail.look(); err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
	}
	look("PutModule\nPutHold\n")
	look("")
	all = append(all, entry(70, "Steer"), entry(130, "PutCluster"))
	look("Steer\nPutCluster\n")
	away = fleet.Errorf(fleet.ErrUnavailable, "no hub answers")
	all = append(all, entry(131, "DeleteModule"))
	look("")
	away = nil
	look("DeleteModule\n")
	look("")
	if breaks != 1 {
		t.Errorf("that no hub answered was said %d times", breaks)
	}
	if len(tail.shown) > 3 {
		t.Errorf("%d entries are remembered", len(tail.shown))
	}
	all = append(all, entry(900, "Renew"), entry(190, "PutHold")) // the first is of a hub whose clock is ahead
	look("Renew\nPutHold\n")
	all = append(all, entry(199, "DeleteHold"))
	look("DeleteHold\n")
	look("")
}
