package pinbench

import (
	"fmt"
	"strings"
	"testing"
)

// TestParseAudit checks that each request is counted once, when the API server has received it.
func TestParseAudit(t *testing.T) {
	line := func(stage, verb, user, uri, ref, at string, code int) string {
		return fmt.Sprintf(`{"kind":"Event","stage":%q,"verb":%q,"requestURI":%q,"user":{"username":%q},`+
			`"objectRef":{%s},"responseStatus":{"code":%d},`+
			`"requestReceivedTimestamp":"2026-01-01T00:00:%s.500000Z"}`+"\n",
			stage, verb, uri, "system:serviceaccount:leasehold-system:"+user, ref, code, at)
	}
	pods, status := `"resource":"pods"`, `"resource":"ipreservations","subresource":"status"`
	log := line("ResponseStarted", "watch", "leasehold-agent", "/api/v1/pods?watch=true", pods, "01", 200) +
		line("ResponseComplete", "patch", "leasehold-agent", "/x", status, "02", 200) +
		line("ResponseComplete", "get", "leasehold-manager", "/version?a=b", "", "02", 404) +
		line("ResponseStarted", "watch", "leasehold-manager", "/x", pods, "02", 429) +
		line("ResponseComplete", "watch", "leasehold-manager", "/x", pods, "02", 429) +
		line("ResponseComplete", "watch", "leasehold-agent", "/api/v1/pods?watch=true", pods, "01", 200) +
		`{"stage":"Respon` // being written
	got, err := parseAudit(strings.NewReader(log))
	want := "[agent watch pods agent patch ipreservations/status manager get /version manager watch pods]"
	if fmt.Sprint(got) != want || err != nil {
		t.Errorf("got  %v, %v\nwant %v", got, err, want)
	}
	if most := busiest(got); most != 3 {
		t.Errorf("at most %d requests in a second, want 3", most)
	}
	if _, err := parseAudit(strings.NewReader("nothing\n")); err == nil {
		t.Error("a line that is no event has no error")
	}
}

// TestIsOf checks which requests count for the recreation of a pod.
func TestIsOf(t *testing.T) {
	pods := map[string]bool{"a/db-0": true}
	for _, c := range []struct {
		what, object string
		want         bool
	}{
		{"pods/status", "a/db-0", true}, {"pods", "b/db-0", false}, {"pods", "a/db-01", false},
		{"ipreservations/status", "a/db-0-5f1c9a02", true}, {"ipreservations", "a/db-01-5f1c9a02", false},
		{"events", "a/db-0.0123456789abcdef", true}, {"events", "a/db-1.0123456789abcdef", false},
		{"ipreservations", "/", false}, {"nodes", "a/db-0", false},
	} {
		if got := (logged{what: c.what, object: c.object}).isOf(pods); got != c.want {
			t.Errorf("%s %s: %v", c.what, c.object, got)
		}
	}
}

func TestSumBy(t *testing.T) {
	const text = `apiserver_request_total{code="200",resource="pods",subresource="",verb="GET"} 3
apiserver_request_total{code="404",resource="pods",subresource="",verb="GET"} 1e+00
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 7
apiserver_request_total_of_others{resource="pods",verb="GET"} 9
`
	got := sumBy(text, "apiserver_request_total{", "verb", "resource", "subresource")
	if fmt.Sprint(got) != "map[GET pods:4 PATCH pods status:7]" {
		t.Errorf("got %v", got)
	}
}
