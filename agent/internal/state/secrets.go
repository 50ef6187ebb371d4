package state

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

const (
	// chunkBytes is the most that one Secret holds.
	chunkBytes = 512 << 10
	stateLabel = "towline.dev/state"
	dataKey    = "data"
	listPage   = 100
	attempts   = 5
)

// The annotations of a Secret. The head of a name is the Secret that says how many chunks of which generation there are;
// it is written last, so that a write is there as a whole or not at all.
const (
	nameAnnotation   = "towline.dev/state-name"
	chunksAnnotation = "towline.dev/state-chunks"
	setAnnotation    = "towline.dev/state-set"
)

// SecretClient is the part of a client for the Secrets of one namespace that is needed here.
type SecretClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error)
	Create(ctx context.Context, s *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
	List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error)
}

// Secrets is a Store in Secrets of the workload cluster. A value of up to 512 KiB is one Secret; a larger one has its
// further chunks in Secrets of their own. Writes compare the resourceVersion of the head.
type Secrets struct{ client SecretClient }

var _ Store = (*Secrets)(nil)

// OpenSecrets makes a Store of a client for one namespace.
func OpenSecrets(client SecretClient) (*Secrets, error) {
	if client == nil {
		return nil, fleet.Invalid("state", "a client for Secrets is required")
	}
	return &Secrets{client: client}, nil
}

// Read implements Store.
func (s *Secrets) Read(ctx context.Context, name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	for range attempts {
		b, again, err := s.read(ctx, name)
		if !again {
			return b, err
		}
	}
	return nil, fleet.Errorf(fleet.ErrCorrupt, "state %s: a chunk is missing", name)
}

// read asks for another try when the chunks are gone that the head named: it was replaced meanwhile.
func (s *Secrets) read(ctx context.Context, name string) (b []byte, again bool, err error) {
	head, err := s.client.Get(ctx, headName(name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, notFound(name)
	case err != nil:
		return nil, false, fmt.Errorf("state %s: %w", name, err)
	}
	all := bytes.Clone(head.Data[dataKey])
	for _, chunk := range chunkNames(head) {
		part, err := s.client.Get(ctx, chunk, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, true, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("state %s: %w", name, err)
		}
		all = append(all, part.Data[dataKey]...)
	}
	b, err = unseal(name, all)
	return b, false, err
}

// Write implements Store. It fails with fleet.ErrConflict when others keep writing the same name.
func (s *Secrets) Write(ctx context.Context, name string, data []byte) error {
	if err := checkWrite(name, data); err != nil {
		return err
	}
	old, err := s.client.Get(ctx, headName(name), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("state %s: %w", name, err)
	}
	if err != nil {
		old = nil
	}
	head, rest := chunked(name, seal(data))
	if old != nil && maps.Equal(old.Annotations, head.Annotations) && bytes.Equal(old.Data[dataKey], head.Data[dataKey]) {
		return nil
	}
	for _, chunk := range rest {
		if _, err := s.client.Create(ctx, chunk, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("state %s: %w", name, err)
		}
	}
	if err := s.putHead(ctx, old, head); err != nil {
		return fmt.Errorf("state %s: %w", name, err)
	}
	return s.removeChunks(ctx, name, difference(chunkNames(old), chunkNames(head)))
}

// WriteAll implements Store.
func (s *Secrets) WriteAll(ctx context.Context, items ...Item) error {
	for _, it := range items {
		if err := s.Write(ctx, it.Name, it.Data); err != nil {
			return err
		}
	}
	return nil
}

func (s *Secrets) putHead(ctx context.Context, old, head *corev1.Secret) error {
	var err error
	if old == nil {
		_, err = s.client.Create(ctx, head, metav1.CreateOptions{})
	} else {
		head.ResourceVersion, head.UID = old.ResourceVersion, old.UID
		_, err = s.client.Update(ctx, head, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return fleet.Errorf(fleet.ErrConflict, "another agent wrote it at the same time: %v", err)
	}
	return err
}

// Remove implements Store: the head goes first, so that a crash leaves chunks that nothing names.
func (s *Secrets) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	head, err := s.client.Get(ctx, headName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = s.client.Delete(ctx, head.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &head.UID, ResourceVersion: &head.ResourceVersion}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("state %s: %w", name, err)
	}
	return s.removeChunks(ctx, name, chunkNames(head))
}

func (s *Secrets) removeChunks(ctx context.Context, name string, chunks []string) error {
	for _, chunk := range chunks {
		if err := s.client.Delete(ctx, chunk, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("state %s: old chunk: %w", name, err)
		}
	}
	return nil
}

// List implements Store.
func (s *Secrets) List(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	o := metav1.ListOptions{LabelSelector: stateLabel + "=head", Limit: listPage}
	for {
		page, err := s.client.List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("state: list %q: %w", prefix, err)
		}
		for i := range page.Items {
			name := page.Items[i].Annotations[nameAnnotation]
			if checkName(name) == nil && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}

// chunked cuts sealed bytes into a head and further chunks. Chunks are named by what they hold, so that writing them
// again after a crash changes nothing.
func chunked(name string, sealed []byte) (head *corev1.Secret, rest []*corev1.Secret) {
	set := fleet.DigestOf(sealed)
	n := 0
	for part := range slices.Chunk(sealed, chunkBytes) {
		if n == 0 {
			head = secret(headName(name), "head", name, part)
		} else {
			rest = append(rest, secret(chunkName(name, hex.EncodeToString(set[:8]), n), "chunk", name, part))
		}
		n++
	}
	head.Annotations[chunksAnnotation] = strconv.Itoa(n - 1)
	head.Annotations[setAnnotation] = hex.EncodeToString(set[:8])
	return head, rest
}

func secret(object, kind, name string, data []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: object, Labels: map[string]string{stateLabel: kind},
			Annotations: map[string]string{nameAnnotation: name}},
		Type: "towline.dev/state",
		Data: map[string][]byte{dataKey: data},
	}
}

func headName(name string) string {
	d := fleet.DigestOf([]byte(name))
	return "towline-state-" + hex.EncodeToString(d[:16])
}

func chunkName(name, set string, n int) string {
	return fmt.Sprintf("%s-%s-%d", headName(name), set, n)
}

// chunkNames are the further chunks that a head names.
func chunkNames(head *corev1.Secret) []string {
	if head == nil {
		return nil
	}
	n, err := strconv.Atoi(head.Annotations[chunksAnnotation])
	if err != nil || n < 0 || n > maxValue/chunkBytes+1 {
		return nil
	}
	names := make([]string, 0, n)
	for i := 1; i <= n; i++ {
		names = append(names, chunkName(head.Annotations[nameAnnotation], head.Annotations[setAnnotation], i))
	}
	return names
}

func difference(old, current []string) []string {
	gone := map[string]bool{}
	for _, name := range old {
		gone[name] = true
	}
	for _, name := range current {
		delete(gone, name)
	}
	return slices.Sorted(maps.Keys(gone))
}
