package watch

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

// A bug that an object, or an answer about a kind, sets off must not end the agent: what sets it off is in the cluster, so
// that the agent would end at each start, with every module. Reading is guarded, where no lock is held and nothing is
// changed yet. Taking what was read into the store of the kind (Add, Update, Delete, Replace), and telling of it, is not: a
// store that was left half changed would be believed, so a panic there ends the process, and the next one reads anew.

// guarded reads something. A panic is an error; its stack is logged, once in a while.
func (k *kind) guarded(read func() error) error {
	err := guard.Run(read)
	if stack := guard.Stack(err); stack != "" && k.tellsOfBug() {
		k.w.o.Log.Error("reading a kind panicked; what was to be read is unknown", "kind", k.resource.String(), "stack", stack)
	}
	return guard.Bug(err, "stopped by a bug in the agent; its log has the details")
}

// bugPause is how long one stack is enough for a kind: each of its objects may set off the same.
const bugPause = time.Minute

func (k *kind) tellsOfBug() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.bugTold) >= bugPause {
		k.bugTold = now
		return true
	}
	return false
}

// unread is the fingerprint of an object that could not be read: it is there, and nothing else is known of it. It has no
// values, so that whoever is to judge it looks at the object itself.
func unread(obj map[string]any, why error) *Fingerprint {
	u := unstructured.Unstructured{Object: obj}
	return &Fingerprint{Namespace: apply.Intern(u.GetNamespace()), Name: u.GetName(), UID: string(u.GetUID()),
		Version: apply.ParseVersion(u.GetResourceVersion()), Health: fleet.HealthUnknown, Reason: apply.ReasonBug, Message: why.Error()}
}

func (k *kind) guardedList(list cache.ListWithContextFunc) cache.ListWithContextFunc {
	return func(ctx context.Context, o metav1.ListOptions) (page runtime.Object, err error) {
		err = k.guarded(func() (err error) {
			page, err = list(ctx, o)
			return err
		})
		return page, err
	}
}

func (k *kind) guardedOpen(open cache.WatchFuncWithContext) cache.WatchFuncWithContext {
	return func(ctx context.Context, o metav1.ListOptions) (stream watch.Interface, err error) {
		err = k.guarded(func() (err error) {
			stream, err = open(ctx, o)
			return err
		})
		return stream, err
	}
}
