package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
)

// canaries are secrets, each in a place where people put them.
func canaries(server string) *towlinev1.ModuleSpec {
	literal, fallback := "canary-literal", "canary-default"
	hook := strings.Replace(server, "http://", "http://hook:canary-hook-password@", 1) + "/services/canary-hook-path?key=canary-hook-query"
	return &towlinev1.ModuleSpec{
		Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{
			"plain.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: open, namespace: default}\n",
			"s.yaml": "# canary-comment\napiVersion: v1\nkind: Secret\nmetadata: {name: db, namespace: default, annotations: {kubectl.kubernetes.io/last-applied-configuration: canary-applied}}\n" +
				"stringData: {password: canary-text}\ndata: {token: Y2FuYXJ5LWRhdGE=}\n",
			"list.yaml": "apiVersion: v1\nkind: SecretList\nitems:\n- {metadata: {name: listed, namespace: default}, stringData: {a: canary-listed}}\n",
			"s.json":    `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"js","namespace":"default"},"stringData":{"a":"canary-json"}}`,
			"notes.txt": "canary-notes",
		}}},
		Bindings:  []*towlinev1.Binding{{Name: "PASSWORD", Value: &literal}, {Name: "REGION", ClusterLabel: "region", Default: &fallback}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}},
		Rollout: &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all",
			Before: []*towlinev1.Gate{{Webhook: &towlinev1.WebhookGate{Url: hook}}},
			After:  []*towlinev1.Gate{{Webhook: &towlinev1.WebhookGate{Url: strings.Replace(hook, "/services", "/refused", 1), Retries: new(int32)}}, {Metric: &towlinev1.MetricGate{Address: "http://prom:canary-metric-password@127.0.0.1:1/?token=canary-metric-query", Query: "up", SuccessCondition: "true", Interval: "1h"}}}}}},
	}
}

// planted puts the canaries, and a source whose fetch fails, and returns what the calls that read are asked with.
func planted(w *world) {
	w.t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/services") {
			_, _ = io.WriteString(rw, `{"state":"Successful"}`)
			return
		}
		rw.WriteHeader(http.StatusForbidden)
	}))
	w.t.Cleanup(srv.Close)
	w.join("a", nil, map[string]string{"region": "eu"})
	m := module("shop", nil)
	m.Spec = canaries(srv.URL)
	put := w.put(m)
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		s := r.GetStatus().GetStages()
		return len(s) > 0 && len(s[0].GetGates()) == 3 && strings.Contains(s[0].GetGates()[1].GetFacts().GetDetail(), "403")
	})
	fetched := module("fetched", nil)
	fetched.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{
		Url: strings.Replace(srv.URL, "http://", "http://canary-user:canary-password@", 1) + "/a.tgz?X-Amz-Signature=canary-signature#canary-fragment"}}
	w.await("fetched", w.put(fetched).GetRevision())
	chart := module("chart", map[string]string{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 1.0.0\n",
		"templates/s.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: chart, namespace: default}\nstringData: {password: {{ .Values.db.password }}}\n"})
	values, err := structpb.NewStruct(map[string]any{"db": map[string]any{"password": "canary-value", "users": []any{"canary-list"}}, "canary": 1})
	must(w.t, err)
	chart.Spec.Package = &towlinev1.Package{Helm: &towlinev1.HelmPackage{Values: values}}
	w.await("chart", w.put(chart).GetRevision())
	_, err = w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Reason: "a look"})
	must(w.t, err)
}

// requests ask a method for everything there is.
func requests(method protoreflect.MethodDescriptor) []proto.Message {
	var out []proto.Message
	for _, name := range []string{"shop", "fetched", "repo", "chart"} {
		m := dynamicpb.NewMessage(method.Input())
		for field, value := range map[protoreflect.Name]string{"module": name, "name": name} {
			fd := method.Input().Fields().ByName(field)
			if fd == nil || fd.Kind() != protoreflect.StringKind {
				continue
			}
			if strings.Contains(string(method.Name()), "Cluster") {
				value = "a"
			}
			m.Set(fd, protoreflect.ValueOfString(value))
		}
		out = append(out, m)
	}
	return append(out, dynamicpb.NewMessage(method.Input()))
}

// readAll calls every method of the public services that the client may call and that changes nothing, and returns what
// came as text, by method.
func readAll(t *testing.T, ctx context.Context, c *client.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	protoregistry.GlobalFiles.RangeFilesByPackage("towline.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				method := s.Methods().Get(k)
				for _, verb := range []string{"Get", "List", "Watch", "Explain"} {
					if strings.HasPrefix(string(method.Name()), verb) {
						out[string(method.FullName())] = readOne(t, ctx, c, method)
					}
				}
			}
		}
		return true
	})
	return out
}

func readOne(t *testing.T, ctx context.Context, c *client.Client, method protoreflect.MethodDescriptor) string {
	t.Helper()
	var text strings.Builder
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	for _, req := range requests(method) {
		ctx, cancel := context.WithCancel(ctx)
		st, err := c.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: method.IsStreamingServer()}, path)
		must(t, err)
		must(t, st.SendMsg(req))
		must(t, st.CloseSend())
		for more := true; more; {
			resp := dynamicpb.NewMessage(method.Output())
			if err := st.RecvMsg(resp); err != nil {
				fmt.Fprintf(&text, "%v\n", err)
				break
			}
			b, err := proto.Marshal(resp)
			must(t, err)
			text.Write(b)
			more = method.IsStreamingServer() && kindOf(resp) != "" && kindOf(resp) != "SYNCED"
		}
		cancel()
	}
	return text.String()
}

// kindOf is the type of a watch's event; empty: it is none.
func kindOf(m *dynamicpb.Message) string {
	if fd := m.Descriptor().Fields().ByName("type"); fd != nil {
		return m.Get(fd).String()
	}
	return ""
}

// secretsIn are the canaries of a text.
func secretsIn(text string) (found []string) {
	for _, c := range findAll(canary, text, "canary-", "Y2FuYXJ5") {
		if !slices.Contains(found, c) {
			found = append(found, c)
		}
	}
	return found
}

var canary = regexp.MustCompile("canary-[a-z-]+|Y2FuYXJ5[a-zA-Z0-9=]*")

// Whoever may only look sees no secret that somebody put, whatever is called; nor does anybody find one in what the hub
// says of a module, or in its log.
func TestViewersSeeNoSecrets(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.Log = true, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	planted(w)
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "eve", Role: "viewer"})
	must(t, err)
	seen := readAll(t, w.ctx, w.as(user.GetToken()))
	if len(seen) < 15 {
		t.Fatalf("only %d methods were found", len(seen))
	}
	answered := 0
	for method, text := range seen {
		if found := secretsIn(text); len(found) > 0 {
			t.Errorf("%s shows %v", method, found)
		}
		if strings.Contains(text, "shop") {
			answered++
		}
	}
	if answered < 10 {
		t.Errorf("only %d methods told of the module", answered)
	}
	if found := secretsIn(log.String()); len(found) > 0 {
		t.Errorf("the log shows %v", found)
	}
	for method, text := range readAll(t, w.ctx, w.Client) {
		if found := secretsIn(text); len(found) > 0 && !strings.HasSuffix(method, "Module") && !strings.HasSuffix(method, "Modules") &&
			!strings.HasSuffix(method, "Revision") && !strings.HasSuffix(method, "Revisions") && !strings.Contains(method, "RolloutService") {
			t.Errorf("%s shows even an admin %v", method, found)
		}
	}
}

// lockedBuffer takes a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What an admin reads goes back as it is; what was read masked would replace secrets by asterisks, and is refused.
func TestMaskedModulesAreNotTaken(t *testing.T) {
	w := newWorld(t, true)
	planted(w)
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "eve", Role: "viewer"})
	must(t, err)
	eve := w.as(user.GetToken())
	for _, name := range []string{"shop", "fetched", "chart"} {
		own := w.module(name)
		if again := w.put(&towlinev1.Module{Metadata: own.GetMetadata(), Spec: own.GetSpec()}); name == "shop" && again.GetResult() != "unchanged" {
			t.Errorf("%s as an admin reads it is %s", name, again.GetResult())
		}
		got, err := eve.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: name})
		must(t, err)
		if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: got.GetModule()}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "masked") {
			t.Errorf("%s as a viewer reads it: %v", name, err)
		}
		// Each masked field alone is refused, too.
		for what, change := range maskedFields(got.GetModule().GetSpec()) {
			m := proto.CloneOf(own)
			if !change(m.GetSpec()) {
				continue
			}
			_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: true})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), what) {
				t.Errorf("%s with its %s masked: %v", name, what, err)
			}
		}
	}
}

// maskedFields put one masked field into a spec that has the others as they are; false: it does not have it.
func maskedFields(masked *towlinev1.ModuleSpec) map[string]func(*towlinev1.ModuleSpec) bool {
	out := map[string]func(*towlinev1.ModuleSpec) bool{
		"spec.source.http.url": func(s *towlinev1.ModuleSpec) bool {
			if s.GetSource().GetHttp() == nil {
				return false
			}
			s.Source = masked.GetSource()
			return true
		},
		"spec.package.helm.values": func(s *towlinev1.ModuleSpec) bool {
			if s.GetPackage() == nil {
				return false
			}
			s.Package = masked.GetPackage()
			return true
		},
		"spec.bindings[0].value": func(s *towlinev1.ModuleSpec) bool {
			if len(s.GetBindings()) == 0 {
				return false
			}
			s.Bindings[0] = masked.GetBindings()[0]
			return true
		},
		"spec.rollout.stages[0].before[0].webhook.url": func(s *towlinev1.ModuleSpec) bool {
			if s.GetRollout() == nil {
				return false
			}
			s.Rollout.Stages[0].Before = masked.GetRollout().GetStages()[0].GetBefore()
			return true
		},
	}
	for _, file := range []string{"s.yaml", "list.yaml", "s.json", "notes.txt"} {
		out["spec.source.inline.files "+file] = func(s *towlinev1.ModuleSpec) bool {
			if masked.GetSource().GetInline().GetFiles()[file] == "" {
				return false
			}
			s.Source.Inline.Files[file] = masked.GetSource().GetInline().GetFiles()[file]
			return true
		}
	}
	return out
}
