package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

func TestJoinManifest(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{}, "cluster", "join", "edge-114", "--manifest", "--hub", "hub.example.com:7443", "--label", "region=eu", "--ttl", "1h", "-m", "new edge")
	if got.code != 0 {
		t.Fatalf("exit %d: %s", got.code, got.err)
	}
	for _, want := range []string{"kind: Namespace", "kind: Deployment", "--hub=hub.example.com:7443", "token: join-token"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is missing in the manifests:\n%s", want, got.out)
		}
	}
	req := asked[*v1.JoinClusterRequest](hub)
	if req.GetLabels()["region"] != "eu" || req.GetTtl() != "1h0m0s" || req.GetReason() != "new edge" {
		t.Errorf("the hub was asked %v", req)
	}
	hub.info.AgentAddresses = []string{"127.0.0.1:7443", "hub.internal:7443"}
	if got := hub.run(t, run{}, "cluster", "join", "edge-114", "--manifest", "--daemonset"); !strings.Contains(got.out, "--hub=hub.internal:7443") ||
		strings.Contains(got.out, "127.0.0.1") || !strings.Contains(got.out, "kind: DaemonSet") {
		t.Errorf("of the advertised addresses the loopback one is to be left out: exit %d, %s\n%s", got.code, got.err, got.out)
	}
}

// TestLoopbackMakesNoToken: a join that is refused leaves nothing behind.
func TestLoopbackMakesNoToken(t *testing.T) {
	for _, address := range []string{"127.0.0.1:7443", "[::1]:7443", "localhost:7443", "0.0.0.0:7443", "[::ffff:127.0.0.2]:7443", "LOCALHOST.:7443"} {
		hub := fullHub()
		got := hub.run(t, run{}, "cluster", "join", "edge-114", "--manifest", "--hub", address)
		if got.code != 2 || !strings.Contains(got.err, "--hub HOST:PORT") || got.out != "" {
			t.Errorf("%s: exit %d, stderr %q", address, got.code, got.err)
		}
		if asked[*v1.JoinClusterRequest](hub) != nil {
			t.Errorf("%s: a token was made", address)
		}
	}
}

// kubeAPI takes server-side applies, remembers their paths, and has what was applied.
type kubeAPI struct {
	mu      sync.Mutex
	applied []string
	objects map[string][]byte
}

func (k *kubeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if object, ok := k.objects[r.URL.Path]; r.Method == http.MethodGet {
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			object = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		}
		_, _ = w.Write(object)
		return
	}
	if r.Method != http.MethodPatch || r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.URL.Query().Get("fieldManager") != installer {
		http.Error(w, r.Method+" "+r.URL.String()+" is no apply", http.StatusMethodNotAllowed)
		return
	}
	k.applied = append(k.applied, r.URL.Path)
	var object map[string]any
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if strings, ok := object["stringData"].(map[string]any); ok { // as an API server does
		token, _ := strings["token"].(string)
		object["data"] = map[string]any{"token": []byte(token)}
		delete(object, "stringData")
	}
	body, err := json.Marshal(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if k.objects == nil {
		k.objects = map[string][]byte{}
	}
	k.objects[r.URL.Path] = body
	_, _ = w.Write(body) // the client says if it is cut
}

func kubeconfig(t *testing.T, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: k, cluster: {server: %q}}]\ncontexts: [{name: edge, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n", address)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestJoinContextAppliesAndWaits(t *testing.T) {
	api := &kubeAPI{}
	server := httptest.NewServer(api)
	defer server.Close()
	hub := fullHub()
	config := kubeconfig(t, server.URL)
	args := []string{"cluster", "join", "prod-eu-01", "--context", "edge", "--kubeconfig", config, "--hub", "hub.example.com:7443"}

	got := hub.run(t, run{}, args...)
	if got.code != 0 || !strings.HasSuffix(got.out, "deployment/towline-agent applied\ncluster/prod-eu-01 Ready\n") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	want := []string{
		"/api/v1/namespaces/towline-system", "/api/v1/namespaces/towline-system/serviceaccounts/towline-agent",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/towline-agent", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/towline-agent",
		"/api/v1/namespaces/towline-system/secrets/towline-join", "/apis/apps/v1/namespaces/towline-system/deployments/towline-agent",
	}
	if !slices.Equal(api.applied, want) {
		t.Errorf("applied %q, want %q", api.applied, want)
	}

	token := jointoken.New("prod-eu-01", [32]byte{})
	hub.join.Token = token.String()
	hub.tokens = []*v1.Token{{Metadata: &v1.Metadata{Name: token.ID}, State: "Unused"}}
	got = hub.run(t, run{}, append(args, "--reissue", "--timeout", "1ms")...)
	if got.code != 4 || !strings.Contains(got.err, "cluster prod-eu-01: has not come with its new join token after 1ms") {
		t.Errorf("the agent of before counts as the new one: exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	hub.tokens[0].State = "Used"
	if got = hub.run(t, run{}, append(args, "--reissue")...); got.code != 0 || !strings.HasSuffix(got.out, "cluster/prod-eu-01 Ready\n") {
		t.Errorf("reissued: exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}

	args[2] = "edge-113" // stays Pending
	hub.watchEnds = status.Error(codes.DeadlineExceeded, "the hub's end noticed first")
	got = hub.run(t, run{}, append(args, "--timeout", "6s", "--replace")...)
	if got.code != 4 || !strings.Contains(got.err, "cluster edge-113: is Pending after 6s; see: kubectl -n towline-system logs") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestJoinUnknownContextMakesNoToken(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{}, "cluster", "join", "edge-114", "--context", "nosuch", "--kubeconfig", kubeconfig(t, "http://127.0.0.1:1"), "--hub", "hub:7443")
	if got.code != 2 || asked[*v1.JoinClusterRequest](hub) != nil {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestDeleteWaitsUntilTheModuleIsGone(t *testing.T) {
	hub := fullHub()
	hub.modules = hub.modules[1:2] // edge-lb, being deleted
	hub.changes = []*v1.WatchModulesResponse{{Type: "DELETED", Module: hub.modules[0]}}
	got := hub.run(t, run{}, "delete", "module/edge-lb", "--yes")
	// The numbers are those of the order: an object may have gone over to another module meanwhile, or somebody deleted it.
	if got.code != 0 || got.out != "module/edge-lb deleted; gone from 300 clusters, which were to remove 4,200 objects and to keep 300 PersistentVolumeClaims\n" {
		t.Errorf("exit %d, stdout %q", got.code, got.out)
	}
	if !strings.Contains(got.err, "Deleting: 36 objects in 3 away clusters") {
		t.Errorf("it does not say what it waits for: %q", got.err)
	}
	if got := hub.run(t, run{}, "delete", "module/edge-lb", "--yes", "--orphan").out; got != "module/edge-lb deleted; gone from 300 clusters, which were to leave its objects\n" {
		t.Errorf("orphaned: %q", got)
	}
	hub.changes = nil
	got = hub.run(t, run{}, "delete", "module/edge-lb", "--yes", "--timeout", "100ms")
	if got.code != 4 || !strings.Contains(got.err, "module edge-lb: not gone after 100ms: Deleting: 36 objects in 3 away clusters; it goes on by itself") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	hub.modules[0].Status.Holds = []*v1.Hold{{Kind: "Freeze", Module: "edge-lb", By: "ana"}}
	if got = hub.run(t, run{}, "delete", "module/edge-lb", "--yes", "--timeout", "100ms"); strings.Count(got.err, "; held by ana") != 2 ||
		strings.Contains(got.err, "goes on by itself") || !strings.Contains(got.err, "where it is held it goes on when that ends; see: towline explain module edge-lb") {
		t.Errorf("it does not say that it is held: %q", got.err)
	}
}

func TestDeleteAsksOnATerminal(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{terminal: true, stdin: "n\n"}, "delete", "module", "shop")
	if got.code != 1 || !strings.Contains(got.err, "Go on? [y/N]") || !strings.Contains(got.err, "delete module shop: not done") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if req := asked[*v1.DeleteModuleRequest](hub); !req.GetDryRun() {
		t.Error("the module was deleted in spite of the answer")
	}
}

// What somebody says yes to is what he read: it may take minutes, and somebody else may put the module into more clusters
// meanwhile, or another one under its name.
func TestDeleteIsOfWhatWasRead(t *testing.T) {
	hub := fullHub()
	for _, m := range hub.modules {
		m.Metadata.Uid = "of-" + m.GetMetadata().GetName()
	}
	hub.goes = []*v1.DeleteModuleResponse{{Objects: 3, Clusters: 1}, {Objects: 900, Clusters: 300}}
	got := hub.run(t, run{terminal: true, stdin: "y\n"}, "delete", "module", "shop")
	if got.code != 1 || strings.Count(got.err, "Go on? [y/N]") != 2 || !strings.Contains(got.err, "900 objects in 300 clusters") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if req := asked[*v1.DeleteModuleRequest](hub); !req.GetDryRun() || req.GetUid() != "of-shop" {
		t.Errorf("the hub was asked %v", req)
	}
}

// The cluster whose objects somebody agrees to delete is the one that was looked at.
func TestRemoveIsOfWhatWasRead(t *testing.T) {
	hub := fullHub()
	name := hub.clusters[0].GetMetadata().GetName()
	hub.clusters[0].Metadata.Uid = "this-one"
	got := hub.run(t, run{}, "cluster", "remove", name, "--objects", "delete", "--yes")
	if req := asked[*v1.RemoveClusterRequest](hub); got.code != 0 || req.GetUid() != "this-one" {
		t.Errorf("exit %d, %s; the hub was asked %v", got.code, got.err, req)
	}
}

// A cluster whose agent is told to leave comes back by a new token only: it is asked for, and only the one that was there when it was.
func TestDeleteClusterAsks(t *testing.T) {
	hub := fullHub()
	name := hub.clusters[0].GetMetadata().GetName()
	hub.clusters[0].Metadata.Uid = "this-one"
	for says, r := range map[string]run{"say --yes": {}, "not done": {terminal: true, stdin: "n\n"}} {
		got := hub.run(t, r, "delete", "cluster", name)
		if got.code == 0 || !strings.Contains(got.err, says) || !strings.Contains(strings.ToLower(got.err), "delete cluster "+name+" (hub hub.test:7444): its agent leaves") || asked[*v1.RemoveClusterRequest](hub) != nil {
			t.Errorf("exit %d, %s; the hub was asked %v", got.code, got.err, asked[*v1.RemoveClusterRequest](hub))
		}
	}
	got := hub.run(t, run{terminal: true, stdin: "y\n"}, "delete", "cluster", name)
	if req := asked[*v1.RemoveClusterRequest](hub); got.code != 0 || req.GetUid() != "this-one" || req.GetObjects() != "keep" {
		t.Errorf("exit %d, %s; the hub was asked %v", got.code, got.err, req)
	}
}

// deletedOf is what was deleted, in its order.
func deletedOf(h *fakeHub) string {
	var out []string
	for _, m := range h.requests {
		switch r := m.(type) {
		case *v1.DeleteModuleRequest:
			if !r.GetDryRun() {
				out = append(out, "module/"+r.GetName())
			}
		case *v1.RemoveClusterRequest:
			out = append(out, "cluster/"+r.GetName())
		case *v1.DeleteProjectRequest:
			out = append(out, "project/"+r.GetName())
		case *v1.DeleteTokenRequest:
			out = append(out, "token/"+r.GetId())
		}
	}
	return strings.Join(out, " ")
}

// What one command deletes goes in the reverse of the order in which it is put, whatever the order of its names: a cluster that left before the
// modules were gone would keep what they have there for good, and so it would if one of them cannot be deleted. What is not there is as it is to be.
func TestDeleteGoesBackwards(t *testing.T) {
	const files = "apiVersion: towline.dev/v1\nkind: Project\nmetadata: {name: web}\n---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: CLUSTER}\n---\n" + shopYAML
	for name, tt := range map[string]struct {
		args  []string
		stays error
		want  string
	}{
		"files":                    {[]string{"-f", "-"}, nil, "module/shop cluster/CLUSTER project/web"},
		"names":                    {[]string{"token/t-1", "project/web", "cluster/CLUSTER", "module/shop"}, nil, "module/shop token/t-1 cluster/CLUSTER project/web"},
		"one stays":                {[]string{"-f", "-"}, fleet.Errorf(fleet.ErrPrecondition, "module shop: others depend on it"), "module/shop"},
		"one is not there":         {[]string{"cluster/CLUSTER", "module/none"}, nil, "cluster/CLUSTER"},
		"one cannot be deleted":    {[]string{"module/shop", "rollout/shop/57"}, nil, ""},
		"one is not named":         {[]string{"module/shop", "--revision", "r1"}, nil, ""},
		"one that is of no secret": {[]string{"module/shop", "--cluster", "c1"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			cluster := hub.clusters[0].GetMetadata().GetName()
			hub.stays, hub.removes = tt.stays, true
			for i := range tt.args {
				tt.args[i] = strings.Replace(tt.args[i], "CLUSTER", cluster, 1)
			}
			got := hub.run(t, run{stdin: strings.Replace(files, "CLUSTER", cluster, 1)}, append([]string{"delete", "--yes"}, tt.args...)...)
			if order, want := deletedOf(hub), strings.Replace(tt.want, "CLUSTER", cluster, 1); order != want {
				t.Errorf("exit %d, %s; deleted %q, want %q", got.code, got.err, order, want)
			}
			if says := "not deleted, because of that: cluster " + cluster + "; project web"; tt.stays != nil && (got.code == 0 || !strings.Contains(got.err, says)) {
				t.Errorf("exit %d, %s, want %q", got.code, got.err, says)
			}
		})
	}
}

// A cluster, or a project, is not taken away beside modules for which nobody waits: the command says so before it deletes anything.
func TestDeleteWaitsForNoneThatItTakesTheClusterOf(t *testing.T) {
	for name, tt := range map[string]struct{ args, says, want string }{
		"modules, not waited for":          {"--wait=false cluster/CLUSTER module/shop", "module shop is not gone when this is to delete cluster CLUSTER", ""},
		"modules of a project":             {"--wait=false project/web module/shop", "to delete project web", ""},
		"catalogs, with their modules":     {"--cascade cluster/CLUSTER catalog/CATALOG", "catalog CATALOG is not gone when", ""},
		"modules alone":                    {"--wait=false module/shop token/t-1", "", "module/shop token/t-1"},
		"catalogs, whose modules stay":     {"--wait=false cluster/CLUSTER catalog/CATALOG", "", "cluster/CLUSTER"},
		"clusters, whose modules are none": {"--wait=false cluster/CLUSTER project/web", "", "cluster/CLUSTER project/web"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			named := strings.NewReplacer("CLUSTER", hub.clusters[0].GetMetadata().GetName(), "CATALOG", hub.catalogs[0].GetMetadata().GetName())
			hub.removes = true
			got := hub.run(t, run{}, append([]string{"delete", "--yes"}, strings.Fields(named.Replace(tt.args))...)...)
			if order := deletedOf(hub); order != named.Replace(tt.want) || (got.code == exitUsage) != (tt.says != "") || !strings.Contains(got.err, named.Replace(tt.says)) {
				t.Errorf("exit %d, %s; deleted %q", got.code, got.err, order)
			}
		})
	}
}

// Of several none is deleted where one of them is needed by a module that stays.
func TestDeleteOfSeveralBeginsWithNoneThatIsNeeded(t *testing.T) {
	hub := setHub("base", "shop", "alone")
	hub.modules[1].Spec.DependsOn = []*v1.Dependency{{Module: "base"}}
	hub.removes = true
	got := hub.run(t, run{}, "delete", "module", "alone", "base", "--yes")
	if want := "module base is not deleted, and nothing of this command: module shop, which stays, depends on it"; got.code == 0 || !strings.Contains(got.err, want) || deletedOf(hub) != "" {
		t.Errorf("exit %d, %s; deleted %q", got.code, got.err, deletedOf(hub))
	}
	if got := hub.run(t, run{}, "delete", "module", "base", "alone", "shop", "--yes"); got.code != 0 || deletedOf(hub) != "module/shop module/base module/alone" {
		t.Errorf("exit %d, %s; deleted %q", got.code, got.err, deletedOf(hub))
	}
}

func TestConfirmReleasesWhatWasShown(t *testing.T) {
	hub := fullHub()
	for _, h := range hub.holds {
		h.ResourceVersion = 77
	}
	if got := hub.run(t, run{}, "confirm", "h-7", "-m", "looked at it"); got.code != 0 {
		t.Fatalf("exit %d: %s", got.code, got.err)
	}
	if req := asked[*v1.ConfirmHoldRequest](hub); req.GetDigest() != "d1" || req.GetResourceVersion() != 77 || req.GetReason() != "looked at it" {
		t.Errorf("the hub was asked %v: without the digest something else may be released", req)
	}
}

// What a person holds waits for no confirm: whoever confirms all that there is, as a script does, ends no hold by that, and confirms nothing of it.
func TestConfirmEndsNoHold(t *testing.T) {
	hub := fullHub()
	for _, args := range [][]string{{"hold/h-7", "hold/freeze-1"}, {"freeze-1"}} {
		got := hub.run(t, run{}, append([]string{"confirm"}, args...)...)
		want := "hold freeze-1 was put by ana and waits for no confirm: nothing is confirmed; to end it: towline unhold freeze-1"
		if got.code != exitUsage || !strings.Contains(got.err, want) || asked[*v1.ConfirmHoldRequest](hub) != nil {
			t.Errorf("exit %d, %s; the hub was asked %v", got.code, got.err, asked[*v1.ConfirmHoldRequest](hub))
		}
	}
	// What was confirmed before does not keep the rest from it.
	if got := hub.run(t, run{}, "confirm", "h-6", "h-7"); got.code != exitFailed || asked[*v1.ConfirmHoldRequest](hub).GetId() != "h-7" {
		t.Errorf("exit %d, %s; the hub was asked %v", got.code, got.err, asked[*v1.ConfirmHoldRequest](hub))
	}
}

// Of several holds of one thing one's own ends. Somebody else's ends where there is none, and it is said whose it was; what others hold still, too.
func TestUnholdSaysWhoseHoldEnds(t *testing.T) {
	hub := fullHub() // who asks is maria
	ana := &v1.Hold{Id: "freeze-1", Kind: "Freeze", Project: "default", Module: "shop", By: "ana", Reason: "migration", Until: in(8 * time.Hour)}
	maria := &v1.Hold{Id: "freeze-2", Kind: "Freeze", Project: "default", Module: "shop", By: "maria", Reason: "a look"}
	for _, tt := range []struct {
		holds     []*v1.Hold
		args      string
		ends      string
		says, not string
	}{
		{[]*v1.Hold{ana, maria}, "module/shop", "freeze-2", "It is held still: hold freeze-1 (Freeze) of module shop: migration; put by ana; end that with: towline unhold freeze-1", "Warning"},
		{[]*v1.Hold{ana}, "module/shop", "freeze-1", "Warning: hold freeze-1 (Freeze) of module shop: migration; it was put by ana", "held still"},
		{[]*v1.Hold{ana, maria}, "freeze-1", "freeze-1", "Warning: hold freeze-1 (Freeze) of module shop: migration; it was put by ana", "held still"},
	} {
		hub.holds = tt.holds
		got := hub.run(t, run{}, "unhold", tt.args)
		if id := asked[*v1.ConfirmHoldRequest](hub).GetId(); got.code != 0 || id != tt.ends || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, tt.not) {
			t.Errorf("unhold %s: exit %d, ended %s, %s", tt.args, got.code, id, got.err)
		}
	}
	hub = fullHub()
	hub.holds = []*v1.Hold{maria, {Id: "freeze-3", Kind: "Freeze", Project: "default", Module: "shop", By: "maria"}}
	says := "maria has put 2 of these holds: name the one that is to end: towline unhold freeze-2 (a look); towline unhold freeze-3 (without a reason)"
	if got := hub.run(t, run{}, "unhold", "module/shop"); got.code != exitUsage || !strings.Contains(got.err, says) || asked[*v1.ConfirmHoldRequest](hub) != nil {
		t.Errorf("two of one name: exit %d, %s", got.code, got.err)
	}
}

func TestHoldsOfObjects(t *testing.T) {
	for args, want := range map[string]string{
		"hold Deployment/shop/web --cluster c1 -m why":     "Deployment shop web",
		"hold object Deployment/shop/web --cluster c1":     "Deployment shop web",
		"hold object/Cluster/fleet/east --cluster c1":      "Cluster fleet east",
		"hold ClusterRole/reader --cluster c1 --until 12h": "ClusterRole  reader",
		"hold module/shop --cluster c1 --for 2h":           "  ",
	} {
		hub := fullHub()
		got := hub.run(t, run{}, strings.Fields(args)...)
		req := asked[*v1.PutHoldRequest](hub)
		o := req.GetObject()
		if text := o.GetKind() + " " + o.GetNamespace() + " " + o.GetName(); got.code != 0 || text != want || req.GetCluster() != "c1" {
			t.Errorf("towline %s: exit %d, %s, asked %v", args, got.code, got.err, req)
		}
		if strings.Contains(args, "--for") && req.GetUntil().AsTime().IsZero() {
			t.Errorf("towline %s: no end", args)
		}
	}
	for args, want := range map[string]string{
		"hold Deployment/shop/web":                        "Deployment/shop/web: in which cluster? --cluster C",
		"hold Deployment//web --cluster c1":               "write KIND/NAMESPACE/NAME",
		"hold modul/shop --cluster c1":                    "did you mean modules?",
		"hold Secret/shop/db --cluster c1":                "secret is a kind of Towline's, too, of which nothing is held; an object of a cluster is written: object Secret/shop/db --cluster C",
		"hold module/shop --for 0s":                       "--for 0s: how long",
		"hold module/shop --for 1h --until 12h":           "write --for or --until, not both",
		"unhold Deployment/shop/api --cluster prod-eu-11": "Deployment/shop/api: is not held",
	} {
		if got := fullHub().run(t, run{}, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, want) {
			t.Errorf("towline %s: exit %d, %s; want %s", args, got.code, got.err, want)
		}
	}
	hub := fullHub()
	hub.holds = []*v1.Hold{{Id: "freeze-1", Kind: "Freeze", Module: "shop", Cluster: "c1"},
		{Id: "freeze-2", Kind: "Freeze", Module: "shop", Cluster: "c1", Object: &v1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}}}
	for args, id := range map[string]string{"unhold deployment/shop/web --cluster c1": "freeze-2", "unhold module/shop --cluster c1": "freeze-1"} {
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code != 0 || asked[*v1.ConfirmHoldRequest](hub).GetId() != id {
			t.Errorf("towline %s: exit %d, %s", args, got.code, got.err)
		}
	}
}

func TestVerbsSayWhatTheyMean(t *testing.T) {
	hub := fullHub()
	for args, check := range map[string]func() bool{
		"rollout rollback shop --to-revision r41 --clusters failed": func() bool {
			r := asked[*v1.RollBackRolloutRequest](hub)
			return r.GetRevision() == 41 && r.GetScope() == "failed" && r.GetNumber() == 0
		},
		"rollout skip shop/57 --cluster a --cluster b -m x": func() bool {
			r := asked[*v1.SkipClustersRequest](hub)
			return r.GetNumber() == 57 && slices.Equal(r.GetClusters(), []string{"a", "b"}) && r.GetReason() == "x" && r.GetRequestId() != ""
		},
		"rollout approve team/shop --stage canary --gate approval --revision 42": func() bool {
			r := asked[*v1.ApproveGateRequest](hub)
			return r.GetProject() == "team" && r.GetStage() == "canary" && r.GetGate() == "approval" && r.GetRevision() == 42
		},
		"rollout reject shop --stage canary -m no": func() bool {
			r := asked[*v1.RejectGateRequest](hub)
			return r.GetModule() == "shop" && r.GetStage() == "canary" && r.GetReason() == "no"
		},
		"rollout pin shop --cluster a --until 48h": func() bool {
			return asked[*v1.PinClustersRequest](hub).GetUntil().AsTime().Equal(now.Add(48 * time.Hour))
		},
		"rollout pin shop --cluster a --until 2026-07-03": func() bool {
			return asked[*v1.PinClustersRequest](hub).GetUntil().AsTime().Equal(time.Date(2026, 7, 3, 0, 0, 0, 0, time.UTC))
		},
		"rollout unpin shop --cluster a":         func() bool { return slices.Equal(asked[*v1.UnpinClustersRequest](hub).GetClusters(), []string{"a"}) },
		"rollout retry shop --cluster a":         func() bool { return slices.Equal(asked[*v1.RetryRolloutRequest](hub).GetClusters(), []string{"a"}) },
		"rollout promote shop --stage canary":    func() bool { return asked[*v1.PromoteStageRequest](hub).GetStage() == "canary" },
		"rollout override shop --gate done -m x": func() bool { return asked[*v1.OverrideGateRequest](hub).GetGate() == "done" },
		"rollout pause shop -m lunch":            func() bool { return asked[*v1.PauseRolloutRequest](hub).GetReason() == "lunch" },
		"rollout resume shop":                    func() bool { return asked[*v1.ResumeRolloutRequest](hub).GetModule() == "shop" },
		"rollout abort shop":                     func() bool { return asked[*v1.AbortRolloutRequest](hub).GetModule() == "shop" },
	} {
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code != 0 || !check() {
			t.Errorf("%s: exit %d %s, the hub was asked %v", args, got.code, got.err, hub.requests)
		}
	}
	hub.refused = rpc.ToStatus(fleet.Errorf(fleet.ErrPrecondition, "rollout shop/57: nothing failed"))
	if got := hub.run(t, run{}, "rollout", "retry", "shop"); got.code != 1 || !strings.Contains(got.err, "rollout shop/57: nothing failed") {
		t.Errorf("a verb that was not taken: exit %d, stderr %q", got.code, got.err)
	}
}

// A module whose record is damaged can be deleted, as the hub says.
func TestDamagedModuleIsDeleted(t *testing.T) {
	module := func(uid, state string) *v1.Module {
		return &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default", Uid: uid}, Status: &v1.ModuleStatus{RolloutState: state}}
	}
	hub := &fakeHub{modules: []*v1.Module{module("", "Damaged")}, gone: &v1.DeleteModuleResponse{Objects: 1, Clusters: 1}}
	hub.changes = []*v1.WatchModulesResponse{{Type: "MODIFIED", Module: module("one", "Deleting")}, {Type: "DELETED", Module: module("one", "Deleting")}}
	if got := hub.run(t, run{}, "delete", "module/shop", "--yes", "--timeout", "10s"); got.code != 0 || !strings.Contains(got.out, "module/shop deleted") {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
	hub.modules = []*v1.Module{module("", "Damaged")}
	hub.changes = []*v1.WatchModulesResponse{{Type: "MODIFIED", Module: module("one", "Deleting")}, {Type: "MODIFIED", Module: module("two", "")}}
	if got := hub.run(t, run{}, "delete", "module/shop", "--yes", "--timeout", "10s"); got.code != exitSuperseded {
		t.Errorf("when another one has the name: exit %d, %s%s", got.code, got.out, got.err)
	}
}

// A deletion that is waited for is done when the module is gone, and not before. When another one has its name, nobody can
// say so: it is not called removed.
func TestDeleteWaitsForThisModule(t *testing.T) {
	module := func(uid string) *v1.Module {
		return &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default", Uid: uid, DeletionTimestamp: ago(time.Second)}, Status: &v1.ModuleStatus{Clusters: 1, Away: 1}}
	}
	hub := &fakeHub{modules: []*v1.Module{module("one")}, gone: &v1.DeleteModuleResponse{Objects: 1, Clusters: 1}}
	if got := hub.run(t, run{}, "delete", "module/shop", "--yes", "--timeout", "100ms"); got.code != exitTimedOut {
		t.Errorf("while it is there: exit %d, %s%s", got.code, got.out, got.err)
	}
	hub = &fakeHub{modules: []*v1.Module{module("one")}, gone: &v1.DeleteModuleResponse{Objects: 1, Clusters: 1}}
	hub.changes = []*v1.WatchModulesResponse{{Type: "MODIFIED", Module: module("one")}, {Type: "MODIFIED", Module: module("two")}}
	if got := hub.run(t, run{}, "delete", "module/shop", "--yes", "--timeout", "10s"); got.code != exitSuperseded || strings.Contains(got.out, "removed") ||
		!strings.Contains(got.err, "module shop: another one was put under the name before this one was gone everywhere") {
		t.Errorf("when another one has the name: exit %d, %s%s", got.code, got.out, got.err)
	}
}

// What one command prints as the name of something, every other takes.
func TestNamesGoRound(t *testing.T) {
	hub := fullHub()
	names := func(kind string) []string {
		t.Helper()
		got := hub.run(t, run{}, "get", kind, "-A", "-o", "name")
		if got.code != 0 || got.out == "" {
			t.Fatalf("get %s: exit %d, %q %q", kind, got.code, got.out, got.err)
		}
		return strings.Fields(got.out)
	}
	for _, tc := range []struct {
		kind    string
		command []string
	}{
		{"holds", []string{"describe"}}, {"rollouts", []string{"rollout", "pause"}}, {"modules", []string{"rollout", "history"}},
		{"modules", []string{"rollout", "resume"}}, {"modules", []string{"render"}}, {"modules", []string{"describe"}}, {"clusters", []string{"cluster", "cordon"}},
		{"clusters", []string{"cluster", "revoke"}}, {"clusters", []string{"describe"}}, {"revisions", []string{"render"}}, {"revisions", []string{"describe"}},
	} {
		for _, name := range names(tc.kind) {
			if got := hub.run(t, run{}, append(slices.Clone(tc.command), name)...); got.code == 2 || strings.Contains(got.err, "not found") || strings.Contains(got.err, "there is no") {
				t.Errorf("%s %s: exit %d: %s", strings.Join(tc.command, " "), name, got.code, got.err)
			}
		}
	}
	if c := asked[*v1.PauseRolloutRequest](hub); c.GetModule() == "" || c.GetNumber() == 0 || strings.Contains(c.GetModule(), "rollout") {
		t.Errorf("paused %v", c)
	}
	if c := asked[*v1.RevokeClusterRequest](hub); strings.Contains(c.GetName(), "/") {
		t.Errorf("revoked %v", c)
	}
}

// What lasts for so long lasts so by the clock of the hub, which ends it: by that of a machine that is minutes behind, as one that
// slept, writes would begin again minutes too soon.
func TestWhatLastsForAWhileEndsByTheHubsClock(t *testing.T) {
	for args, until := range map[string]func(*fakeHub) *timestamppb.Timestamp{
		"hold module/shop --for 30m":               func(h *fakeHub) *timestamppb.Timestamp { return asked[*v1.PutHoldRequest](h).GetUntil() },
		"hold module/shop --until 30m":             func(h *fakeHub) *timestamppb.Timestamp { return asked[*v1.PutHoldRequest](h).GetUntil() },
		"rollout pin shop --cluster a --until 30m": func(h *fakeHub) *timestamppb.Timestamp { return asked[*v1.PinClustersRequest](h).GetUntil() },
	} {
		hub := fullHub()
		hub.info = &v1.GetServerInfoResponse{Time: timestamppb.New(now.Add(20 * time.Minute))}
		got := hub.run(t, run{}, strings.Fields(args)...)
		if end := until(hub).AsTime(); got.code != 0 || !end.Equal(now.Add(50*time.Minute)) {
			t.Errorf("towline %s: exit %d, %s, ends %s", args, got.code, got.err, end)
		}
	}
}

// A new token is for a cluster that is there, and for the one that was seen: a name that was mistyped would else be another cluster, without labels,
// whose token the agent takes.
func TestReissueMakesNoCluster(t *testing.T) {
	hub := fullHub()
	got := hub.run(t, run{}, "cluster", "join", "prod-eu-1", "--reissue")
	if got.code != 1 || got.out != "" || got.err != "Error: cluster prod-eu-1 not found; to make it run: towline cluster join prod-eu-1\n" || timesAsked[*v1.JoinClusterRequest](hub) != 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, the hub was asked %v", got.code, got.out, got.err, hub.requests)
	}
	hub.clusters[0].Metadata.Uid = "uid-1"
	name := hub.clusters[0].GetMetadata().GetName()
	if got := hub.run(t, run{}, "cluster", "join", name, "--reissue"); got.code != 0 || asked[*v1.JoinClusterRequest](hub).GetUid() != "uid-1" {
		t.Errorf("exit %d, stderr %q, the hub was asked %v", got.code, got.err, hub.requests)
	}
	if got := hub.run(t, run{}, "cluster", "join", "prod-eu-1"); got.code != 0 || asked[*v1.JoinClusterRequest](hub).GetUid() != "" {
		t.Errorf("without --reissue: exit %d, stderr %q", got.code, got.err)
	}
}
