package kube

import (
	"log/slog"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// LeftOut is the metric of the objects that this program leaves out because they cannot be decoded,
// by the lists that have them.
var LeftOut = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "leasehold_undecodable_objects",
	Help: "Objects in the API that are ignored because they cannot be decoded, by what lists them. The log names them.",
}, []string{"objects"})

// leftOut has the keys of the objects that an informer leaves out. Once it was started, it logs a
// warning for each of them, at most once an hour, and sets the metric LeftOut.
type leftOut struct {
	what     string
	log      *slog.Logger
	keys     map[string]bool
	count    atomic.Int64 // of keys
	reported Reported
}

func (l *leftOut) start(what string, log logr.Logger) {
	l.what, l.log = what, slog.New(logr.ToSlogHandler(log))
}

// set records whether an object is left out: if it exists and why is not nil.
func (l *leftOut) set(key string, why error, gone bool) {
	if delete(l.keys, key); why != nil && !gone {
		l.add(key, why)
	}
	l.show()
}

// replace records all objects that are left out.
func (l *leftOut) replace(all map[string]error) {
	l.keys = map[string]bool{}
	for key, why := range all {
		l.add(key, why)
	}
	l.show()
}

func (l *leftOut) add(key string, why error) {
	l.keys[key] = true
	if l.log != nil && l.reported.First(key) {
		l.log.Warn("an object that cannot be decoded is ignored", "objects", l.what, "object", key, "error", why)
	}
}

func (l *leftOut) show() {
	l.count.Store(int64(len(l.keys)))
	if l.log != nil {
		LeftOut.WithLabelValues(l.what).Set(float64(len(l.keys)))
	}
}
