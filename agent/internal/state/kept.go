package state

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// kept says what of a Secret that was sent is not in the answer; nil: all that is needed to read it again, and to know who may write it. An admission
// policy or webhook of the cluster may change what is written, and that a write was taken says nothing then.
func kept(sent, got *corev1.Secret) error {
	if err := keptMeta(sent.ObjectMeta, got.ObjectMeta); err != nil {
		return err
	}
	if !bytes.Equal(got.Data[dataKey], sent.Data[dataKey]) {
		return changed(sent.Name, "its data")
	}
	return nil
}

// keptMeta is kept for labels and annotations alone. Those of others change nothing: a policy may note on each Secret who wrote it last, and a
// Secret that is marked has the note of the write before.
func keptMeta(sent, got metav1.ObjectMeta) error {
	if key := fleet.ChangedMark(sent.Labels, got.Labels); key != "" {
		return changed(sent.Name, "its label "+key)
	}
	if key := fleet.ChangedMark(sent.Annotations, got.Annotations); key != "" {
		return changed(sent.Name, "its annotation "+key)
	}
	return nil
}

func changed(secret, what string) error {
	return fleet.Errorf(fleet.ErrUnavailable, "secret %s: %s is not kept as it was written: an admission policy or webhook of the cluster changes it; exempt the agent's namespace from it", secret, what)
}

// took notes what a head is after it was written. One that is not as it was sent is to be written again.
func (h *head) took(sent, got *corev1.Secret) error {
	if err := kept(sent, got); err != nil {
		h.there, h.uid, h.version, h.set = true, got.UID, got.ResourceVersion, ""
		return err
	}
	h.know(got.ObjectMeta)
	return nil
}
