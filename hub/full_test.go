package hub_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
)

// bulky is a module that takes about 0.4 MB, which nothing makes smaller.
func bulky(name string) *towlinev1.Module {
	noise := make([]byte, 300_000)
	_, _ = rand.Read(noise)
	return module(name, map[string]string{"a.yaml": fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {a: %q}\n",
		name, base64.StdEncoding.EncodeToString(noise))})
}

func (w *world) tries(m *towlinev1.Module) (*towlinev1.PutModuleResponse, error) {
	return w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m})
}

// store is what the hub says of its store.
func (w *world) usage() *towlinev1.StoreUsage {
	w.t.Helper()
	info, err := w.Identity.GetServerInfo(w.ctx, &towlinev1.GetServerInfoRequest{})
	must(w.t, err)
	return info.GetStore()
}

// A hub whose store fills up warns before, refuses what makes it larger with what to do, and does everything else, also
// after a restart. When modules are deleted, what they took is collected, and it goes on by itself.
func TestFullHubRecoversByItself(t *testing.T) {
	w := newWorldWith(t, func(o *hub.Options) {
		o.QuotaBytes, o.CollectEvery = 16<<20, time.Second
	})
	w.join("a", nil, nil)
	if u := w.usage(); u.GetQuota() != 16<<20 || u.GetAttention() != nil {
		t.Errorf("at the start: %v", u)
	}
	var names []string
	warned, full := false, error(nil)
	for n := 0; full == nil || w.usage().GetAttention().GetCode() != fleet.WarnFull; n++ { // what is old is let go meanwhile, which makes room once more
		if n > 200 {
			t.Fatalf("200 modules are put, %d taken; at the end: %v, %v", len(names), full, w.usage())
		}
		name := fmt.Sprintf("m%d", n)
		resp, err := w.tries(bulky(name))
		if full = err; err != nil {
			continue
		}
		names = append(names, name)
		for _, note := range resp.GetWarnings() {
			warned = warned || note.GetCode() == fleet.WarnNearlyFull
		}
	}
	if status.Code(full) != codes.ResourceExhausted || !strings.Contains(full.Error(), "--store-quota") || !warned {
		t.Errorf("refused with %v; warned before: %t", full, warned)
	}
	w.stopHub()
	w.start()
	w.awaitCluster("a", "Ready")
	for _, name := range names {
		_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: name})
		must(t, err)
	}
	for n := 0; ; n++ {
		resp, err := w.tries(bulky("after"))
		if err == nil {
			if ro := w.await("after", resp.GetRevision()); ro.GetStatus().GetState() != "Succeeded" {
				t.Errorf("after it: %v", ro.GetStatus())
			}
			return
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
		select {
		case <-w.ctx.Done():
			t.Fatalf("it stays full: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Each metric is served, and docs/operations.md has it.
func TestMetricsAreServedAndDocumented(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.QuotaBytes, o.Telemetry.Metrics = 64<<20, l })
	w.join("a", nil, nil)
	resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	for _, says := range []string{"towline_agents_connected 1\n", "towline_store_quota_bytes 6.7108864e+07\n", "towline_store_full 0\n"} {
		if !strings.Contains(string(body), says) {
			t.Errorf("%q is not in\n%s", says, body)
		}
	}
	doc, err := os.ReadFile("../docs/operations.md")
	must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^# HELP (towline_\S+)`).FindAllStringSubmatch(string(body), -1) {
		if !strings.Contains(string(doc), "`"+m[1]+"`") {
			t.Errorf("docs/operations.md lacks %s", m[1])
		}
	}
}
