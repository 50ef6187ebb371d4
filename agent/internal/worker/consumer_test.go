package worker

import (
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// storageClass makes one of which nobody provisions volumes.
func (r *rig) storageClass(mode string) (name string) {
	r.t.Helper()
	r.clusterScoped("storageclasses", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: $NS-class}\n"+
		"provisioner: example.com/none\nvolumeBindingMode: "+mode+"\n")
	return r.ns + "-class"
}

const (
	unboundClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: $NS}
spec:
  storageClassName: $NS-class
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
`
	backup = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: backup, namespace: $NS}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: "backup:1"}]
          volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`
)

// TestClaimThatWaitsForItsFirstPod: the storage class binds no volume before a pod needs it, as that of most clusters does, and none
// does for now: a CronJob uses the claim, or a Deployment that is scaled to nothing.
func TestClaimThatWaitsForItsFirstPod(t *testing.T) {
	r := newRig(t)
	r.storageClass("WaitForFirstConsumer")
	s := r.bundle("shop", nil, unboundClaim, backup)
	r.set([]fleet.Sync{s})
	r.ready(s)

	r.create("v1", "pods", r.ns, r.object(`
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: $NS}
spec:
  containers: [{name: main, image: "backup:1"}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`))
	r.wait("shop", "waiting for the volume that a pod needs now", func(x fleet.SyncStatus) bool {
		return !x.Ready && len(x.Exceptions) > 0 && x.Exceptions[0].Reason == "Pending"
	})
}

// TestClaimThatNobodyProvisions: a claim that is pending though its class binds at once has trouble.
func TestClaimThatNobodyProvisions(t *testing.T) {
	r := newRig(t)
	name := r.storageClass("Immediate")
	asked := make(chan struct{}, 1)
	r.count.upset(func(q *http.Request) error {
		if strings.HasSuffix(q.URL.Path, "/storageclasses/"+name) {
			dirty.Poke(asked)
		}
		return nil
	})
	s := r.bundle("shop", nil, unboundClaim, backup)
	r.set([]fleet.Sync{s})
	<-asked
	r.wait("shop", "waiting for a volume", func(x fleet.SyncStatus) bool {
		return !x.Ready && len(x.Exceptions) > 0 && x.Exceptions[0].Reason == "Pending"
	})
}
