package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// api is the API server's part that Secrets needs, with optimistic concurrency and a crash on demand.
type api struct {
	mu      sync.Mutex
	secrets map[string]*corev1.Secret
	version int
	writes  int
	crashAt int // the write that fails, and all after it; 0: none
}

var errCrash = errors.New("crashed")

func newAPI() *api { return &api{secrets: map[string]*corev1.Secret{}} }

var resource = schema.GroupResource{Resource: "secrets"}

func (a *api) write() error {
	if a.writes++; a.crashAt > 0 && a.writes >= a.crashAt {
		return errCrash
	}
	a.version++
	return nil
}

func (a *api) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return s.DeepCopy(), nil
}

func (a *api) Create(_ context.Context, s *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(o.DryRun) > 0 {
		return s.DeepCopy(), nil
	}
	if _, ok := a.secrets[s.Name]; ok {
		return nil, apierrors.NewAlreadyExists(resource, s.Name)
	}
	if err := a.write(); err != nil {
		return nil, err
	}
	return a.put(s, types.UID(fmt.Sprint("uid-", a.version))), nil
}

func (a *api) Update(_ context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(o.DryRun) > 0 {
		return s.DeepCopy(), nil
	}
	old, ok := a.secrets[s.Name]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(resource, s.Name)
	case old.ResourceVersion != s.ResourceVersion:
		return nil, apierrors.NewConflict(resource, s.Name, errors.New("changed"))
	}
	if err := a.write(); err != nil {
		return nil, err
	}
	return a.put(s, old.UID), nil
}

func (a *api) put(s *corev1.Secret, uid types.UID) *corev1.Secret {
	size := 0
	for _, b := range s.Data {
		size += len(b)
	}
	if size > corev1.MaxSecretSize {
		panic("the API server takes no Secret of that size")
	}
	s = s.DeepCopy()
	s.UID, s.ResourceVersion = uid, fmt.Sprint(a.version)
	a.secrets[s.Name] = s
	return s.DeepCopy()
}

func (a *api) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, ok := a.secrets[name]
	switch p := o.Preconditions; {
	case !ok:
		return apierrors.NewNotFound(resource, name)
	case p != nil && (*p.UID != old.UID || *p.ResourceVersion != old.ResourceVersion):
		return apierrors.NewConflict(resource, name, errors.New("changed"))
	}
	if err := a.write(); err != nil {
		return err
	}
	delete(a.secrets, name)
	return nil
}

// meta is the same without contents.
type meta struct{ *api }

func metaOf(s *corev1.Secret) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: *s.ObjectMeta.DeepCopy()}
}

func (m meta) Get(ctx context.Context, name string, o metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	s, err := m.api.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return metaOf(s), nil
}

func (m meta) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	s, err := m.api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s, err = m.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return metaOf(s), nil
}

func (m meta) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	a := m.api
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for name, s := range a.secrets {
		if stateLabel+"="+s.Labels[stateLabel] == o.LabelSelector && name > o.Continue {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := &metav1.PartialObjectMetadataList{}
	if len(names) > int(o.Limit) {
		names = names[:o.Limit]
		out.Continue = names[len(names)-1]
	}
	for _, name := range names {
		out.Items = append(out.Items, *metaOf(a.secrets[name]))
	}
	return out, nil
}

// openSecrets opens them as a process that has held the Lease in an epoch before does.
func openSecrets(t *testing.T, a *api, epoch uint64) *Secrets {
	t.Helper()
	s, err := OpenSecrets(a, meta{a}, nil)
	if err == nil {
		err = s.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: epoch})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func randomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestConformance is what both backends promise.
func TestConformance(t *testing.T) {
	backends := map[string]func(t *testing.T) (open func() Store){
		"dir": func(t *testing.T) func() Store {
			dir := filepath.Join(t.TempDir(), "made", "state")
			var last *Dir
			t.Cleanup(func() { _ = last.Close() })
			return func() Store {
				if last != nil {
					if err := last.Close(); err != nil {
						t.Fatal(err)
					}
				}
				var err error
				if last, err = OpenDir(dir); err != nil {
					t.Fatal(err)
				}
				return last
			}
		},
		"secrets": func(t *testing.T) func() Store {
			a := newAPI()
			epoch := uint64(0)
			return func() Store {
				epoch++
				return openSecrets(t, a, epoch)
			}
		},
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) { conform(t, backend(t)) })
	}
}

func conform(t *testing.T, open func() Store) {
	ctx := t.Context()
	s := open()
	if err := s.WriteAll(ctx, Item{"all/a", []byte("1")}, Item{"all/b", []byte("2")}, Item{"all/c/d", []byte("3")}, Item{"whole", []byte("4")}); err != nil {
		t.Fatal(err)
	}
	s = open()
	for name, want := range map[string]string{"all/a": "1", "all/b": "2", "all/c/d": "3", "whole": "4"} {
		if got, err := s.Read(ctx, name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err := s.Remove(ctx, name); err != nil {
			t.Error(err)
		}
	}
	if err := s.WriteAll(ctx, Item{"good", []byte("1")}, Item{"a//bad", nil}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a name that is none: %v", err)
	}
	if err := s.Remove(ctx, "good"); err != nil {
		t.Error(err)
	}
	if _, err := s.Read(ctx, "nothing"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("reading what is not there: %v, want not found", err)
	}
	if err := s.Remove(ctx, "nothing"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	values := map[string][]byte{
		"desired":              []byte("one"),
		"inventory/shop/web":   {},
		"inventory/shop":       []byte("a name that is a prefix of another"),
		"inventory/..":         []byte("dots are plain letters"),
		"inventory/a.state/b":  []byte("the suffix too"),
		"inventory/a":          []byte("and its stem"),
		"odd/ü %41\x00 name":   []byte("x"),
		"contents/exact":       randomBytes(chunkBytes - headerSize),
		"contents/exact-twice": randomBytes(2*chunkBytes - headerSize),
		"contents/large":       randomBytes(3*chunkBytes + 17),
	}
	for name, data := range values {
		if err := s.Write(ctx, name, data); err != nil {
			t.Fatal(err)
		}
	}
	s = open()
	for name, want := range values {
		if got, err := s.Read(ctx, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: %d bytes and %v, want %d bytes", name, len(got), err, len(want))
		}
	}
	list := func(prefix string, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got, err := s.List(ctx, prefix); err != nil || !slices.Equal(got, want) {
			t.Errorf("list %q: %q and %v, want %q", prefix, got, err, want)
		}
	}
	list("inventory/", "inventory/shop/web", "inventory/shop", "inventory/..", "inventory/a.state/b", "inventory/a")
	list("contents/exact", "contents/exact", "contents/exact-twice")
	list("elsewhere/")

	for _, size := range []int{2 * chunkBytes, 10, 3 * chunkBytes} {
		want := randomBytes(size)
		if err := s.Write(ctx, "contents/large", want); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(ctx, "contents/large"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("overwritten with %d bytes: %d bytes and %v", size, len(got), err)
		}
	}
	for name := range values {
		if err := s.Remove(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	list("")
	for _, name := range []string{"", "/", "a//b", "a/", "/a", strings.Repeat("a", maxName+1)} {
		if err := s.Write(ctx, name, nil); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("name %.20q: %v, want invalid", name, err)
		}
	}
}

func TestManyNamesAreListedByPages(t *testing.T) {
	a := newAPI()
	s := openSecrets(t, a, 1)
	for i := range 3*listPage + 1 {
		if err := s.Write(t.Context(), fmt.Sprintf("n/%04d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := openSecrets(t, a, 2).List(t.Context(), "n/"); err != nil || len(names) != 3*listPage+1 {
		t.Errorf("%d names, %v", len(names), err)
	}
}

// A crash at any write leaves the old value or the new one, and the next write cleans up.
// hanging is an API server that does not answer writes.
type hanging struct{ *api }

func (h hanging) Create(ctx context.Context, _ *corev1.Secret, _ metav1.CreateOptions) (*corev1.Secret, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Who waits for a write that gets no answer waits no longer than its own time.
func TestWriteThatHangsHoldsUpNobodyForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		s := openSecrets(t, a, 1)
		s.client = hanging{a}
		long, end := context.WithCancel(t.Context())
		defer end()
		go func() { _ = s.Write(long, "x", []byte("1")) }()
		synctest.Wait()
		short, done := context.WithTimeout(t.Context(), time.Second)
		defer done()
		began := time.Now()
		for what, err := range map[string]error{"write": s.Write(short, "x", []byte("2")), "remove": s.Remove(short, "x")} {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := s.List(short, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("list: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("they took %v", took)
		}
	})
}

func TestSecretsSurviveACrashAtEveryWrite(t *testing.T) {
	before, after := randomBytes(3*chunkBytes), randomBytes(2*chunkBytes+5)
	for crash := 1; ; crash++ {
		a := newAPI()
		s := openSecrets(t, a, 1)
		if err := s.Write(t.Context(), "x", before); err != nil {
			t.Fatal(err)
		}
		a.writes, a.crashAt = 0, crash
		err := s.Write(t.Context(), "x", after)
		a.crashAt = 0
		got, rerr := s.Read(t.Context(), "x")
		if rerr != nil || !bytes.Equal(got, before) && !bytes.Equal(got, after) {
			t.Fatalf("crash at write %d: neither the old nor the new value: %v", crash, rerr)
		}
		if err == nil {
			if !bytes.Equal(got, after) {
				t.Fatal("a write succeeded and is not there")
			}
			return
		}
		if err := s.Write(t.Context(), "x", after); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(t.Context(), "x"); err != nil || !bytes.Equal(got, after) {
			t.Fatalf("crash at write %d, then another write: %v", crash, err)
		}
		openSecrets(t, a, 2)
		if n := len(a.secrets); n != 4 { // head, two chunks and the tenure
			t.Fatalf("crash at write %d: %d Secrets are left", crash, n)
		}
	}
}

func TestDirIsLocked(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, fleet.ErrExists) || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
}

func TestDirIsPrivateAndSweepsHalfWrittenFiles(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a", "b.state"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	half := filepath.Join(dir, "a", temp+"1")
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
	if d, err = OpenDir(dir); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the half-written file is still there: %v", err)
	}
}

func TestDamageIsSeen(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Write(t.Context(), "a", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.state")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(good)
	flipped[len(flipped)-1] ^= 1
	for name, b := range map[string][]byte{"flipped": flipped, "cut": good[:len(good)-1], "empty": nil, "newer": []byte("towline.state/2\n....x")} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Read(t.Context(), "a"); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%s: %v, want corrupt", name, err)
		}
	}
}
