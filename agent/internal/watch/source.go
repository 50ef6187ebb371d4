package watch

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// DeepCopyObject makes an item a runtime.Object; items are never changed.
func (i *item) DeepCopyObject() runtime.Object { return i }

// itemList is a page of items.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*item
}

// DeepCopyObject makes a list a runtime.Object; lists are never changed.
func (l *itemList) DeepCopyObject() runtime.Object { return l }

// source lists and watches what ask narrows a resource to. Every object is reduced where it arrives, in pages of a list as in a stream, so
// that no whole object outlives its decoding. What is no list passes for an empty one with the client, and not here: of is the kind of the objects.
// Every list is of what the store has now. The reflector would have one that is no older than what it has seen, which an API server that is behind
// may answer without what the agent has written since: that would pass for the work of a restored store.
func source(of string, c dynamic.ResourceInterface, stream func(context.Context, metav1.ListOptions) (watch.Interface, error), ask func(*metav1.ListOptions),
	reduce func(map[string]any) *Fingerprint) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ask(&o)
			o.ResourceVersion = "" // and a page that continues a list has the version of that
			page, err := c.List(ctx, o)
			if err != nil {
				return nil, err
			}
			if kind := page.GetKind(); kind == "Status" || kind == of {
				return nil, fmt.Errorf("list of %s: answer of the API server: is no list but a %s; something else answers in its place", of, kind)
			}
			out := &itemList{Items: make([]*item, 0, len(page.Items))}
			out.SetResourceVersion(page.GetResourceVersion())
			out.SetContinue(page.GetContinue())
			for i := range page.Items {
				out.Items = append(out.Items, reduced(&page.Items[i], reduce))
				page.Items[i].Object = nil
			}
			return out, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			ask(&o)
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				o.ResourceVersion = ""
			}
			return stream(ctx, o)
		},
	}
}

func reduced(u *unstructured.Unstructured, reduce func(map[string]any) *Fingerprint) *item {
	return &item{version: u.GetResourceVersion(), print: reduce(u.Object)}
}
