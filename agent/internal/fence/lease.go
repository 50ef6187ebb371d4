package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

// acquire returns when this process holds the Lease.
func (f *Fence) acquire(ctx context.Context) error {
	var seen string
	var since, began time.Time
	hinted, twin := false, false
	for {
		version, by, err := f.try(ctx, seen != "" && time.Since(since) >= f.o.Duration, seen)
		if err == nil && version == "" {
			if twin && f.o.Twin != nil {
				f.o.Twin()
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, fleet.ErrPrecondition) {
			return err
		}
		wait := f.o.Period / 2
		if err != nil {
			f.o.Log.Warn("lease cannot be taken", "lease", f.name(), "error", err)
		} else if version != seen {
			if seen == "" {
				f.o.Log.Info("lease is held by another process; waiting", "lease", f.name(), "holder", by)
				began = time.Now()
			} else if by == f.o.Identity && !twin {
				twin = true
				f.o.Log.Error("another process with this agent's identity is alive and has the lease: the agent's state was copied; stop one of the two, and give the other one an identity of its own: towline cluster join NAME --reissue",
					"lease", f.name(), "identity", by)
			}
			if !hinted && time.Since(began) > hintAfter*f.o.Duration {
				hinted = true
				f.o.Log.Warn("another agent holds the lease and renews it; if there should be none in this cluster, look whether --kubeconfig is of the cluster that is meant", "lease", f.name(), "holder", by)
			}
			seen, since = version, time.Now() // of all clocks the one that counts least
		}
		wait += rand.N(wait/4 + 1)
		if err := backoff.Wait(ctx, wait); err != nil {
			return err
		}
	}
}

// hintAfter is after how many durations of a Lease that another process renews a person is told what may be wrong.
const hintAfter = 2

// try takes the Lease if it is free, ours, or expired at the version seen. It returns the version and the holder of a Lease that
// another process holds, or "" when it is taken.
func (f *Fence) try(ctx context.Context, expired bool, seen string) (version, by string, err error) {
	lease, err := f.leases.Get(ctx, f.o.Name, metav1.GetOptions{})
	if err != nil && !kube.IsGone(err) {
		return "", "", err
	}
	if err != nil {
		lease = nil
	}
	free := lease == nil || holder(lease) == "" || holder(lease) == f.o.Identity && !f.twins(lease)
	if !free && (!expired || lease.ResourceVersion != seen) {
		return lease.ResourceVersion, holder(lease), nil
	}
	epoch, err := f.o.Admit(ctx)
	if err != nil {
		return "", "", err
	}
	if lease != nil && number(lease, EpochAnnotation) < epoch {
		f.o.WentBack() // it was held in that epoch
	}
	return "", "", f.take(ctx, lease, epoch)
}

// twinAnnotation is on a Lease that was taken from the same identity, which had not given it back: by a process that began anew, or by
// one that has a copy of its state.
const twinAnnotation = "towline.dev/taken-from-itself"

// twins reports that the Lease was taken from its own identity a short time ago: if both live, they would take it from each other
// without end. One that began anew twice within that time waits until nobody shows life. The times are of the holder's clock alone.
func (f *Fence) twins(l *coordinationv1.Lease) bool {
	if l.Annotations[twinAnnotation] == "" || l.Spec.AcquireTime == nil || l.Spec.RenewTime == nil {
		return false
	}
	return l.Spec.RenewTime.Sub(l.Spec.AcquireTime.Time) < f.o.MinTenure
}

// take makes the Lease ours, in an epoch above the one given and the one that it has. It is made if there is none.
func (f *Fence) take(ctx context.Context, lease *coordinationv1.Lease, above uint64) error {
	put := f.leases.Update
	if lease == nil {
		if err := f.makeNamespace(ctx); err != nil {
			return err
		}
		put = func(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
			return f.leases.Create(ctx, l, metav1.CreateOptions{})
		}
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: f.o.Name, Namespace: f.o.Namespace}}
	}
	found := Inherited{Epoch: number(lease, EpochAnnotation), notes: lease.Annotations}
	epoch := max(found.Epoch, above) + 1
	f.mu.Lock()
	f.notes = nil // what was noted is of the tenure before
	next := f.stamp(lease, epoch, 1)
	f.mu.Unlock()
	now := metav1.NowMicro()
	next.Spec.AcquireTime = &now
	delete(next.Annotations, twinAnnotation)
	if holder(lease) == f.o.Identity {
		next.Annotations[twinAnnotation] = "true"
	}
	began := f.o.Clock()
	got, err := put(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		err = f.kept(next, got)
	}
	if err != nil {
		return err
	}
	f.hold(got, epoch, began)
	f.mu.Lock()
	f.found = found
	f.mu.Unlock()
	return nil
}

func (f *Fence) makeNamespace(ctx context.Context) error {
	_, err := f.namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.o.Namespace}}, metav1.CreateOptions{})
	if err != nil && !kube.Is(err, kube.Exists) {
		if _, getErr := f.namespaces.Get(ctx, f.o.Namespace, metav1.GetOptions{}); getErr != nil {
			return fmt.Errorf("namespace %s: %w", f.o.Namespace, err)
		}
	}
	return nil
}

func (f *Fence) hold(lease *coordinationv1.Lease, epoch uint64, began Moment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held, f.epoch, f.batch, f.opened, f.began, f.writes = lease, epoch, 1, began, f.o.Clock(), 0
	f.extend()
}

// stamp is the Lease with us as the holder. The caller holds mu.
func (f *Fence) stamp(from *coordinationv1.Lease, epoch, batch uint64) *coordinationv1.Lease {
	out := from.DeepCopy()
	seconds := int32(f.o.Duration / time.Second)
	now := metav1.NowMicro()
	identity := f.o.Identity
	out.Spec.HolderIdentity, out.Spec.LeaseDurationSeconds, out.Spec.RenewTime = &identity, &seconds, &now
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[EpochAnnotation] = strconv.FormatUint(epoch, 10)
	out.Annotations[BatchAnnotation] = strconv.FormatUint(batch, 10)
	maps.Copy(out.Annotations, f.notes)
	return out
}

// farewell is how long what was begun may take when the process ends.
const farewell = 3 * time.Second

// release gives the Lease back, so that another process need not wait.
func (f *Fence) release(ctx context.Context) {
	f.mu.Lock()
	lease := f.held
	f.held = nil
	f.lapse(f.notHeld())
	if lease == nil {
		f.mu.Unlock()
		return
	}
	next := f.stamp(lease, f.epoch, f.batch)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	next.Spec.HolderIdentity = nil
	if _, err := f.leases.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		f.o.Log.Warn("lease cannot be given back; it expires", "lease", f.name(), "error", err)
	}
}

func (f *Fence) sameIdentity(ctx context.Context) bool {
	lease, err := f.leases.Get(ctx, f.o.Name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return holder(lease) == f.o.Identity && number(lease, EpochAnnotation) > f.epoch
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func number(l *coordinationv1.Lease, annotation string) uint64 {
	n, err := strconv.ParseUint(l.Annotations[annotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
