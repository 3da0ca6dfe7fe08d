package pinbench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// auditPolicy logs the requests of leasehold's accounts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + wellknown.Namespace + `"]
- level: None
`

// A logged request is one of leasehold's accounts.
type logged struct {
	at      time.Time
	account string // "agent" or "manager"
	verb    string
	what    string // resource, with the subresource
	object  string // namespace and name of the object
	code    int
}

// isOf reports whether the request names one of the pods (by namespace and name), or an
// IPReservation or Event that is named after it.
func (l logged) isOf(pods map[string]bool) bool {
	name := l.object
	switch resource, _, _ := strings.Cut(l.what, "/"); resource {
	case "pods":
	case "ipreservations":
		name = name[:max(0, strings.LastIndexByte(name, '-'))]
	case "events":
		name = name[:max(0, strings.LastIndexByte(name, '.'))]
	default:
		return false
	}
	return pods[name]
}

// isRejected reports whether the API server has not processed the request, because it has too many
// or is too slow.
func (l logged) isRejected() bool {
	return l.code == http.StatusTooManyRequests || l.code >= http.StatusInternalServerError
}

// rejections counts the requests that are rejected.
func rejections(requests []logged) (n int) {
	for _, l := range requests {
		if l.isRejected() {
			n++
		}
	}
	return n
}

// String returns the request such as "agent patch ipreservations/status".
func (l logged) String() string { return l.account + " " + l.verb + " " + l.what }

// An auditEvent has the fields of an audit.k8s.io/v1 Event that are read.
type auditEvent struct {
	Stage, Verb              string
	RequestReceivedTimestamp time.Time
	RequestURI               string
	User                     struct{ Username string }
	ObjectRef                struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus           struct{ Code int }
}

// request returns the request that an event of the log is about. It reports false for a second
// event about the same request: a watch has one when it begins, and one when it has ended.
func (e auditEvent) request() (logged, bool) {
	watched := e.Verb == "watch" && e.ResponseStatus.Code < 400
	if watched != (e.Stage == "ResponseStarted") {
		return logged{}, false
	}
	l := logged{at: e.RequestReceivedTimestamp, verb: e.Verb, what: e.ObjectRef.Resource, code: e.ResponseStatus.Code,
		account: e.User.Username[strings.LastIndex(e.User.Username, ":")+1:],
		object:  e.ObjectRef.Namespace + "/" + e.ObjectRef.Name}
	switch l.account {
	case cluster.Agent:
		l.account = "agent"
	case wellknown.ManagerName:
		l.account = "manager"
	}
	if e.ObjectRef.Subresource != "" {
		l.what += "/" + e.ObjectRef.Subresource
	}
	if l.what == "" {
		l.what, _, _ = strings.Cut(e.RequestURI, "?")
	}
	return l, true
}

// auditSize returns the present end of the audit log.
func (b *Bench) auditSize() (int64, error) {
	info, err := os.Stat(b.cluster.AuditLog())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// auditFrom returns the requests that were logged from an offset on.
func (b *Bench) auditFrom(offset int64) ([]logged, error) {
	file, err := os.Open(b.cluster.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return parseAudit(file)
}

// parseAudit reads an audit log. Its last line may be incomplete.
func parseAudit(r io.Reader) (requests []logged, err error) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, err
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("a line of the audit log cannot be parsed: %w: %s", err, line)
		}
		if l, ok := e.request(); ok {
			requests = append(requests, l)
		}
	}
}

// busiest returns the largest number of requests in a second of the clock.
func busiest(requests []logged) (most int) {
	counts := map[int64]int{}
	for _, l := range requests {
		counts[l.at.Unix()]++
		most = max(most, counts[l.at.Unix()])
	}
	return most
}
