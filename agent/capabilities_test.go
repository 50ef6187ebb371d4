package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"helm.sh/helm/v4/pkg/action"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// requests notes what the API server is asked, and may leave out that it knows the aggregated document.
type requests struct {
	next       http.RoundTripper
	unmodified atomic.Int64
	plain      bool
}

// RoundTrip implements http.RoundTripper.
func (x *requests) RoundTrip(r *http.Request) (*http.Response, error) {
	if x.plain {
		r = r.Clone(r.Context())
		r.Header.Set("Accept", "application/json")
	}
	resp, err := x.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusNotModified {
		x.unmodified.Add(1)
	}
	return resp, err
}

// TestCapabilitiesAsHelmSeesThem: of a real API server the agent reads what Helm itself reads for .Capabilities.APIVersions, in one document
// or without, a CRD that comes is in it, and what has not changed is not sent again.
func TestCapabilitiesAsHelmSeesThem(t *testing.T) {
	config := labtest.Config(t)
	helm, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := helm.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	for _, plain := range []bool{false, true} {
		watched := labtest.Config(t)
		seen := &requests{plain: plain}
		watched.Wrap(func(next http.RoundTripper) http.RoundTripper { seen.next = next; return seen })
		client, err := apply.NewClient(watched)
		if err != nil {
			t.Fatal(err)
		}
		served := apply.NewServed(client)
		read := func() (now fleet.Capabilities, want []string, err error) {
			t.Helper()
			now, whole, err := served.Read(t.Context())
			if err != nil {
				return now, nil, err
			}
			if whole == plain || now.KubeVersion != version.GitVersion || now.Check() != nil {
				t.Fatalf("plain %t: whole %t, version %s, %v", plain, whole, now.KubeVersion, now.Check())
			}
			want, err = action.GetVersionSet(helm)
			slices.Sort(want)
			return now, want, err
		}
		// The agent and Helm read one after the other, and what was there before may be going meanwhile: a group that is still listed and
		// does not answer any more is an error of that reading.
		until := func(is func(fleet.Capabilities) bool) {
			t.Helper()
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for deadline := time.Now().Add(patience); ; <-tick.C {
				now, want, err := read()
				if err == nil && slices.Equal(now.APIs, want) && is(now) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("plain %t: the agent has %d APIs, Helm %d, %v\n%v\n%v", plain, len(now.APIs), len(want), err, now.APIs, want)
				}
			}
		}
		until(func(now fleet.Capabilities) bool {
			return now.Has("apps/v1/Deployment") && now.Has("apps/v1/Scale") && now.Has("v1")
		})
		if _, _, err := read(); err == nil && !plain && seen.unmodified.Load() == 0 {
			t.Error("all is read again though nothing has changed")
		}
		group := strings.ToLower(rand.Text()) + ".capabilities.example.com" // one of before may be going yet
		undefine := define(t, dynamic.NewForConfigOrDie(config), group)
		until(func(now fleet.Capabilities) bool { return now.Has(group + "/v1/Widget") })
		undefine()
	}
}

// define has a CRD of the kind Widget.
func define(t *testing.T, client dynamic.Interface, group string) (undefine func()) {
	t.Helper()
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := "widgets." + group
	undefine = func() { _ = crds.Delete(context.Background(), name, metav1.DeleteOptions{}) }
	t.Cleanup(undefine)
	_, err := crds.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "kind": "Widget"}, "versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return undefine
}

// TestCapabilitiesAreToldWhenTheySettle: the first time at once, after that when they have stayed as they are for a while; while the API
// server does not answer, what was told stands.
func TestCapabilitiesAreToldWhenTheySettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var apis atomic.Value
		apis.Store("v1")
		told := report.NewCapabilities()
		w := &capabilityWatch{told: told, log: slog.New(slog.DiscardHandler), read: func(context.Context) (fleet.Capabilities, bool, error) {
			if apis.Load() == "" {
				return fleet.Capabilities{}, false, errors.New("no answer")
			}
			return fleet.Capabilities{KubeVersion: "v1.33.4", APIs: strings.Fields(apis.Load().(string))}, true, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.run(ctx) }()
		is := func(text string) bool {
			return slices.Equal(told.Told().GetDigest(), fleet.Capabilities{KubeVersion: "v1.33.4", APIs: strings.Fields(text)}.Digest().Bytes())
		}
		synctest.Wait()
		if !is("v1") {
			t.Error("not told at once")
		}
		for i, text := range []string{"a/v1 v1", "a/v1 b/v1 v1", "a/v1 b/v1 c/v1 v1"} {
			apis.Store(text)
			lives(map[bool]time.Duration{true: capabilitiesEvery, false: capabilitiesSettle}[i == 0])
			synctest.Wait()
			if !is("v1") {
				t.Errorf("told before it has settled, with %s", text)
			}
		}
		lives(2 * capabilitiesSettle)
		synctest.Wait()
		if !is("a/v1 b/v1 c/v1 v1") {
			t.Error("not told when it has settled")
		}
		apis.Store("")
		lives(time.Hour)
		if !is("a/v1 b/v1 c/v1 v1") {
			t.Error("forgotten while the API server does not answer")
		}
		apis.Store("v1")
		lives(goneAfter - time.Minute)
		synctest.Wait()
		if !is("a/v1 b/v1 c/v1 v1") {
			t.Error("what is not served for a moment counts as gone")
		}
		lives(6 * time.Minute) // at most 5 of them until it is asked again
		synctest.Wait()
		if !is("v1") {
			t.Error("not told when it has stayed away")
		}
		cancel()
		<-done
	})
}

// TestServersOfTwoVersions: while a control plane is upgraded one server after the other, each answer may be of the older or of the newer one. What counts
// is what either serves, and the newer version; a group that has gone for good goes in the end, and so does a version that was taken back.
func TestServersOfTwoVersions(t *testing.T) {
	old := fleet.Capabilities{KubeVersion: "v1.33.4", APIs: []string{"policy/v1", "policy/v1beta1", "v1"}}
	young := fleet.Capabilities{KubeVersion: "v1.34.0", APIs: []string{"policy/v1", "resource/v1", "v1"}}
	both := fleet.Capabilities{KubeVersion: "v1.34.0", APIs: []string{"policy/v1", "policy/v1beta1", "resource/v1", "v1"}}
	for name, last := range map[string]fleet.Capabilities{"upgraded": young, "taken back": old} {
		var l lastingly
		began, minute := time.Unix(0, 0), 0
		answers := func(now, want fleet.Capabilities) {
			t.Helper()
			if got := l.takes(now, began.Add(time.Duration(minute)*time.Minute)); got.Digest() != want.Digest() {
				t.Errorf("%s, after %d min: %+v, want %+v", name, minute, got, want)
			}
			minute++
		}
		answers(old, old)
		for range 20 {
			answers(young, both)
			answers(old, both)
		}
		answers(map[bool]fleet.Capabilities{true: old, false: young}[last.KubeVersion == young.KubeVersion], both)
		for range int(goneAfter / time.Minute) {
			answers(last, both)
		}
		answers(last, last)
	}
}

// lives lets virtual time pass.
func lives(d time.Duration) { <-time.After(d) }
