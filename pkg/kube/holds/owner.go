package holds

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

type set struct{ windows.Set }

func (s set) path(namespace string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", s.Group, s.Version, namespace, s.Name)
}

// endlessOf returns the StatefulSet and the number of a pod for which something is held without end.
func endlessOf(leases []lease.Lease, pod string) (set, int, bool) {
	for _, l := range leases {
		if s, ordinal, ok := windows.ParseOwner(l.Owner, pod); ok && l.Hold == lease.Forever {
			return set{s}, ordinal, true
		}
	}
	return set{}, 0, false
}

// answer is what the API says of a StatefulSet: an error, or which pods it wants. One that is gone wants none.
type answer struct {
	err      error
	replicas int
	start    int
	reserved []intstr.IntOrString // Kruise's: numbers that are left out
}

func (h *Holds) ask(ctx context.Context, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	raw, err := h.Clients.Any.Get().AbsPath(path).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return answer{} // it is gone, and its kind is not
	case err != nil:
		return answer{err: err}
	}
	return parseSet(raw)
}

func parseSet(raw []byte) answer {
	var object struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec struct {
			Replicas *int `json:"replicas"`
			Ordinals struct {
				Start int `json:"start"`
			} `json:"ordinals"`
			ReserveOrdinals []intstr.IntOrString `json:"reserveOrdinals"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return answer{err: err}
	}
	a := answer{replicas: 1, start: max(object.Spec.Ordinals.Start, 0), reserved: object.Spec.ReserveOrdinals}
	if object.Spec.Replicas != nil {
		a.replicas = *object.Spec.Replicas
	}
	if object.Metadata.DeletionTimestamp != nil {
		a.replicas = 0
	}
	for _, r := range a.reserved {
		if _, _, err := bounds(r); err != nil {
			return answer{err: err}
		}
	}
	return a
}

// wants tells whether the set has a pod of this number, now or as soon as it comes to it.
func (a answer) wants(ordinal int) bool {
	if ordinal < a.start || a.isReserved(ordinal) {
		return false
	}
	before := 0 // wanted numbers that are smaller
	for n := a.start; n < ordinal && before < a.replicas; n++ {
		if !a.isReserved(n) {
			before++
		}
	}
	return before < a.replicas
}

func (a answer) isReserved(n int) bool {
	for _, r := range a.reserved {
		if from, to, err := bounds(r); err == nil && from <= n && n <= to {
			return true
		}
	}
	return false
}

// bounds reads a number or, as Kruise has it, a range "3-7".
func bounds(r intstr.IntOrString) (from, to int, err error) {
	if r.Type == intstr.Int {
		return r.IntValue(), r.IntValue(), nil
	}
	a, b, isRange := strings.Cut(r.StrVal, "-")
	if !isRange {
		b = a
	}
	if from, err = strconv.Atoi(a); err == nil {
		to, err = strconv.Atoi(b)
	}
	return from, to, err
}
