package hub_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
)

var storeFixture = flag.String("store-fixture", "", "write what a hub stores into this file; a new one with each change of how records are stored")

// stored is a key as a fixture has it.
type stored struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// TestWriteStoreFixture has a hub store what TestStoreFixtures replays.
func TestWriteStoreFixture(t *testing.T) {
	if *storeFixture == "" {
		t.Skip("without -store-fixture")
	}
	kept := memory.New()
	w := newWorldWith(t, func(o *hub.Options) { hub.StandOn(o, kept) })
	w.join("a", nil, map[string]string{"env": "test"})
	w.join("b", nil, map[string]string{"env": "prod"})
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.await("web", w.put(module("web", map[string]string{"b.yaml": strings.ReplaceAll(configMap("x")["a.yaml"], "name: web", "name: other")})).GetRevision())
	w.setSecret("repo", "username", "u", "password", "p")
	_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a"})
	must(t, err)
	var out bytes.Buffer
	for after, more := "", true; more; {
		page, err := kept.Range(w.ctx, backend.RangeQuery{After: after})
		must(t, err)
		for _, kv := range page.KVs {
			line, err := json.Marshal(stored{kv.Key, kv.Value})
			must(t, err)
			out.Write(append(line, '\n'))
			after = kv.Key
		}
		more = page.More
	}
	must(t, os.WriteFile(*storeFixture, out.Bytes(), 0o600))
}

// TestStoreFixtures: what hubs of earlier days stored, each with another form of records, is read by today's: no record is damaged, and a
// hub that starts on it shows and changes what they had.
func TestStoreFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/store/*.jsonl")
	must(t, err)
	if len(files) < 2 {
		t.Fatalf("%d fixtures: the test looks in the wrong place", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			kept := fromFixture(t, file)
			e, err := engine.Open(t.Context(), fromFixture(t, file), engine.Options{})
			must(t, err)
			if s := e.Stats(); s.Corrupt > 0 || s.Records == 0 {
				t.Errorf("%d of %d records cannot be read", s.Corrupt, s.Records)
			}
			must(t, e.View(t.Context(), 0, func(r store.Reader) error {
				for _, prefix := range []string{store.ModulePrefix, store.ClusterPrefix, store.RevisionPrefix, store.RolloutPrefix, store.DesiredPrefix,
					store.ObservedPrefix, store.AckPrefix, store.SessionPrefix, store.HoldPrefix} {
					n := 0
					r.Scan(prefix, func(store.Entry) bool { n++; return true })
					if n == 0 {
						t.Errorf("there are no records %s", prefix)
					}
				}
				return nil
			}))
			must(t, e.Close())
			goesOn(t, kept)
		})
	}
}

// fromFixture is a backend with what a fixture has.
func fromFixture(t *testing.T, file string) backend.Backend {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	b := memory.New()
	for line := range bytes.Lines(data) {
		var x stored
		must(t, json.Unmarshal(line, &x))
		_, _, err := b.Commit(context.Background(), []backend.Part{{Then: []backend.Op{{Key: x.Key, Value: x.Value}}}})
		must(t, err)
	}
	return b
}

// goesOn has a hub start on what an earlier one stored.
func goesOn(t *testing.T, kept backend.Backend) {
	w := newWorldWith(t, func(o *hub.Options) { hub.StandOn(o, kept) })
	for name, revision := range map[string]int64{"shop": 2, "web": 1} {
		m, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: name})
		must(t, err)
		if got := m.GetModule().GetStatus(); got.GetClusters() != 2 || got.GetRevision() != revision || got.GetRolloutState() != "Succeeded" {
			t.Errorf("%s is %v, want revision %d in 2 clusters", name, got, revision)
		}
		if got := w.put(module(name, map[string]string{"c.yaml": strings.ReplaceAll(configMap("3")["a.yaml"], "name: web", "name: "+name)})).GetResult(); got != "configured" {
			t.Errorf("another revision of %s is %s", name, got)
		}
	}
	clusters, err := w.Clusters.ListClusters(w.ctx, &towlinev1.ListClustersRequest{})
	must(t, err)
	if len(clusters.GetClusters()) != 2 {
		t.Errorf("there are %d clusters, want 2", len(clusters.GetClusters()))
	}
}
