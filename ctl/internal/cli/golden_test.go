package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "towline.dev/towline/gen/towline/v1"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt from what the commands print")

// fullHub has something of everything.
func fullHub() *fakeHub {
	hub := &fakeHub{modules: surfaceModules(), clusters: surfaceClusters(), reasons: surfaceReasons(), away: 3,
		info: &v1.GetServerInfoResponse{Version: "v1.4.2", HubId: "hub-1", User: "maria", Role: "admin", AgentAddresses: []string{"127.0.0.1:7443"}},
		rollouts: []*v1.Rollout{surfaceRollout(), {Kind: "Rollout", Metadata: &v1.Metadata{Name: "shop-56", Project: "default"}, Id: "shop/56", Module: "shop",
			Number: 56, Revision: 41, FromRevision: 40, Status: &v1.RolloutStatus{State: "Succeeded", Started: ago(3 * day), Ended: ago(3*day - 20*time.Minute),
				Total: 300, Succeeded: 297, Deferred: 3, StartedBy: "ci-shop", StartReason: "shop 1.4.2"}}},
		revisions: []*v1.Revision{
			{Kind: "Revision", Metadata: &v1.Metadata{Name: "shop-r42", Project: "default", CreationTimestamp: ago(7 * time.Minute), ChangedBy: "ci-shop", ChangeReason: "shop 1.5.0 (PR 812)"},
				Module: "shop", Number: 42, Objects: 14, Clusters: 5, Artifact: "sha256:aa", Bundle: "sha256:bb"},
			{Kind: "Revision", Metadata: &v1.Metadata{Name: "shop-r41", Project: "default", CreationTimestamp: ago(3 * day)}, Module: "shop", Number: 41, Objects: 14, Clusters: 295},
		},
		trackers: []*v1.Tracker{
			{Project: "default", Module: "shop", Cluster: "prod-eu-01", Revision: 42, Generation: 9, ObservedGeneration: 9, Sync: "Synced", Health: "Healthy", Ready: true,
				Objects: 14, Healthy: 14, Since: ago(5 * time.Minute), Connected: true},
			{Project: "default", Module: "shop", Cluster: "prod-eu-07", Revision: 42, Generation: 9, ObservedGeneration: 9, Sync: "Synced", Health: "Degraded",
				Objects: 14, Healthy: 13, Since: ago(62 * time.Second), Connected: true, Reason: "ImagePullBackOff", Message: "Deployment shop/web: image not found"},
			{Project: "default", Module: "shop", Cluster: "edge-112", Revision: 41, Generation: 8, ObservedGeneration: 8, Sync: "Unknown", Health: "Unknown",
				Objects: 14, WasSync: "Synced", WasHealth: "Healthy", WasHealthy: 14, Since: ago(14 * time.Minute), LastHeard: ago(14 * time.Minute),
				Reason: "Disconnected"},
		},
		objects: []*v1.Object{
			{Cluster: "prod-eu-07", Project: "default", Module: "shop", Revision: 42, Sync: "Synced", Health: "Healthy", Drift: "Conflict", Field: "/spec/minReplicas",
				ChangedBy: "keda-operator", Since: ago(64 * time.Minute), Reason: "TwoWriters", Message: "two writers: keda-operator changes it back each time", Want: "3", Live: "2", Seen: 48,
				Object: &v1.ObjectReference{ApiVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler", Namespace: "shop", Name: "web"}},
			{Cluster: "prod-eu-11", Project: "default", Module: "shop", Revision: 41, Sync: "OutOfSync", Health: "Healthy", Drift: "Drifted", Field: "/spec/replicas",
				ChangedBy: "kubectl-edit", Since: ago(23 * time.Minute), Reason: "LeftByPolicy", Message: "/spec/replicas is 5, set by kubectl-edit; the policy drift: Report leaves it so", Want: "3", Live: "5", Seen: 1,
				Object: &v1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}},
		},
		holds: []*v1.Hold{{Id: "h-7", Kind: "Confirm", Project: "default", Module: "shop", Code: "DropsMostObjects", Digest: "d1", By: "hub", Since: ago(4 * time.Minute),
			Items: []string{"Deployment shop/old", "Service shop/old"}, Count: 2},
			{Id: "freeze-1", Kind: "Freeze", Cluster: "prod-eu-11", By: "ana", Reason: "debugging", Since: ago(time.Hour), Until: in(2 * time.Hour), Digest: "d2"}},
		certs: []*v1.Certificate{{Kind: "Certificate", Metadata: &v1.Metadata{Name: "0f3a5c9e1b7d2468ace013579bdf0246"}, User: "admin", Role: "admin", State: "Valid", Issued: ago(day), Expires: in(day)},
			{Kind: "Certificate", Metadata: &v1.Metadata{Name: "5b1fa0c2d4e6f80123456789abcdef01", ChangedBy: "maria", ChangeReason: "laptop stolen"}, User: "admin", Role: "admin", State: "Revoked", Issued: ago(day), Expires: in(day), Revoked: ago(time.Hour)}},
		audit: []*v1.AuditEntry{
			{Time: ago(time.Minute), Caller: "vera", Remote: "192.0.2.7:5110", Method: "DeleteModule", Subject: "default/shop", SubjectKind: "module", Result: "PermissionDenied", Hub: "h1"},
			{Time: ago(2 * time.Minute), Caller: "follow", Method: "FollowSource", Subject: "default/shop", SubjectKind: "module", Result: "OK", Detail: "main@sha1:3f2a rollout shop/58", Hub: "h1"},
			{Time: ago(time.Hour), Caller: "cluster edge-113", Remote: "192.0.2.9:4411", Method: "Enroll", Subject: "edge-113", SubjectKind: "cluster", Result: "OK", Hub: "h1"},
			{Time: ago(2 * time.Hour), Caller: "maria", Remote: "192.0.2.5:9911", Certificate: "0f3a5c9e1b7d2468ace013579bdf0246", Method: "PutModule", Subject: "team/base", Reason: "ticket 7", Result: "OK", Hub: "h1"}},
		users:  []*v1.User{{Kind: "User", Metadata: &v1.Metadata{Name: "maria"}, Role: "admin"}, {Kind: "User", Metadata: &v1.Metadata{Name: "ci"}, Role: "viewer", Expires: in(day)}},
		tokens: []*v1.Token{{Kind: "Token", Metadata: &v1.Metadata{Name: "t-1"}, Cluster: "edge-113", State: "Unused", Expires: in(9 * time.Minute)}},
		catalogs: []*v1.Catalog{
			{Kind: "Catalog", Metadata: &v1.Metadata{Name: "team", Project: "default", Uid: "u-7", Generation: 1, CreationTimestamp: ago(30 * day), ChangedBy: "maria"},
				Spec: &v1.CatalogSpec{Path: "modules", Prune: true, Source: &v1.Source{Git: &v1.GitSource{Url: "https://git.example.com/team.git", Ref: &v1.GitRef{Branch: "main"}}, Follow: &v1.Follow{Interval: "5m"}}},
				Status: &v1.CatalogStatus{ObservedGeneration: 1, State: "Conflicted", Since: ago(time.Hour), ResolvedRef: "main@sha1:2e3d1f2e3d4c5b6a", AppliedRef: "main@sha1:2e3d1f2e3d4c5b6a", Applied: ago(time.Hour),
					Looked: ago(time.Minute), Next: in(4 * time.Minute), Modules: 3, Conflicts: []*v1.CatalogConflict{{Module: "shop", File: "modules/shop.yaml:1", Reason: "Owned"},
						{Module: "cart", File: "modules/cart.yaml:1", Reason: "Owned", Owner: "set/cart-team"}, {Module: "base", File: "modules/base.yaml:1", Reason: "Stopped", Rollout: "default/base/5"}}}},
			{Kind: "Catalog", Metadata: &v1.Metadata{Name: "web", Project: "default", Uid: "u-8", Generation: 1, CreationTimestamp: ago(2 * day), ChangedBy: "ana"},
				Spec:   &v1.CatalogSpec{Prune: true, Source: &v1.Source{Http: &v1.HttpSource{Url: "https://example.com/web.tar.gz"}}},
				Status: &v1.CatalogStatus{ObservedGeneration: 1, State: "Waiting", Reason: "PrunesMostModules", Since: ago(time.Hour), Looked: ago(time.Hour), Modules: 4, Leftover: []string{"a", "b", "c"}, Hold: "catalog-1"}},
			{Kind: "Catalog", Metadata: &v1.Metadata{Name: "x", Project: "default", Uid: "u-9", Generation: 1, CreationTimestamp: ago(2 * day), ChangedBy: "ana"},
				Spec:   &v1.CatalogSpec{Source: &v1.Source{Git: &v1.GitSource{Url: "https://git.example.com/x.git"}}},
				Status: &v1.CatalogStatus{ObservedGeneration: 1, State: "Failed", Reason: "InvalidFiles", Since: ago(time.Hour), Looked: ago(time.Hour), Modules: 4, Problems: []string{"a.yaml:3: module a: spec.placement: is required", "b.yaml: is no YAML"}}}},
		secrets: []*v1.Secret{{Kind: "Secret", Metadata: &v1.Metadata{Name: "repo", Project: "default", Uid: "u-1", Generation: 2, CreationTimestamp: ago(30 * day), ChangedBy: "maria"},
			Keys: []string{"password", "username"}, Changed: ago(2 * day), State: "Readable", KeyId: "0badcafe", UsedBy: []string{"shop"}},
			{Kind: "Secret", Metadata: &v1.Metadata{Name: "old", Project: "default", CreationTimestamp: ago(90 * day), ChangedBy: "ana"},
				Keys: []string{"token"}, Changed: ago(90 * day), State: "Unreadable", Reason: "OtherKey", Facts: &v1.Facts{Detail: "11223344"}, KeyId: "11223344"}},
		projects: []*v1.Project{{Kind: "Project", Metadata: &v1.Metadata{Name: "default", CreationTimestamp: ago(30 * day)}, Modules: 4}},
		rendered: [][]byte{[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`), []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"},"data":{"k":"***"}}`)},
		acted: &v1.RolloutAnswer{Id: "shop/57", Rollout: ended("Aborted", nil),
			Notes: []*v1.Note{{Code: "Mixed", Facts: &v1.Facts{Count: 5, Total: 300, Revision: 42}, Actions: []*v1.Action{{Method: "RollBackRollout", Module: "shop"}}}}},
		gone:    &v1.DeleteModuleResponse{Objects: 4200, Clusters: 300, Keeps: []*v1.KindCount{{Kind: "PersistentVolumeClaim", Objects: 300}}},
		putPlan: &v1.PutClusterResponse{Result: "configured", Enters: []string{"default/shop"}, Leaves: []string{"team/base"}, RemovesObjects: 12},
		removed: &v1.RemoveClusterResponse{},
		join:    &v1.JoinClusterResponse{Token: "join-token", Expires: in(15 * time.Minute), HubAddresses: []string{"127.0.0.1:7443"}},
	}
	hub.clusters[3].Status.Holds = hub.holds[1:]
	hub.modules[3].Spec = &v1.ModuleSpec{Source: &v1.Source{Inline: &v1.InlineSource{Files: map[string]string{"cm.yaml": "apiVersion: v1\nkind: ConfigMap\n"}}},
		Placement: &v1.Placement{Selector: &v1.LabelSelector{}}, Rollout: surfaceRollout().GetStrategy()}
	hub.modules[3].Status.Holds = hub.holds[:1]
	hub.modules[3].Metadata.CreationTimestamp = ago(30 * day)
	return hub
}

// TestGolden holds what commands print. A file is a list of commands with their output; -update rewrites it.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for line := range strings.Lines(string(data)) {
				command, isCommand := strings.CutPrefix(strings.TrimSpace(line), "$ towline ")
				onTerminal := false
				if !isCommand {
					if command, onTerminal = strings.CutPrefix(strings.TrimSpace(line), "tty$ towline "); !onTerminal {
						continue
					}
				}
				r := run{terminal: onTerminal, columns: 110, stdin: "y\n"}
				got.WriteString(transcript(fullHub().run(t, r, strings.Fields(command)...), line))
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(data), got.String()); diff != "" {
				t.Errorf("%s (-want +got); -update rewrites it\n%s", file, diff)
			}
		})
	}
}

// transcript is a command with its output as in a terminal session; colours are shown as {31}…{0}.
func transcript(r result, command string) string {
	var b strings.Builder
	b.WriteString(strings.TrimRight(command, "\n") + "\n" + visible(r.out))
	for line := range strings.Lines(visible(r.err)) {
		b.WriteString("2> " + strings.TrimRight(line, "\n") + "\n")
	}
	if r.code != 0 {
		fmt.Fprintf(&b, "exit %d\n", r.code)
	}
	return b.String() + "\n"
}

func visible(s string) string {
	s = strings.ReplaceAll(s, "\x1b[0m", "{/}")
	for code, name := range map[string]string{"31": "red", "32": "green", "33": "yellow", "36": "cyan", "90": "grey", "1": "bold"} {
		s = strings.ReplaceAll(s, "\x1b["+code+"m", "{"+name+"}")
	}
	return s
}
