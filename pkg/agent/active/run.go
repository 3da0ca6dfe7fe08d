package active

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent/events"
	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// interval is the time between two looks.
	interval = 5 * time.Second
	// repeat is how often the Events are created again: the API server keeps them for an hour.
	repeat = time.Hour
)

// The reasons of the Events.
const (
	RetentionInactive = "RetentionInactive"
	RetentionUnknown  = "RetentionUnknown"
	RetentionActive   = "RetentionActive"
)

// Watcher is the task that watches whether leasehold is in use.
type Watcher struct {
	Service *maintain.Service
	Node    string
	Log     *slog.Logger
	// ConfDir is the runtime's directory of configurations, Rules are how it chooses among them,
	// and Binaries its directories of plugins.
	ConfDir  string
	Rules    cniconf.Rules
	Binaries *cniconf.Binaries
	// Pods are the pods of the node, and Events the client for Events. Both are nil without an API
	// server.
	Pods   *podcache.Pods
	Events rest.Interface

	metric  *prometheus.GaugeVec
	judge   judge
	leased  map[string]bool // pods that had a lease, by UID: they are not looked for again
	wasOff  bool            // the last Events said that retention is not active
	backAt  time.Time       // when it was found to be active again
	posted  map[string]bool // names of Events that were created and are still wanted
	changed notify.Signal

	mu     sync.Mutex
	result []cniconf.Status
}

// Register registers the metric. It must be called once, before Run.
func (w *Watcher) Register(r prometheus.Registerer) {
	w.metric = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leasehold_retention_active",
		Help: "Whether leasehold serves a network (1) or not (0). There is no value while that is not known.",
	}, []string{"node", "network"})
	r.MustRegister(w.metric)
}

// Result returns what was found out: at least one status, or none before the first result. The
// caller must not modify it.
func (w *Watcher) Result() []cniconf.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

// Changes returns a channel that receives a value when Result has changed. It is never closed.
func (w *Watcher) Changes() <-chan struct{} { return w.changed.Subscribe() }

// Run watches until ctx is done. It returns ctx.Err().
func (w *Watcher) Run(ctx context.Context) error {
	for {
		w.pass(ctx, time.Now())
		if !notify.Wait(ctx, nil, interval) {
			return ctx.Err()
		}
	}
}

// pass looks once, and reports what has changed.
func (w *Watcher) pass(ctx context.Context, now time.Time) {
	if w.judge.add(w.look(ctx, now), now) {
		w.publish()
	}
	if w.Events != nil && w.judge.hasResult {
		w.post(ctx, now)
	}
}

// look determines the state of each network now.
func (w *Watcher) look(ctx context.Context, now time.Time) []cniconf.Status {
	statuses := cniconf.Check(cniconf.Load(w.ConfDir, w.Rules), w.Binaries)
	w.judge.date(statuses, now)
	if w.Pods == nil || slices.ContainsFunc(statuses, isOff) {
		return statuses
	}
	since := slices.MaxFunc(statuses, func(a, b cniconf.Status) int { return a.Since.Compare(b.Since) }).Since
	// The pods are read before the leases: a pod gets its address in the API after its lease.
	pods := candidates(w.pods(), since)
	missing, err := w.missing(ctx, pods)
	if err != nil {
		s := &statuses[0]
		s.State, s.Reason = cniconf.Unknown, LeasesUnreadable
		s.Message = fmt.Sprintf("%s, but whether pods have leases is not known: %v", s.Message, err)
		return statuses
	}
	if lasting := w.judge.lasting(missing, now); len(lasting) > 0 {
		podsOff(statuses, lasting)
	}
	return statuses
}

// pods returns the pods in the order of their names.
func (w *Watcher) pods() []podcache.Pod {
	views, _ := w.Pods.Views()
	return slices.SortedFunc(maps.Values(views), func(a, b podcache.Pod) int {
		return strings.Compare(a.Name.String(), b.Name.String())
	})
}

// missing returns the pods that have no lease. It returns an error where a lease may have been
// lost with the store.
func (w *Watcher) missing(ctx context.Context, pods []podcache.Pod) ([]podcache.Pod, error) {
	leased := map[string]bool{} // without the pods that are gone
	pods = slices.DeleteFunc(pods, func(p podcache.Pod) bool {
		if w.leased[p.UID] {
			leased[p.UID] = true
		}
		return leased[p.UID]
	})
	w.leased = leased
	if len(pods) == 0 {
		return nil, nil
	}
	view, err := w.Service.List(ctx, func(lease.Lease) bool { return true })
	if err != nil && !store.IsEmpty(err) {
		return nil, err
	}
	missing := withoutLease(pods, view.Leases)
	for _, p := range pods {
		isMissing := slices.ContainsFunc(missing, func(m podcache.Pod) bool { return m.UID == p.UID })
		if !isMissing {
			w.leased[p.UID] = true
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	// A store that was lost knows the networks again from their next ADD on.
	remembered, _, err := w.Service.Store.ReadSnapshot()
	if err != nil {
		return nil, err
	}
	if len(withoutLease(missing, remembered)) < len(missing) {
		return nil, errors.New("the store has lost leases that the snapshot has")
	}
	return missing, nil
}

// publish makes the confirmed statuses known within the process, and logs them.
func (w *Watcher) publish() {
	w.mu.Lock()
	w.result = w.judge.confirmed
	w.mu.Unlock()
	w.changed.Send()
	if w.metric != nil {
		w.metric.Reset()
	}
	for _, s := range w.judge.confirmed {
		if w.metric != nil && s.State != cniconf.Unknown {
			value := 0.0
			if s.State == cniconf.Active {
				value = 1
			}
			w.metric.WithLabelValues(w.Node, s.Network).Set(value)
		}
		level, text := slog.LevelWarn, "retention is not active"
		switch s.State {
		case cniconf.Active:
			level, text = slog.LevelInfo, "retention is active"
		case cniconf.Unknown:
			text = "whether retention is active is not known"
		}
		w.Log.Log(context.Background(), level, text, "network", s.Network, "reason", s.Reason, "message", s.Message)
	}
}

// post creates the Events that are wanted and were not created yet. What fails is tried again at
// the next pass.
func (w *Watcher) post(ctx context.Context, now time.Time) {
	wanted := w.wanted(now)
	names := map[string]bool{}
	for _, e := range wanted {
		names[e.Namespace+"/"+e.Name] = w.posted[e.Namespace+"/"+e.Name]
	}
	w.posted = names
	for _, e := range wanted {
		key := e.Namespace + "/" + e.Name
		if names[key] {
			continue
		}
		switch err := events.Post(ctx, w.Events, e); {
		case err == nil:
		case events.IsFinal(err):
			w.Log.Warn("creating an event failed", "reason", e.Reason, "about", e.Regarding.Name, "error", err)
		default:
			return
		}
		names[key] = true
	}
}

// wanted returns the Events that should exist now, and records when retention became inactive and
// when it was active again. The names of the Events are computed from their content (event), so
// each pass yields the same names, and an Event that exists is not created again. There is an Event
// on the node for each network that is inactive or unknown, one on each annotated pod of the node
// for each inactive network, and one on the node when all networks are active again.
func (w *Watcher) wanted(now time.Time) []*eventsv1.Event {
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.Node, UID: types.UID(w.Node)}
	var out []*eventsv1.Event
	isOff := false
	for _, s := range w.judge.confirmed {
		network := ""
		if s.Network != "" {
			network = "network " + s.Network + ": "
		}
		switch s.State {
		case cniconf.Unknown:
			out = append(out, w.event(node, s, true, RetentionUnknown,
				network+"whether addresses are retained is not known: "+s.Reason+": "+s.Message, now))
		case cniconf.Inactive:
			isOff = true
			text := network + "addresses are not retained: " + s.Reason + ": " + s.Message
			out = append(out, w.event(node, s, true, RetentionInactive, text, now))
			for _, p := range w.annotated() {
				pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name.Name,
					UID: p.ObjectUID}
				out = append(out, w.event(pod, s, true, RetentionInactive, text, now))
			}
		}
	}
	switch {
	case len(out) > 0:
		w.wasOff = w.wasOff || isOff
	case w.wasOff:
		w.wasOff, w.backAt = false, now
	}
	if len(out) == 0 && !w.backAt.IsZero() {
		s := w.judge.confirmed[0]
		s.Since = w.backAt
		text := "addresses are retained again: " + s.Message
		out = append(out, w.event(node, s, false, RetentionActive, text, w.backAt))
	}
	return out
}

// annotated returns the pods that ask for their address to be kept.
func (w *Watcher) annotated() []podcache.Pod {
	return slices.DeleteFunc(w.pods(), func(p podcache.Pod) bool { return !wants(p) })
}

// event returns an Event about a status. Its name changes with the status, and once for each
// period of repeat since the files have changed, so that a lasting status is reported again.
func (w *Watcher) event(about corev1.ObjectReference, s cniconf.Status, isWarning bool, reason, text string,
	now time.Time) *eventsv1.Event {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%s\x00%d\x00%d",
		about.Kind, about.UID, reason, s.Network, s.Reason, s.Since.UnixNano(), now.Sub(s.Since)/repeat)
	return events.New(about, events.Name(about.Name, h.Sum64()), w.Node, "CheckRetention", isWarning, reason, text, now)
}
