package api

import (
	"errors"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A module is of one set. A put with another one is refused, unless it is said that it is taken; a put without a set changes its set as
// little as it changes what runs by it.
func TestModuleIsOfOneSet(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	put := func(set string, take bool) (*towlinev1.PutModuleResponse, error) {
		req := putShop()
		req.Set, req.Take = set, take
		return a.PutModule(t.Context(), req)
	}
	for _, step := range []struct {
		set     string
		take    bool
		origin  string
		result  string
		refused string
	}{
		{"", false, "", "created", ""},
		{"one", false, "set/one", "configured", ""},
		{"one", false, "set/one", "unchanged", ""},
		{"", false, "set/one", "unchanged", ""},
		{"two", false, "set/one", "", "module shop is of set/one, which prunes it: apply it here with --take, and only then take it out of the files there"},
		{"two", true, "set/two", "configured", ""},
		{"", true, "", "configured", ""},
		{"Two!", false, "", "", "set: "},
	} {
		resp, err := put(step.set, step.take)
		if step.refused != "" {
			if err == nil || !strings.Contains(err.Error(), step.refused) {
				t.Errorf("put with %q: %v, want %s", step.set, err, step.refused)
			}
		} else if err != nil || resp.GetResult() != step.result || resp.GetModule().GetMetadata().GetOrigin() != step.origin || resp.GetResult() == "configured" && resp.GetRollout() != "" {
			t.Errorf("put with %q: %v, %v, want %+v", step.set, resp, err, step)
		}
		warns := slices.ContainsFunc(resp.GetWarnings(), func(n *towlinev1.Note) bool { return n.GetCode() == fleet.WarnOfSet })
		if left := step.set == "" && step.origin != ""; warns != left {
			t.Errorf("put with %q of what is of %q warns: %t", step.set, step.origin, warns)
		}
		got, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
		if err != nil || got.GetModule().GetMetadata().GetOrigin() != step.origin {
			t.Errorf("after a put with %q the module is of %q, %v", step.set, got.GetModule().GetMetadata().GetOrigin(), err)
		}
	}
}

// A module that somebody has put since it was seen is not deleted; the same deletion again is no other one.
func TestDeletionIsOfTheVersionThatWasSeen(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	if _, err := a.PutModule(t.Context(), putShop()); err != nil {
		t.Fatal(err)
	}
	seen, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	changed := putShop()
	changed.Set = "other"
	if _, err := a.PutModule(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	meta := seen.GetModule().GetMetadata()
	req := &towlinev1.DeleteModuleRequest{Name: "shop", Uid: meta.GetUid(), ResourceVersion: meta.GetResourceVersion()}
	for _, dry := range []bool{true, false} {
		req.DryRun = dry
		if _, err := a.DeleteModule(t.Context(), req); !errors.Is(err, fleet.ErrPrecondition) && !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("a version that is gone, dry run %t: %v", dry, err)
		}
	}
	now, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
	if err != nil || now.GetModule().GetMetadata().GetDeletionTimestamp() != nil {
		t.Fatalf("it is being deleted: %v, %v", now, err)
	}
	req.ResourceVersion = now.GetModule().GetMetadata().GetResourceVersion()
	for range 2 {
		if _, err := a.DeleteModule(t.Context(), req); err != nil {
			t.Errorf("the version that is there: %v", err)
		}
	}
}
