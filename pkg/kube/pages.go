package kube

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// pageSize is how many objects the API server has to read for a request. An object has at most 1.5
// MiB.
const pageSize = 50

// DeepCopyObject implements runtime.Object, because a list has objects.
func (i *item[V]) DeepCopyObject() runtime.Object { return i }

// GetObjectKind implements runtime.Object.
func (i *item[V]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// listPages lists objects in pages, and returns their items. Reflectors list objects if the API
// server does not send them with the watch, one by one, as it does from Kubernetes 1.34 on. Lists
// from the API server's watch cache have no pages, so that listPages reads from etcd.
func (i *Informer[V]) listPages(ctx context.Context, lw *cache.ListWatch, o metav1.ListOptions) (runtime.Object,
	error) {
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", pageSize
	all := &metav1.List{}
	for {
		page, err := lw.ListWithContext(ctx, o)
		if err != nil {
			return nil, err
		}
		m, err := meta.ListAccessor(page)
		if err != nil {
			return nil, err
		}
		err = meta.EachListItem(page, func(object runtime.Object) error {
			it, err := i.view(object)
			all.Items = append(all.Items, runtime.RawExtension{Object: it})
			return err
		})
		if err != nil {
			return nil, err
		}
		all.ResourceVersion, o.Continue = m.GetResourceVersion(), m.GetContinue()
		if o.Continue == "" {
			return all, nil
		}
	}
}
