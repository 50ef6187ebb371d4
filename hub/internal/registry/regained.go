package registry

import (
	"crypto/sha256"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/rpc"
)

// regained is the record of a cluster with the certificate that its agent shows, if a hub gave it after the backup of which the store was
// restored, and before the restore: the store has lost it, and the agent none of its identity. Any other is judged by the record alone.
func regained(r store.Reader, rec *storev1.ClusterRecord, caller rpc.Caller, now time.Time) *storev1.ClusterRecord {
	leaf := caller.Leaf
	if leaf == nil || find(rec, caller.CertSerial) != nil || rec.GetRevoked() || rec.GetJoined() == nil || now.After(leaf.NotAfter) {
		return rec
	}
	issued := leaf.NotBefore.Add(backdate)
	restored, _, ok := store.Get[*storev1.Restore](r, store.RestoreKey)
	if !ok || !issued.After(newest(rec)) || issued.After(restored.GetAt().AsTime()) {
		return rec
	}
	next := proto.CloneOf(rec)
	next.Certificates = append(next.Certificates, certificate(leaf, sha256.Sum256(leaf.RawSubjectPublicKeyInfo), issued))
	return next
}
