package audit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func all(t *testing.T, s store.Store, which Selection) (out []string) {
	t.Helper()
	err := s.View(t.Context(), 0, func(r store.Reader) error {
		for _, f := range Select(r, which) {
			out = append(out, f.Entry.GetMethod()+" "+f.Entry.GetSubject()+" "+f.Entry.GetResult())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func entry(caller, method, subject, result string) *towlinev1.AuditEntry {
	return &towlinev1.AuditEntry{Caller: caller, Method: method, Subject: subject, Result: result}
}

// What is recorded as done is there when Record returns, and what was recorded while the hub stops is there in the end.
func TestWhatIsDoneIsRecordedBeforeItIsAnswered(t *testing.T) {
	s := storetest.New(t)
	l := New(s, quiet, "h1")
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { l.Run(ctx) })
	l.Record(t.Context(), entry("maria", "PutModule", "default/shop", OK))
	l.Record(t.Context(), entry("catalog base", "PutModule", "team/shop", OK))
	if got := all(t, s, Selection{}); strings.Join(got, ", ") != "PutModule team/shop OK, PutModule default/shop OK" {
		t.Errorf("recorded: %q", got)
	}
	l.Record(t.Context(), entry("vera", "DeleteModule", "default/shop", "PermissionDenied"))
	stop()
	run.Wait()
	for name, tt := range map[string]struct {
		s    Selection
		want int
	}{
		"all":             {Selection{}, 3},
		"by somebody":     {Selection{Caller: "maria"}, 1},
		"about a name":    {Selection{Subject: "shop"}, 3},
		"of one project":  {Selection{Subject: "team/shop"}, 1},
		"no part of it":   {Selection{Subject: "hop"}, 0},
		"what is refused": {Selection{Refused: true}, 1},
		"of a method":     {Selection{Method: "putmodule"}, 2},
		"of the future":   {Selection{Since: time.Now().Add(time.Hour)}, 0},
	} {
		if got := all(t, s, tt.s); len(got) != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// The store keeps the newest, also of a store that already has too many; refusals push out nothing that was done.
func TestOnlyTheNewestAreKept(t *testing.T) {
	s := storetest.New(t)
	began := time.Now()
	for n := 0; n < Refused+300; n += 100 {
		_, err := s.Update(t.Context(), func(w store.Writer) error {
			for i := range 100 {
				e := entry("x", "PutModule", fmt.Sprint(n+i), "Aborted")
				e.Time = timestamppb.New(began.Add(time.Duration(n+i-Refused-300) * time.Second))
				w.Put(New(s, quiet, "h0").key(e), &storev1.AuditRecord{Entry: e})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l := New(s, quiet, "h1")
	var batch []*waiting
	for _, result := range []string{OK, "Aborted"} {
		batch = append(batch, &waiting{entry: entry("maria", "PutModule", "new", result), done: make(chan struct{})})
		batch[len(batch)-1].entry.Time = timestamppb.New(began)
	}
	l.write(batch)
	l.forget(t.Context())
	got := all(t, s, Selection{})
	if len(got) != Refused+1 || !strings.Contains(strings.Join(got[:2], " "), "new OK") || got[len(got)-1] != "PutModule 301 Aborted" {
		t.Errorf("%d are kept, from %q to %q", len(got), got[:2], got[len(got)-1])
	}
}

// A store that takes nothing costs a call some seconds, and it is known how many entries are in the hub's log only.
func TestStoreThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil, quiet, "h1") // nobody runs it
		began := time.Now()
		l.Record(t.Context(), entry("maria", "PutModule", "shop", OK))
		if took := time.Since(began); took != patience {
			t.Errorf("it took %s", took)
		}
		for range maxWaiting + refusedBurst {
			l.Record(t.Context(), entry("vera", "PutModule", "shop", "PermissionDenied"))
		}
		if took, lost := time.Since(began), l.Lost(); took != patience || lost != maxWaiting {
			t.Errorf("refusals took %s, and %d are lost", took-patience, lost)
		}
	})
}

// Entries that hubs of before wrote have no kind: their method tells it. What was a hold's may be about anything of its name.
func TestEntriesWithoutAKind(t *testing.T) {
	s := storetest.New(t)
	l := New(s, quiet, "h1")
	rev, err := s.Update(t.Context(), func(w store.Writer) error {
		for _, e := range []*towlinev1.AuditEntry{entry("maria", "PutModule", "default/shop", OK), entry("api", "ResyncModule", "shop", OK), entry("maria", "PinClusters", "team/shop", OK),
			entry("cluster shop", "Enroll", "shop", OK), entry("maria", "LockCluster", "shop", OK), entry("maria", "PutHold", "shop", OK), entry("maria", "BackupStore", "", OK)} {
			e.Time = timestamppb.Now()
			w.Put(l.key(e), &storev1.AuditRecord{Entry: e})
		}
		return nil
	})
	if err == nil { // what is read is not older
		err = s.View(t.Context(), rev, func(store.Reader) error { return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ kind, subject, want string }{
		{"module", "default/shop", "PutHold shop OK, ResyncModule shop OK, PutModule default/shop OK"},
		{"module", "team/shop", "PinClusters team/shop OK"},
		{"cluster", "shop", "PutHold shop OK, LockCluster shop OK, Enroll shop OK"},
		{"user", "shop", "PutHold shop OK"},
		{"", "default/shop", "ResyncModule shop OK, PutModule default/shop OK"},
	} {
		if got := strings.Join(all(t, s, Selection{Kind: tt.kind, Subject: tt.subject}), ", "); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.subject, got, tt.want)
		}
	}
}
