package state

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// clients reach the Secrets of one place: those of the fake, or of a namespace on a real API server.
type clients struct {
	SecretClient
	meta MetadataClient
}

// places calls f for the fake and, where there is one, for a real API server.
func places(t *testing.T, f func(t *testing.T, c clients)) {
	t.Run("fake", func(t *testing.T) {
		a := newAPI()
		f(t, clients{a, meta{a}})
	})
	t.Run("real", func(t *testing.T) {
		_, c := realPlace(t)
		f(t, c)
	})
}

// process is an agent's process with the state.
type process struct {
	*Secrets
	t *testing.T
	// before runs once, right before the next request that writes is sent: the process, all of it, stood still there.
	before func()
	mu     sync.Mutex
}

func (c clients) process(t *testing.T) *process {
	t.Helper()
	p := &process{t: t}
	s, err := OpenSecrets(still{c.SecretClient, p}, stillMeta{c.meta, p}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Secrets = s
	return p
}

func (c clients) leader(t *testing.T, epoch uint64) *process {
	t.Helper()
	p := c.process(t)
	p.take(epoch)
	return p
}

func (p *process) take(epoch uint64) {
	p.t.Helper()
	if err := p.Take(p.t.Context(), Tenure{Cluster: "uid-1", Epoch: epoch}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) write(name, text string) {
	p.t.Helper()
	if err := p.Write(p.t.Context(), name, []byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

// holds checks all that the state says.
func (p *process) holds(want ...string) {
	p.t.Helper()
	names, err := p.List(p.t.Context(), "")
	if err != nil {
		p.t.Fatal(err)
	}
	var got []string
	for _, name := range names {
		b, err := p.Read(p.t.Context(), name)
		if err != nil {
			p.t.Fatal(err)
		}
		got = append(got, name+"="+string(b[:min(len(b), 10)]))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		p.t.Errorf("the state says %q, want %q", got, want)
	}
}

func (p *process) stood() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.before != nil {
		f := p.before
		p.before = nil
		f()
	}
}

type still struct {
	SecretClient
	p *process
}

func (s still) Create(ctx context.Context, x *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	s.p.stood()
	return s.SecretClient.Create(ctx, x, o)
}

func (s still) Update(ctx context.Context, x *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	s.p.stood()
	return s.SecretClient.Update(ctx, x, o)
}

func (s still) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	s.p.stood()
	return s.SecretClient.Delete(ctx, name, o)
}

type stillMeta struct {
	MetadataClient
	p *process
}

func (s stillMeta) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*metav1.PartialObjectMetadata, error) {
	s.p.stood()
	return s.MetadataClient.Patch(ctx, name, pt, data, o, sub...)
}

// A process that lost the Lease cannot change what the new holder has, wherever it stood still.
func TestDeposedWriterLoses(t *testing.T) {
	large := strings.Repeat("large.....", chunkBytes/8)
	for name, act := range map[string]func(ctx context.Context, old *process) error{
		"writes over":           func(ctx context.Context, old *process) error { return old.Write(ctx, "x", []byte("late")) },
		"writes a large one":    func(ctx context.Context, old *process) error { return old.Write(ctx, "large", []byte(large+"late")) },
		"makes a large one new": func(ctx context.Context, old *process) error { return old.Write(ctx, "z", []byte(large)) },
		"makes a new name":      func(ctx context.Context, old *process) error { return old.Write(ctx, "y", []byte("late")) },
		"removes":               func(ctx context.Context, old *process) error { return old.Remove(ctx, "x") },
		"removes a large one":   func(ctx context.Context, old *process) error { return old.Remove(ctx, "large") },
	} {
		t.Run(name, func(t *testing.T) {
			places(t, func(t *testing.T, c clients) {
				old := c.leader(t, 1)
				old.write("x", "one")
				old.write("large", large)
				var late *process
				old.before = func() { late = c.leader(t, 2) }
				err := act(t.Context(), old)
				if late == nil {
					t.Fatal("nothing was written")
				}
				if err != nil && !errors.Is(err, fleet.ErrStale) {
					t.Errorf("error %v", err)
				}
				late.holds("large=large.....", "x=one")
				if err := old.Write(t.Context(), "x", []byte("later")); !errors.Is(err, fleet.ErrStale) {
					t.Errorf("the old process goes on: %v", err)
				}
				late.write("x", "two")
				late.write("large", "small")
				late.write("y", "mine")
				late.holds("large=small", "x=two", "y=mine")
				next := c.leader(t, 3)
				next.holds("large=small", "x=two", "y=mine")
			})
		})
	}
}

// What a process made anew after it had lost the Lease counts for nobody, also when the new holder never used the name.
func TestNamesOfADeposedWriterDoNotCount(t *testing.T) {
	places(t, func(t *testing.T, c clients) {
		old := c.leader(t, 1)
		old.write("x", "one")
		var late *process
		old.before = func() { late = c.leader(t, 2) }
		_ = old.Write(t.Context(), "inventory-2-base", []byte("of an old world"))
		late.holds("x=one")
		if b, err := late.Read(t.Context(), "inventory-2-base"); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("%q, %v", b, err)
		}
		c.leader(t, 3).holds("x=one")
	})
}

// What the old holder wrote while it was deposed is read by the new one, or fails; it is not lost between them.
func TestWriteDuringATake(t *testing.T) {
	places(t, func(t *testing.T, c clients) {
		old := c.leader(t, 1)
		for _, name := range []string{"a", "b", "c"} {
			old.write(name, "one")
		}
		late := c.process(t)
		var failed error
		late.before = func() {
			old.write("b", "two")
			failed = old.Remove(t.Context(), "c")
		}
		late.take(2)
		if failed != nil {
			t.Fatal(failed)
		}
		late.holds("a=one", "b=two")
		late.write("b", "three")
		c.leader(t, 3).holds("a=one", "b=three")
	})
}

// A Take that was cut short, at any request, is repeated by the next process; two that overlap end with the later one.
func TestTakeIsCutShort(t *testing.T) {
	places(t, func(t *testing.T, c clients) {
		first := c.leader(t, 1)
		first.write("a", "one")
		first.write("b", "two")
		for epoch := uint64(2); epoch < 8; epoch++ {
			ctx, cancel := context.WithCancel(t.Context())
			cut := c.process(t)
			left := int(epoch) - 1
			var count func()
			count = func() {
				if left--; left == 0 {
					cancel()
				}
				cut.before = count
			}
			cut.before = count
			_ = cut.Take(ctx, Tenure{Cluster: "uid-1", Epoch: epoch})
			cancel()
		}
		late := c.leader(t, 9)
		late.holds("a=one", "b=two")
		late.before = func() { c.leader(t, 11).holds("a=one", "b=two") }
		if err := late.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: 10}); !errors.Is(err, fleet.ErrStale) {
			t.Errorf("a Take that was overtaken: %v", err)
		}
		if err := late.Write(t.Context(), "a", []byte("late")); !errors.Is(err, fleet.ErrStale) {
			t.Errorf("then it writes: %v", err)
		}
	})
}

// An answer that was lost is no reason to give up: the version that is there is the process's own.
func TestLostAnswer(t *testing.T) {
	a := newAPI()
	lost := errors.New("connection reset")
	p := &process{t: t}
	s, err := OpenSecrets(dropping{a, &lost}, meta{a}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Secrets = s
	held := lost
	lost = nil
	p.take(1)
	for _, text := range []string{"one", "two", "two", "three"} {
		lost = held
		if err := s.Write(t.Context(), "x", []byte(text)); err == nil {
			t.Fatal("the answer was not lost")
		}
		lost = nil
		p.write("x", text)
		p.holds("x=" + text)
	}
}

// dropping carries requests out and loses the answers.
type dropping struct {
	*api
	lost *error
}

func (d dropping) Create(ctx context.Context, s *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	out, err := d.api.Create(ctx, s, o)
	return out, errors.Join(err, *d.lost)
}

func (d dropping) Update(ctx context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	out, err := d.api.Update(ctx, s, o)
	return out, errors.Join(err, *d.lost)
}

// Neither backend gives a state to another cluster or to an older epoch, and both remember.
func TestTenure(t *testing.T) {
	dir := t.TempDir()
	a := newAPI()
	for name, open := range map[string]func(t *testing.T) Store{
		"dir": func(t *testing.T) Store {
			d, err := OpenDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			return d
		},
		"secrets": func(t *testing.T) Store {
			s, err := OpenSecrets(a, meta{a}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, mine := t.Context(), Tenure{Cluster: "uid-1", Epoch: 5}
			t.Run("first", func(t *testing.T) {
				s := open(t)
				if was, err := s.Tenure(ctx); err != nil || was != (Tenure{}) {
					t.Errorf("%+v, %v", was, err)
				}
				if err := s.Take(ctx, mine); err != nil {
					t.Fatal(err)
				}
				if err := s.Write(ctx, "x", []byte("1")); err != nil {
					t.Fatal(err)
				}
			})
			s := open(t)
			if was, err := s.Tenure(ctx); err != nil || was != mine {
				t.Errorf("%+v, %v", was, err)
			}
			if err := s.Take(ctx, Tenure{Cluster: "uid-1", Epoch: 4}); !errors.Is(err, fleet.ErrStale) {
				t.Errorf("an older epoch: %v", err)
			}
			err := s.Take(ctx, Tenure{Cluster: "uid-2", Epoch: 6})
			if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "uid-1") || !strings.Contains(err.Error(), "uid-2") {
				t.Errorf("another cluster: %v", err)
			}
			if err := s.Take(ctx, Tenure{Cluster: "uid-1", Epoch: 6}); err != nil {
				t.Error(err)
			}
			if b, err := s.Read(ctx, "x"); err != nil || !bytes.Equal(b, []byte("1")) {
				t.Errorf("%q, %v", b, err)
			}
			if names, err := s.List(ctx, ""); err != nil || len(names) != 1 {
				t.Errorf("%q, %v", names, err)
			}
		})
	}
}

// Where a lock keeps nobody away, the epoch in the directory does.
func TestDirectoryOfADeposedWriter(t *testing.T) {
	path := t.TempDir()
	open := func(epoch uint64) *Dir {
		d, err := OpenDir(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: epoch}); err != nil {
			t.Fatal(err)
		}
		return d
	}
	old := open(1)
	defer old.Close()
	if err := old.Write(t.Context(), "x", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(path, lockName)); err != nil {
		t.Fatal(err)
	}
	late := open(2)
	defer late.Close()
	if err := late.Write(t.Context(), "x", []byte("two")); err != nil {
		t.Fatal(err)
	}
	if err := old.Write(t.Context(), "x", []byte("late")); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the old process writes: %v", err)
	}
	if err := old.Remove(t.Context(), "x"); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the old process removes: %v", err)
	}
	if b, err := late.Read(t.Context(), "x"); err != nil || string(b) != "two" {
		t.Errorf("%q, %v", b, err)
	}
}

// slow has removals of chunks answered by a timeout, and carried out later.
type slow struct {
	SecretClient
	on    bool
	later []func() error
}

func (s *slow) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	if !s.on || o.Preconditions != nil {
		return s.SecretClient.Delete(ctx, name, o)
	}
	s.later = append(s.later, func() error { return s.SecretClient.Delete(context.WithoutCancel(ctx), name, o) })
	return context.DeadlineExceeded
}

// What is written again that was replaced or removed a moment ago, as the contents of a revision that is rolled back, does not lose its parts to the
// removal of before, whose answer never came.
func TestLateRemovalTakesNothingThatIsWrittenAgain(t *testing.T) {
	large := strings.Repeat("large.....", chunkBytes/8)
	for name, away := range map[string]func(p *process) error{
		"replaced": func(p *process) error { return p.Write(p.t.Context(), "x", []byte("small")) },
		"removed":  func(p *process) error { return p.Remove(p.t.Context(), "x") },
	} {
		t.Run(name, func(t *testing.T) {
			places(t, func(t *testing.T, c clients) {
				api := &slow{SecretClient: c.SecretClient}
				c.SecretClient = api
				p := c.leader(t, 1)
				p.write("x", large)
				api.on = true
				if err := away(p); err == nil || len(api.later) == 0 {
					t.Fatalf("nothing is late: %v", err)
				}
				api.on = false
				p.write("x", large)
				p.write("x", large)
				for _, land := range api.later {
					if err := land(); err != nil && !apierrors.IsNotFound(err) {
						t.Fatal(err)
					}
				}
				b, err := c.leader(t, 2).Read(t.Context(), "x")
				if err != nil || string(b) != large {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			})
		})
	}
}
