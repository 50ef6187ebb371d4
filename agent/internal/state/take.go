package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// takeParallel is how many Secrets are marked at a time.
const takeParallel = 8

// errMoved says that another process wrote between the read and the write of the tenure.
var errMoved = errors.New("another agent takes it at the same time")

// Tenure implements Store. A record of it that is damaged is none: the Lease knows the epoch as well.
func (s *Secrets) Tenure(ctx context.Context) (Tenure, error) {
	t, _, err := s.tenure(ctx)
	return t, err
}

// tenure is the last tenure and the Secret that has it, if there is one.
func (s *Secrets) tenure(ctx context.Context) (t Tenure, in *corev1.Secret, err error) {
	in, err = s.client.Get(ctx, headName(tenureName), metav1.GetOptions{})
	switch {
	case kube.IsGone(err):
		return t, nil, nil
	case err != nil:
		return t, nil, fmt.Errorf("state %s: %w", tenureName, err)
	}
	raw, err := unseal(tenureName, in.Data[dataKey])
	if err != nil || json.Unmarshal(raw, &t) != nil {
		return Tenure{}, in, nil
	}
	return t, in, nil
}

// Take implements Store: it marks every head with the new epoch, and then the tenure. A head of an epoch before that of
// the last tenure was made by a process that had lost the Lease; it is removed. A Take that was cut short leaves heads of
// its own epoch, which the next one takes as well.
func (s *Secrets) Take(ctx context.Context, t Tenure) error {
	for attempt := 0; ; attempt++ {
		err := s.take(ctx, t)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errMoved) || attempt == attempts {
			return fmt.Errorf("state in Secrets: %w", err)
		}
	}
}

func (s *Secrets) take(ctx context.Context, t Tenure) error {
	old, in, err := s.tenure(ctx)
	if err == nil {
		err = t.follows(old)
	}
	if err != nil {
		return err
	}
	if err := s.rehearse(ctx, t, in); err != nil {
		return err
	}
	x := taking{s: s, old: old.Epoch, epoch: t.Epoch, heads: map[string]*head{}}
	if err := s.each(ctx, headKind, x.one); err != nil {
		return err
	}
	if err := s.putTenure(ctx, t, in); err != nil {
		return err
	}
	s.mu.Lock()
	s.epoch, s.lost, s.heads = t.Epoch, nil, x.heads
	s.mu.Unlock()
	if err := s.sweep(ctx, x.heads); err != nil {
		s.log.Warn("chunks of the state that nothing names are not removed yet", "error", err)
	}
	return nil
}

// rehearse finds out, before any head is changed, whether the cluster keeps what is written: a head whose epoch is taken off counts no more. A
// rehearsal that fails says nothing, for a webhook may not know of any.
func (s *Secrets) rehearse(ctx context.Context, t Tenure, in *corev1.Secret) error {
	next, got, err := s.sendTenure(ctx, t, in, metav1.DryRunAll)
	if err != nil {
		return nil
	}
	return kept(next, got)
}

func (s *Secrets) putTenure(ctx context.Context, t Tenure, in *corev1.Secret) error {
	next, got, err := s.sendTenure(ctx, t, in)
	if kube.Is(err, kube.Conflict, kube.Exists, kube.Gone) {
		return errMoved
	}
	if err != nil {
		return err
	}
	return kept(next, got)
}

// sendTenure puts the tenure over the Secret that has the last one. It returns what was sent and what came of it.
func (s *Secrets) sendTenure(ctx context.Context, t Tenure, in *corev1.Secret, dryRun ...string) (next, got *corev1.Secret, err error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, nil, err
	}
	sealed := seal(raw)
	next, _ = chunked(tenureName, sealed, setOf(sealed, t.Epoch), t.Epoch)
	if in == nil {
		got, err = s.client.Create(ctx, next, metav1.CreateOptions{DryRun: dryRun})
		return next, got, err
	}
	next.UID, next.ResourceVersion = in.UID, in.ResourceVersion
	got, err = s.client.Update(ctx, next, metav1.UpdateOptions{DryRun: dryRun})
	return next, got, err
}

// each calls f for the metadata of every Secret of a kind, several at a time.
func (s *Secrets) each(ctx context.Context, kind string, f func(context.Context, *metav1.PartialObjectMetadata) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(takeParallel)
	o := metav1.ListOptions{LabelSelector: stateLabel + "=" + kind, Limit: listPage}
	for {
		page, err := s.meta.List(ctx, o)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		for i := range page.Items {
			g.Go(func() error { return f(ctx, &page.Items[i]) })
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return g.Wait()
		}
	}
}

// taking is one Take under way.
type taking struct {
	s          *Secrets
	old, epoch uint64

	mu    sync.Mutex
	heads map[string]*head
}

// one takes a head. One that another process writes meanwhile is looked at again: what it wrote before it lost the Lease
// counts.
func (x *taking) one(ctx context.Context, m *metav1.PartialObjectMetadata) error {
	name, object := m.Annotations[nameAnnotation], m.Name
	if name == tenureName || checkName(name) != nil || object != headName(name) {
		return nil
	}
	for range attempts {
		err := x.settle(ctx, name, m)
		if err == nil || kube.IsGone(err) {
			return nil
		}
		if kube.Is(err, kube.Conflict) {
			if m, err = x.s.meta.Get(ctx, object, metav1.GetOptions{}); err == nil {
				continue
			}
		}
		if kube.IsGone(err) {
			return nil
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return errMoved
}

// settle marks a head, or removes it if it does not count.
func (x *taking) settle(ctx context.Context, name string, m *metav1.PartialObjectMetadata) (err error) {
	switch epoch := epochOf(m.ObjectMeta); {
	case epoch > x.epoch:
		return superseded(epoch, x.epoch)
	case epoch < x.old:
		x.s.log.Warn("a part of the state does not count: its writer had lost the lease", "name", name, "epoch", epoch, "lost_to", x.old)
		return x.s.client.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: preconditions(m.ObjectMeta)})
	case epoch < x.epoch:
		if m, err = x.s.mark(ctx, m, x.epoch); err != nil {
			return err
		}
	}
	x.know(name, m)
	return nil
}

func (x *taking) know(name string, m *metav1.PartialObjectMetadata) {
	h := newHead()
	h.know(m.ObjectMeta)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heads[name] = h
}

// mark sets the epoch of exactly the version that was seen.
func (s *Secrets) mark(ctx context.Context, m *metav1.PartialObjectMetadata, epoch uint64) (*metav1.PartialObjectMetadata, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": m.UID, "resourceVersion": m.ResourceVersion,
		"annotations": map[string]string{epochAnnotation: strconv.FormatUint(epoch, 10)}}})
	if err != nil {
		return nil, err
	}
	got, err := s.meta.Patch(ctx, m.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fleet.FieldManager})
	if err != nil {
		return nil, kube.Denied(err)
	}
	sent := *m.ObjectMeta.DeepCopy()
	sent.Annotations[epochAnnotation] = strconv.FormatUint(epoch, 10)
	return got, keptMeta(sent, got.ObjectMeta)
}

func preconditions(m metav1.ObjectMeta) *metav1.Preconditions {
	return &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}
}

// sweep removes chunks that no head names: of a write that was cut short, or of a process that had lost the Lease.
func (s *Secrets) sweep(ctx context.Context, heads map[string]*head) error {
	named := map[string]bool{}
	for _, h := range heads {
		for _, chunk := range h.chunks {
			named[chunk] = true
		}
	}
	return s.each(ctx, chunkKind, func(ctx context.Context, m *metav1.PartialObjectMetadata) error {
		if named[m.Name] {
			return nil
		}
		err := s.client.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: preconditions(m.ObjectMeta)})
		if kube.IsGone(err) {
			return nil
		}
		return err
	})
}
