package measure

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// Object makes object i of a set, as it is in a revision.
type Object func(namespace string, i, revision int) map[string]any

// Deployment has the size of an ordinary one, and no pods. A revision is a label of the Deployment: one of the template
// would have the controllers of the cluster write more than whoever applies it.
func Deployment(namespace string, i, revision int) map[string]any {
	name := fmt.Sprintf("app-%05d", i)
	app := map[string]any{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "bench"}
	probe := func(path string) map[string]any {
		return map[string]any{"httpGet": map[string]any{"path": path, "port": "http"}, "periodSeconds": 10}
	}
	container := map[string]any{
		"name": "main", "image": "example.com/bench/app:1.2.3", "args": []any{"--listen=:8080", "--log=json"},
		"env":            []any{map[string]any{"name": "NUMBER", "value": fmt.Sprint(i)}, map[string]any{"name": "LOG_LEVEL", "value": "info"}},
		"ports":          []any{map[string]any{"name": "http", "containerPort": 8080}},
		"resources":      map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "64Mi"}, "limits": map[string]any{"memory": "128Mi"}},
		"readinessProbe": probe("/ready"), "livenessProbe": probe("/live"),
		"securityContext": map[string]any{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true},
		"volumeMounts":    []any{map[string]any{"name": "config", "mountPath": "/etc/app"}},
	}
	labels := map[string]any{"app.kubernetes.io/version": fmt.Sprintf("%08d", revision)}
	maps.Copy(labels, app)
	return map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": labels},
		"spec": map[string]any{"replicas": 0, "selector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": name}},
			"template": map[string]any{"metadata": map[string]any{"labels": app}, "spec": map[string]any{
				"containers": []any{container}, "serviceAccountName": "default",
				"volumes": []any{map[string]any{"name": "config", "configMap": map[string]any{"name": "config"}}}}}}}
}

// ConfigMap has 1 KB of data.
func ConfigMap(namespace string, i, revision int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": fmt.Sprintf("config-%05d", i), "namespace": namespace},
		"data": map[string]any{"number": fmt.Sprint(i), "revision": fmt.Sprintf("%08d", revision),
			"text": strings.Repeat(fmt.Sprintf("line %06d of a file\n", i), 40)}}
}

// Marked is a body with label and annotation as the agent sets them, but of another hub of the same length.
func Marked(object map[string]any, hubID, owner string) ([]byte, error) {
	metadata := object["metadata"].(map[string]any)
	labels := map[string]any{fleet.HubLabel: hubID}
	if own, ok := metadata["labels"].(map[string]any); ok {
		maps.Copy(labels, own)
	}
	metadata["labels"] = labels
	metadata["annotations"] = map[string]any{fleet.OwnerAnnotation: owner}
	return json.Marshal(object)
}

// Manifest is a file with objects from to to-1 of a revision. The comment changes the file and no object.
func Manifest(make Object, namespace string, from, to, revision int, comment string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", comment)
	for i := from; i < to; i++ {
		text, err := json.Marshal(make(namespace, i, revision))
		if err != nil {
			return "", err
		}
		b.WriteString("---\n")
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// Files serves files of any size to a hub.
type Files struct {
	// URL ends in a slash.
	URL string

	mu     sync.Mutex
	files  map[string]string
	server *http.Server
}

// ServeFiles starts a server on the loopback interface.
func ServeFiles() (*Files, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Files{URL: "http://" + l.Addr().String() + "/", files: map[string]string{}}
	f.server = &http.Server{Handler: f}
	go func() { _ = f.server.Serve(l) }() // ends with Close
	return f, nil
}

// Put sets a file and returns its URL.
func (f *Files) Put(name, content string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[name] = content
	return f.URL + name
}

func (f *Files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	content, ok := f.files[strings.TrimPrefix(r.URL.Path, "/")]
	f.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(content)) // the hub fetches again
}

// Close ends the server.
func (f *Files) Close() error { return f.server.Close() }
