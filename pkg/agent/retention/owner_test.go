package retention

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/check"
)

func TestParseOwner(t *testing.T) {
	for _, c := range []struct{ text, pod, want string }{
		{"StatefulSet.apps/db", "db-0", "/apis/apps/v1/namespaces/ns/statefulsets/db 0"},
		{"StatefulSet.apps/db", "db-12", "/apis/apps/v1/namespaces/ns/statefulsets/db 12"},
		{"StatefulSet.apps.kruise.io/a.b-c", "a.b-c-3",
			"/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/a.b-c 3"},
		{"StatefulSet.apps/db", "db-01", ""},
		{"StatefulSet.apps/db", "db--1", ""},
		{"StatefulSet.apps/db", "db-x", ""},
		{"StatefulSet.apps/db", "other-0", ""},
		{"StatefulSet.example.com/db", "db-0", ""},
		{"StatefulSet.apps/", "-0", ""},
		{"Job.batch/db", "db-0", ""},
		{"", "db-0", ""},
	} {
		path, ordinal, ok := ParseOwner(c.text, kube.Name{Namespace: "ns", Name: c.pod})
		got := fmt.Sprint(path, " ", ordinal)
		if !ok {
			got = ""
		}
		check.Equal(t, got, c.want, c.pod, "of", c.text)
	}
}
