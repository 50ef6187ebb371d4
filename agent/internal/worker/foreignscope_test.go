package worker

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestWatchedKindThatIsDefinedAnewWithAnotherScope: an object that a module watches is found where its kind has it now. Where that takes a namespace, and
// the module names none, this is said for as long as it is so.
func TestWatchedKindThatIsDefinedAnewWithAnotherScope(t *testing.T) {
	for name, listed := range map[string]bool{"with a namespace": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			define := func(scope string) {
				ns := map[string]string{"Namespaced": r.ns}[scope]
				r.defineAs("databases", "Database", scope, map[string]string{"v1": anySpec}, "v1")
				r.eventually("there is one", func() bool {
					one := &unstructured.Unstructured{Object: r.custom("v1", "Database", ns, "db")}
					_, err := r.res(r.group()+"/v1", "databases", ns).Create(t.Context(), one, metav1.CreateOptions{})
					return err == nil
				})
			}
			anew := func(scope string) {
				r.undefineNow("databases")
				r.wait("shop", "its kind is gone", lacks(apply.ReasonNoKind))
				define(scope)
			}
			define("Cluster")
			watched := r.database()
			if !listed {
				watched.Namespace = ""
			}
			s := r.watching(r.bundle("shop", nil, configMap("a", "k: v")), nil, watched)
			r.set([]fleet.Sync{s})
			r.wait("shop", "ready", isReady(s))
			anew("Namespaced")
			if listed {
				r.wait("shop", "ready where it is now", isReady(s))
				return
			}
			r.wait("shop", "no namespace is named", func(x fleet.SyncStatus) bool {
				return !x.Ready && strings.Contains(x.Message, "name one in the module's watch")
			})
			r.undefineNow("databases")
			define("Cluster")
			r.wait("shop", "ready again", isReady(s))
		})
	}
}
