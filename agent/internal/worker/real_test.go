package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestApplyAndResync(t *testing.T) {
	r := aloneRig(t)
	var objects []string
	for i := range 200 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%03d", i), "a: x"))
	}
	s := r.bundle("shop", nil, append(objects, deployment("web", 2))...)
	r.count.take()
	r.set([]fleet.Sync{s})
	status := r.ready(s)
	counts, paths := r.count.take()
	if counts["PATCH"] != 201 {
		t.Errorf("%d applies for 201 objects: %v", counts["PATCH"], counts)
	}
	if extra := total(counts) - 201; extra > 6 {
		t.Errorf("%d requests besides the applies: %v\n%v", extra, counts, notPatches(paths))
	}
	for i, st := range status.States {
		if !st.Fine() {
			t.Errorf("object %d is %+v", i, st)
		}
	}
	if got := r.get("v1", "configmaps", "cm-007"); got == nil || got.GetLabels()[fleet.HubLabel] != r.hub {
		t.Errorf("cm-007 is %v", got)
	}

	again := s
	r.gen++
	again.Generation = r.gen
	r.set([]fleet.Sync{again})
	r.ready(again)
	if counts, paths := r.count.take(); total(counts) != 0 {
		t.Errorf("a sync with the same digest made requests: %v\n%v", counts, paths)
	}

	r.stop()
	r.count.take()
	r.forget()
	r.start()
	r.set([]fleet.Sync{again})
	r.ready(again)
	if counts, paths := r.count.take(); counts["PATCH"] != 0 || total(counts) > 8 {
		t.Errorf("after a restart: %v\n%v", counts, paths)
	}
}

func total(counts map[string]int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

func notPatches(paths []string) []string {
	var out []string
	for _, p := range paths {
		if p[:5] != "PATCH" {
			out = append(out, p)
		}
	}
	return out
}
