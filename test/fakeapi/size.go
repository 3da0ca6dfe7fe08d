package fakeapi

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/must"
)

// MaxKept is how many bytes of heap an informer may keep of an object: with the largest 5,000 of a
// kind, and the half of it that the manager's heap grows by until it is collected (GOGC), 440 MiB.
const MaxKept = 60 << 10

const (
	hugeText = 256 << 10 // bytes of a text: the limit of the annotations of an object
	hugeList = 4 << 10   // elements of a list or a map
	maxDepth = 4
	// The lengths to which CRDs limit addresses and prefixes.
	addressLength = 45
	prefixLength  = 49
)

// testSize has the informer keep objects of which one text, list or map is as large as it may be,
// one for each part, and the object of whole. It fails if it keeps more than r.Limit of all of the
// former together, which is more than of one in which all parts are large, or of the latter.
func (r Reader[V]) testSize(t *testing.T) {
	t.Run("size of "+r.Kind.Kind, func(t *testing.T) {
		limits := LimitsOf(t, r.Kind.Kind, r.Kind.Version)
		limit := cmp.Or(r.Limit, MaxKept)
		one := func(part int) (o kube.Object, path string) {
			o = r.Good.DeepCopyObject().(kube.Object)
			g := &grower{part: part, limits: limits}
			g.grow(reflect.ValueOf(o).Elem(), "")
			o.SetName(fmt.Sprint("o", part))
			return o, g.path
		}
		parts := &grower{part: -1, limits: limits}
		parts.grow(reflect.ValueOf(r.Good.DeepCopyObject()).Elem(), "")
		small := r.keep(t, parts.count, func(i int) kube.Object { o, _ := one(-1 - i); return o })
		all := r.keep(t, parts.count, func(i int) kube.Object { o, _ := one(i); return o }) - small
		for i := 0; all > limit && i < parts.count; i++ {
			size := r.keep(t, 1, func(int) kube.Object { o, _ := one(i); return o })
			if _, path := one(i); size > 2<<10 {
				t.Errorf("%d KiB are kept of an object with a large %s", size>>10, path)
			}
		}
		whole := 0
		if len(limits) > 0 {
			whole = r.keep(t, 1, func(int) kube.Object { return r.whole(limits) })
		}
		if r.Limit == 0 && limit*many*3/2 > memoryLimit(t) {
			t.Errorf("the manager has no memory for %d with %d KiB each", many, limit>>10)
		}
		t.Logf("%d KiB of %d large parts, %d of the largest object", all>>10, parts.count, whole>>10)
		if max(all, whole) > limit {
			t.Errorf("want at most %d KiB", limit>>10)
		}
	})
}

// whole returns the object of a kind of this project in which everything is as large as its schema
// allows.
func (r Reader[V]) whole(limits map[string]spec.Schema) kube.Object {
	o := r.Good.DeepCopyObject().(kube.Object)
	(&grower{whole: true, limits: limits}).grow(reflect.ValueOf(o).Elem(), "")
	o.SetName(text(0, kube.MaxName))
	return o
}

// memoryLimit returns the manager's GOMEMLIMIT in bytes.
func memoryLimit(t *testing.T) (limit int) {
	t.Helper()
	data, err := os.ReadFile("../../../daemonset/base/manager/deployment.yaml")
	_, value, _ := strings.Cut(string(data), "{name: GOMEMLIMIT, value: ")
	if _, scanErr := fmt.Sscanf(value, "%dMiB}", &limit); err != nil || scanErr != nil {
		t.Fatal(err, scanErr)
	}
	return limit << 20
}

// keep returns how many bytes of heap a new informer keeps of objects.
func (r Reader[V]) keep(t *testing.T, count int, object func(int) kube.Object) int {
	t.Helper()
	i := r.New()
	before := heap()
	for n := range count {
		must.Succeed(t, i.Add(object(n)))
	}
	size := heap() - before
	runtime.KeepAlive(i)
	return size
}

func heap() int {
	runtime.GC()
	runtime.GC() // what a sync.Pool has kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// valid are the lengths of texts that the API server limits itself.
var valid = map[string]int{".metadata.uid": 36, ".metadata.resourceVersion": 20, ".metadata.labels{}": 63,
	".spec.taints[].key": 317, ".spec.taints[].value": 63, ".spec.taints[].effect": 16,
	".spec.nodeName": kube.MaxName, ".status.podIP": 45, ".status.podIPs[].ip": 45, ".status.hostIP": 45}

// LimitsOf returns the schema of each part of a kind of this project by its path, nil for other
// kinds.
func LimitsOf(t *testing.T, kind, version string) map[string]spec.Schema {
	t.Helper()
	files, err := filepath.Glob("../../../daemonset/base/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.Succeed(t, err)
		var crd struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema spec.Schema }
				}
			}
		}
		must.Succeed(t, yaml.Unmarshal(data, &crd))
		for _, v := range crd.Spec.Versions {
			if crd.Spec.Names.Kind == kind && v.Name == version {
				all := map[string]spec.Schema{}
				collect(all, "", v.Schema.OpenAPIV3Schema)
				return all
			}
		}
	}
	return nil
}

func collect(all map[string]spec.Schema, path string, s spec.Schema) {
	all[path] = s
	for name, part := range s.Properties {
		collect(all, path+"."+name, part)
	}
	if s.Items != nil {
		collect(all, path+"[]", *s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		collect(all, path+"{}", *s.AdditionalProperties.Schema)
	}
}

// LargePod is a pod with each annotation and owner that a reader uses. As Reader.Good it has each
// of them become large.
func LargePod() *corev1.Pod {
	p := &corev1.Pod{}
	p.Labels = map[string]string{"statefulset.kubernetes.io/pod-name": "", "pod-template-hash": ""}
	p.Annotations = map[string]string{policy.Annotation: "1h"}
	for _, key := range []string{policy.ReserveAs, policy.ExpectedAddresses, kube.AnnotationPin,
		kube.AnnotationPinPatience, kube.AnnotationPinnedNode, kube.AnnotationPinReason, pps.AnnotationInjected,
		"leasehold.dev/topology-reason", "leasehold.dev/topology-required", "leasehold.dev/topology-patience",
		"kubernetes.io/config.hash", corev1.MirrorPodAnnotationKey, "note"} {
		p.Annotations[key] = "a"
	}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "u",
		Controller: new(true)}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable}}
	return p
}

// A grower fills an object with one element of each list and map, and makes one part of it, or all
// of it, as large as that may be.
type grower struct {
	part   int    // the number of the part
	whole  bool   // all parts, if the schema limits them
	count  int    // of the parts
	path   string // of the part
	limits map[string]spec.Schema
}

// isPart reports whether the part at a path is to be large.
func (g *grower) isPart(path string) bool {
	g.count++
	if g.whole {
		return true
	}
	if g.count-1 == g.part {
		g.path = path
		return true
	}
	return false
}

func (g *grower) grow(v reflect.Value, path string) {
	limit := g.limits[path]
	if strings.Count(path, ".") > maxDepth {
		return // a reader that keeps it keeps what it is a part of
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*metav1.Time]() || v.Type().Elem().Kind() == reflect.Bool {
			return
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		g.grow(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported() || name == "-" || f.Type == reflect.TypeFor[metav1.TypeMeta]():
			case name == "":
				g.grow(v.Field(i), path)
			default:
				g.grow(v.Field(i), path+"."+name)
			}
		}
	case reflect.String:
		if g.whole && path == ".spec.entries[].reservation" { // an entry has it or podName
			return
		}
		if path == ".metadata.name" || path == ".metadata.namespace" || len(limit.Enum) > 0 {
			return
		}
		if g.isPart(path) {
			length, isLimited := valid[path]
			if !isLimited {
				length = lengthOf(limit.MaxLength, g.whole)
			}
			v.SetString(text(g.count, length))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if g.isPart(path) {
				v.SetBytes([]byte(text(0, hugeText)))
			}
			return
		}
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		isLarge := g.isPart(path)
		if g.whole && limit.MaxItems == nil || path == ".status.podIPs" { // the API server accepts two
			isLarge = false
		}
		if !isLarge {
			g.grow(v.Index(0), path+"[]")
			return
		}
		length := hugeList
		if limit.MaxItems != nil {
			length = int(*limit.MaxItems)
		}
		first := v.Index(0)
		v.Set(reflect.MakeSlice(v.Type(), length, length))
		for i := range length {
			v.Index(i).Set(first)
			if g.whole {
				g.grow(v.Index(i), path+"[]")
			} else {
				short(v.Index(i), i)
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String || v.Type().Elem().Kind() == reflect.Interface {
			return
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for _, key := range v.MapKeys() { // those of Good, which readers use
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			g.grow(value, path+"{}")
			v.SetMapIndex(key, value)
		}
		if g.isPart(path) && !g.whole {
			for i := range hugeList {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				key.SetString(fmt.Sprint("k", i))
				short(value, i)
				v.SetMapIndex(key, value)
			}
		}
	}
}

// short gives an element of a list a text of its own.
func short(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("v", n))
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.String && f.CanSet() {
				f.SetString(fmt.Sprint("v", n, "-", i))
			}
		}
	}
}

// lengthOf returns the length of a text with a limit. In an object in which everything is large,
// what has no limit is short.
func lengthOf(limit *int64, whole bool) int {
	switch {
	case limit != nil:
		return int(*limit)
	case whole:
		return 16
	}
	return hugeText
}

// text returns a text of its own in memory. It is an address or a prefix if it has such a length.
func text(n, length int) string {
	addr := netip.AddrFrom16([16]byte{0xfd, 14: byte(n >> 8), 15: byte(n)})
	switch length {
	case addressLength:
		return addr.String()
	case prefixLength:
		return netip.PrefixFrom(addr, 128).String()
	}
	return (fmt.Sprint("t", n) + strings.Repeat("x", length))[:length]
}
