package hub_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

const uploadYAML = `apiVersion: towline.dev/v1
kind: Module
metadata: {name: shop}
spec:
  source: {upload: {}}
  package: {plain: {path: deploy}}
  placement: {selector: {}}
`

// inFolder writes files into a folder.
func inFolder(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must(t, os.WriteFile(at, []byte(content), 0o644))
	}
}

func greeting(text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: greeting, namespace: default}\ndata: {text: " + text + "}\n"
}

// rendered are the objects of a module's newest revision as text.
func (w *world) rendered(name string) string {
	w.t.Helper()
	resp, err := w.Modules.GetRevisionObjects(w.ctx, &towlinev1.GetRevisionObjectsRequest{Module: name})
	must(w.t, err)
	var out strings.Builder
	for _, raw := range resp.GetObjects() {
		out.Write(raw)
		out.WriteByte('\n')
	}
	return out.String()
}

// TestModuleOfALocalFolder: a folder is rolled out with nothing but the command line, and stays the module's until another one is given.
func TestModuleOfALocalFolder(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	towline, dir := w.cli(), t.TempDir()
	inFolder(t, dir, map[string]string{"deploy/cm.yaml": greeting("one"), "deploy/draft.yaml": "no: [manifest", ".towlineignore": "draft.yaml\n", ".git/HEAD": "ref: x"})
	says := func(stdin, want string, args ...string) string {
		t.Helper()
		out, err := towline(stdin, args...)
		if failed := strings.HasPrefix(want, "!"); failed == (err == nil) || !strings.Contains(out, strings.TrimPrefix(want, "!")) {
			t.Fatalf("towline %q: %v, want %s\n%s", args, err, want, out)
		}
		return out
	}
	says(uploadYAML, "!module shop: spec.source.upload: has no files on the hub yet: apply it with --from DIR", "apply", "-f", "-")
	says(uploadYAML, "!cm.yaml", "apply", "-f", "-", "--from", filepath.Join(dir, "deploy/cm.yaml"))
	says(uploadYAML, "created (server dry run)", "apply", "-f", "-", "--from", dir, "--dry-run=server")
	says(uploadYAML, "module/shop created", "apply", "-f", "-", "--from", dir, "--wait", "--timeout", "30s")
	if got := w.rendered("shop"); !strings.Contains(got, `"text":"one"`) {
		t.Fatalf("rendered %s", got)
	}
	says(uploadYAML, "module/shop unchanged", "apply", "-f", "-")
	says(uploadYAML, "module/shop unchanged", "apply", "-f", "-", "--from", dir+"/../"+filepath.Base(dir))
	stored := says("", "digest: ", "get", "module/shop", "-o", "yaml")
	says(stored, "module/shop unchanged", "apply", "-f", "-")

	inFolder(t, dir, map[string]string{"deploy/cm.yaml": greeting("two")})
	says(uploadYAML, "module/shop configured (server dry run)", "apply", "-f", "-", "--from", dir, "--dry-run=server")
	plan := regexp.MustCompile(`digest: "?([0-9a-f]{64})`).FindStringSubmatch(says(uploadYAML, "digest", "diff", "-f", "-", "--from", dir, "-o", "yaml"))
	if plan == nil {
		t.Fatal("the diff has no plan")
	}
	inFolder(t, dir, map[string]string{"deploy/cm.yaml": greeting("three")})
	says(uploadYAML, "!"+"plan", "apply", "-f", "-", "--from", dir, "--plan", plan[1])
	inFolder(t, dir, map[string]string{"deploy/cm.yaml": greeting("two")})
	says(uploadYAML, "module/shop configured", "apply", "-f", "-", "--from", dir, "--plan", plan[1], "--wait", "--timeout", "30s")
	if got := w.rendered("shop"); !strings.Contains(got, `"text":"two"`) {
		t.Errorf("rendered %s", got)
	}
	says(uploadYAML, "Succeeded", "rollout", "simulate", "-f", "-")
	says(strings.Replace(uploadYAML, "{selector: {}}", "{clusters: [a]}", 1), "module/shop configured", "apply", "-f", "-") // which keeps the files
	says(strings.Replace(uploadYAML, "upload: {}", "inline: {files: {a.yaml: x}}", 1), "!--from is for source: {upload: {}}, and its source is inline", "apply", "-f", "-", "--from", dir)
	inFolder(t, dir, map[string]string{"deploy/cm.yaml": "kind: ConfigMap"})
	says(uploadYAML, "!cm.yaml", "apply", "-f", "-", "--from", dir)
	testSharedFolder(t, w, says)
}

// testSharedFolder: of several modules all take the one folder.
func testSharedFolder(t *testing.T, w *world, says func(stdin, want string, args ...string) string) {
	dir := t.TempDir()
	inFolder(t, dir, map[string]string{"x/cm.yaml": strings.Replace(greeting("x"), "name: greeting", "name: cm-x", 1), "y/cm.yaml": strings.Replace(greeting("of y"), "name: greeting", "name: cm-y", 1)})
	of := func(name string) string {
		return strings.NewReplacer("name: shop", "name: "+name, "path: deploy", "path: "+name).Replace(uploadYAML)
	}
	out := says(of("x")+"---\n"+of("y"), "module/x created", "apply", "-f", "-", "--from", dir, "--wait", "--timeout", "30s")
	if !strings.Contains(out, "module/y created") || !strings.Contains(w.rendered("x"), `"text":"x"`) || !strings.Contains(w.rendered("y"), `"text":"of y"`) {
		t.Errorf("%s\n%s%s", out, w.rendered("x"), w.rendered("y"))
	}
}

func zstdOf(t *testing.T, data []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	return enc.EncodeAll(data, nil)
}

// pieces are what is sent of a frame.
func pieces(digest fleet.Digest, frame []byte) (out []*towlinev1.UploadArtifactRequest) {
	out = []*towlinev1.UploadArtifactRequest{{Digest: digest.String()}}
	for len(frame) > 0 {
		n := min(len(frame), 256<<10)
		out = append(out, &towlinev1.UploadArtifactRequest{Data: frame[:n]})
		frame = frame[n:]
	}
	return out
}

func uploads(ctx context.Context, c *client.Client, list ...*towlinev1.UploadArtifactRequest) error {
	st, err := c.Artifacts.UploadArtifact(ctx)
	if err != nil {
		return err
	}
	for _, m := range list {
		if st.Send(m) != nil {
			break // CloseAndRecv says why
		}
	}
	_, err = st.CloseAndRecv()
	return err
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TestUploadsAreLookedAt: what is no set of files, or another one than it says, is refused before anything is stored.
func TestUploadsAreLookedAt(t *testing.T) {
	w := newWorld(t, true)
	good := artifact.Encode(map[string][]byte{"a.yaml": []byte(greeting("a"))})
	digest := fleet.DigestOf(good)
	as := func(encoding string) []*towlinev1.UploadArtifactRequest {
		return pieces(fleet.DigestOf([]byte(encoding)), zstdOf(t, []byte(encoding)))
	}
	head := "towline-files-1\n"
	for name, tt := range map[string]struct {
		list []*towlinev1.UploadArtifactRequest
		want string
		kind error
	}{
		"nothing":        {nil, "digest: is missing: an upload begins with it", fleet.ErrInvalid},
		"no digest":      {[]*towlinev1.UploadArtifactRequest{{Data: good}}, "digest: ", fleet.ErrInvalid},
		"zeros":          {[]*towlinev1.UploadArtifactRequest{{Digest: strings.Repeat("0", 64)}}, "is all zeros", fleet.ErrInvalid},
		"digest again":   {append(pieces(digest, zstdOf(t, good)), &towlinev1.UploadArtifactRequest{Digest: digest.String()}), "is in the first message only", fleet.ErrInvalid},
		"large message":  {append(pieces(digest, nil), &towlinev1.UploadArtifactRequest{Data: noise(256<<10 + 1)}), "a message of 262145 bytes", fleet.ErrExhausted},
		"too large":      {pieces(digest, noise(artifact.MaxPackedBytes+1)), "has more than 64 MiB packed", fleet.ErrExhausted},
		"no frame":       {pieces(digest, good), "is no zstd frame, or cut off", fleet.ErrInvalid},
		"cut":            {pieces(digest, zstdOf(t, good)[:30]), "is no zstd frame, or cut off", fleet.ErrInvalid},
		"other content":  {pieces(fleet.DigestOf([]byte("x")), zstdOf(t, good)), "the files have digest " + digest.String(), fleet.ErrCorrupt},
		"no files":       {as("PK\x03\x04 and a long text behind it"), "does not begin as one", fleet.ErrCorrupt},
		"cut inside":     {as(string(good[:len(good)-3])), "ends inside a file", fleet.ErrCorrupt},
		"bytes behind":   {as(string(good) + "x"), "bytes follow its end", fleet.ErrCorrupt},
		"parent":         {as(head + "\x01\x05../ab\x00"), "leads outside of the source", fleet.ErrInvalid},
		"absolute":       {as(head + "\x01\x02/a\x00"), "is an absolute path", fleet.ErrInvalid},
		"twice":          {as(head + "\x02\x01a\x00\x01a\x00"), `"a" is there twice`, fleet.ErrInvalid},
		"case":           {as(head + "\x02\x01A\x00\x01a\x00"), "differ in case only", fleet.ErrInvalid},
		"file or folder": {as(head + "\x02\x01a\x00\x03a/b\x00"), "is both a file and a folder", fleet.ErrInvalid},
		"out of order":   {as(head + "\x02\x01b\x00\x01a\x00"), "names are out of order", fleet.ErrCorrupt},
		"bomb":           {pieces(digest, zstdOf(t, append([]byte(head+"\x01\x01a\x81\x80\x80\x64"), make([]byte, artifact.MaxUnpackedBytes+1)...))), "more than 200 MiB", fleet.ErrExhausted},
	} {
		if err := uploads(w.ctx, w.Client, tt.list...); !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s (%v)", name, err, tt.want, tt.kind)
		}
	}
	// One that is killed in the middle leaves nothing, and is no hindrance to the next.
	ctx, kill := context.WithCancel(w.ctx)
	st, err := w.Artifacts.UploadArtifact(ctx)
	must(t, err)
	must(t, st.Send(pieces(digest, zstdOf(t, good))[0]))
	kill()
	kept, err := w.Artifacts.KeepArtifact(w.ctx, &towlinev1.KeepArtifactRequest{Digest: digest.String()})
	if err != nil || kept.GetHeld() {
		t.Fatalf("after all of them the hub has the files: %v, %v", kept, err)
	}
	for range 2 {
		must(t, uploads(w.ctx, w.Client, pieces(digest, zstdOf(t, good))...))
	}
	sent, err := w.Upload(w.ctx, digest.String(), func() ([]byte, error) { return nil, errors.New("packed although it is there") })
	if sent || err != nil {
		t.Errorf("what the hub has was sent again: %v", err)
	}
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Upload: &towlinev1.UploadSource{Digest: strings.Repeat("ab", 32)}}
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m}); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "apply the module with --from DIR") {
		t.Errorf("a put of files that are not there: %v", err)
	}
	testUploadOfViewer(t, w, pieces(digest, zstdOf(t, good)))
}

func testUploadOfViewer(t *testing.T, w *world, list []*towlinev1.UploadArtifactRequest) {
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "eve", Role: "viewer"})
	must(t, err)
	eve := w.as(user.GetToken())
	if err := uploads(w.ctx, eve, list...); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "UploadArtifact needs admin") {
		t.Errorf("a viewer uploads: %v", err)
	}
	if _, err := eve.Artifacts.KeepArtifact(w.ctx, &towlinev1.KeepArtifactRequest{Digest: list[0].GetDigest()}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a viewer keeps: %v", err)
	}
}

// TestManyUploadTheSame: jobs that start together upload one folder.
func TestManyUploadTheSame(t *testing.T) {
	w := newWorld(t, false)
	archive := artifact.Encode(map[string][]byte{"a.yaml": []byte(greeting("a")), "noise": noise(3 << 20)})
	frame := zstdOf(t, archive)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := w.Upload(w.ctx, fleet.DigestOf(archive).String(), func() ([]byte, error) { return frame, nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// collections tells each collection of a hub that deleted something.
type collections struct{ seen chan struct{} }

func (c collections) Enabled(context.Context, slog.Level) bool { return true }

func (c collections) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "blobs collected" {
		select {
		case c.seen <- struct{}{}:
		default:
		}
	}
	return nil
}
func (c collections) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c collections) WithGroup(string) slog.Handler      { return c }

// TestUploadOutlivesCollections: between an upload and its put, and between the put and its revision, nothing is collected; of a module
// that is gone the files go in their time.
func TestUploadOutlivesCollections(t *testing.T) {
	seen := collections{make(chan struct{}, 1)}
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.CollectEvery, o.Log = true, 10*time.Millisecond, slog.New(seen) })
	w.join("a", nil, nil)
	archive := artifact.Encode(map[string][]byte{"a.yaml": []byte(greeting("a"))})
	digest := fleet.DigestOf(archive).String()
	_, err := w.Upload(w.ctx, digest, func() ([]byte, error) { return zstdOf(t, archive), nil })
	must(t, err)
	sweep := func(n int) { // what a diff has stored is garbage two sweeps later
		t.Helper()
		for i := range n {
			select {
			case <-seen.seen: // of what was before
			default:
			}
			w.diff(module("other", map[string]string{"a.yaml": greeting(fmt.Sprint("garbage", i, time.Now().UnixNano()))}))
			select {
			case <-seen.seen:
			case <-w.ctx.Done():
				t.Fatal("nothing is collected")
			}
		}
	}
	sweep(3)
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Upload: &towlinev1.UploadSource{Digest: digest}}
	if ro := w.await("shop", w.put(m).GetRevision()); ro.GetStatus().GetState() != "Succeeded" {
		t.Fatalf("%v", ro.GetStatus())
	}
	sweep(3)
	m.Spec.Source.Upload.Digest = ""
	m.Spec.AllowEmpty = true
	if ro := w.await("shop", w.put(m).GetRevision()); ro.GetStatus().GetState() != "Succeeded" || !strings.Contains(w.rendered("shop"), `"text":"a"`) {
		t.Errorf("%v", ro.GetStatus())
	}
}

// TestLargeUploads: an install manifest of 1.9 MB in one file, beside 60 MiB that do not compress.
func TestLargeUploads(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	var manifest strings.Builder
	objects := 0
	for ; manifest.Len() < 1_900_000; objects++ {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm-%d, namespace: default}\ndata: {text: %q}\n", objects, strings.Repeat(fmt.Sprint("line ", objects, " "), 200))
	}
	dir := t.TempDir()
	inFolder(t, dir, map[string]string{"deploy/install.yaml": manifest.String(), "image.bin": string(noise(60 << 20))})
	out, err := w.cli()(uploadYAML, "apply", "-f", "-", "--from", dir, "--wait", "--timeout", "50s")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rev, err := w.Modules.GetRevision(w.ctx, &towlinev1.GetRevisionRequest{Module: "shop"})
	must(t, err)
	if int(rev.GetRevision().GetObjects()) != objects || rev.GetRevision().GetArtifact() != w.module("shop").GetSpec().GetSource().GetUpload().GetDigest() {
		t.Errorf("%d objects of %d, artifact %s", rev.GetRevision().GetObjects(), objects, rev.GetRevision().GetArtifact())
	}
}

// TestUploadPage runs the commands of docs/upload.md, one after the other, with the page's own module.
func TestUploadPage(t *testing.T) {
	page, err := os.ReadFile("../docs/upload.md")
	must(t, err)
	w := newWorld(t, true)
	w.join("a", nil, nil)
	dir := t.TempDir()
	blocks := regexp.MustCompile("(?ms)^```(yaml|sh)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	script := "set -e\n"
	for _, b := range blocks {
		if b[1] == "yaml" {
			inFolder(t, dir, map[string]string{"shop.yaml": b[2], "deploy/cm.yaml": strings.Replace(greeting("page"), ", namespace: default", "", 1)})
			continue
		}
		script += b[2]
	}
	if strings.Count(script, "towline ") < 5 {
		t.Fatalf("the page has few commands:\n%s", script)
	}
	if out, err := w.bash(dir, script); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// bash runs a script in a folder, with towline on its path.
func (w *world) bash(dir, script string) (string, error) {
	w.t.Helper()
	bin := filepath.Dir(builtCLI(w.t))
	cmd := exec.CommandContext(w.ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TOWLINE_CONFIG="+filepath.Join(w.dir, hub.AdminFile), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRenderOfAFile: the command line shows what an apply would bring, with placeholders or with the values of a cluster, and no value of a Secret.
func TestRenderOfAFile(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, map[string]string{"env": "prod"})
	w.join("b", nil, nil)
	towline, dir := w.cli(), t.TempDir()
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: db, namespace: default}\nstringData: {password: canary}\n"
	inFolder(t, dir, map[string]string{"deploy/cm.yaml": greeting("'${CLUSTER}'"), "deploy/s.yaml": secret})
	module := strings.Replace(uploadYAML, "{selector: {}}", "{selector: {matchLabels: {env: prod}}}\n  bindings: [{name: CLUSTER, clusterField: metadata.name}]", 1)
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"text: ${CLUSTER}", nil},
		{"text: a", []string{"--cluster", "a"}},
		{`"text": "a"`, []string{"--cluster", "a", "-o", "json"}},
		{`!the placement does not select "b"`, []string{"--cluster", "b"}},
		{"!cluster c: does not exist", []string{"--cluster", "c"}},
	} {
		out, err := towline(module, append([]string{"render", "-f", "-", "--from", dir}, tt.args...)...)
		if failed := strings.HasPrefix(tt.want, "!"); failed == (err == nil) || !strings.Contains(out, strings.TrimPrefix(tt.want, "!")) || strings.Contains(out, "canary") {
			t.Errorf("%q: %v, want %s\n%s", tt.args, err, tt.want, out)
		}
	}
	if _, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "shop"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the module is there: %v", err)
	}
}
