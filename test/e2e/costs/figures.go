package costs

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// apiServer is the name of the API server's program in a Window.
const apiServer = "kube-apiserver"

// sum adds up the windows of a kind.
func (r Run) sum(kind string) Window {
	s := Window{Kind: kind, Processor: map[string]time.Duration{}, Requests: map[string]int{}, Named: map[string]int{}}
	for _, w := range r.Windows {
		if w.Kind != kind {
			continue
		}
		s.Took += w.Took
		s.Recreations += w.Recreations
		for name, t := range w.Processor {
			s.Processor[name] += t
		}
		for name, n := range w.Requests {
			s.Requests[name] += n
		}
		for name, n := range w.Named {
			s.Named[name] += n
		}
	}
	return s
}

// perRecreation returns, for each round, a figure per recreation of a kind: all of it, and without
// what it is in the same time of the round's window in which nothing is recreated. Both are sorted.
func (r Run) perRecreation(kind string, figure func(Window) float64) (all, net []float64) {
	var idle Window
	for _, w := range r.Windows {
		switch {
		case w.Kind == Idle:
			idle = w
		case w.Kind == kind && w.Recreations > 0:
			rest := figure(idle) * float64(w.Took) / float64(idle.Took)
			all = append(all, figure(w)/float64(w.Recreations))
			net = append(net, (figure(w)-rest)/float64(w.Recreations))
		}
	}
	slices.Sort(all)
	slices.Sort(net)
	return all, net
}

// median returns the median of sorted values, NaN if there is none.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// processor returns the processor time per recreation of a program in milliseconds, see
// perRecreation.
func (r Run) processor(kind, program string) (all, net []float64) {
	return r.perRecreation(kind, func(w Window) float64 { return float64(w.Processor[program]) / 1e6 })
}

// share returns the share of the machine's processors that a program uses in a kind of windows, in
// percent.
func (r Run) share(kind, program string) float64 {
	w := r.sum(kind)
	return 100 * float64(w.Processor[program]) / float64(w.Took) / float64(r.Processors)
}

// otherRate returns leasehold's requests per second in a kind of windows that do not name a pod
// that was recreated, and its standard error, if these requests are independent of each other.
func (r Run) otherRate(kind string) (rate, uncertainty float64) {
	s := r.sum(kind)
	total := 0
	for name, n := range s.Requests {
		total += n - s.Named[name]
	}
	return float64(total) / s.Took.Seconds(), math.Sqrt(float64(total)) / s.Took.Seconds()
}

// idleRate returns leasehold's requests per second while nothing is recreated.
func (r Run) idleRate() float64 {
	rate, _ := r.otherRate(Idle)
	return rate
}

// isNamed reports whether the requests that name recreated pods were counted.
func (r Run) isNamed() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Named != nil })
}

// named returns the requests that name recreated pods, per recreation, the largest first. If those
// were not counted, it returns all requests, without those of the same time while nothing is
// recreated.
func (r Run) named() (list []count) {
	if !r.isNamed() {
		return r.counts(func(w Window) map[string]int { return w.Requests }, 0.05)
	}
	all := map[string]int{}
	for _, kind := range []string{Idle, Plain, Retained} { // a late one is in the window after
		for name, n := range r.sum(kind).Named {
			all[name] += n
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, count{name, float64(all[name]) / float64(r.sum(Retained).Recreations)})
	}
	slices.SortStableFunc(list, func(a, b count) int { return cmp.Compare(b.each, a.each) })
	return list
}

// A count is a number per recreation.
type count struct {
	name string
	each float64
}

// counts returns the counts per recreation of retained pods, without those of the same time while
// nothing is recreated: the medians of the rounds, the largest first. Those below least are left
// out.
func (r Run) counts(of func(Window) map[string]int, least float64) (list []count) {
	names := map[string]bool{}
	for _, w := range r.Windows {
		for name := range of(w) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		_, net := r.perRecreation(Retained, func(w Window) float64 { return float64(of(w)[name]) })
		if each := median(net); each >= least {
			list = append(list, count{name, each})
		}
	}
	slices.SortStableFunc(list, func(a, b count) int { return cmp.Compare(b.each, a.each) })
	return list
}

func events(w Window) map[string]int { return w.Events }

// total returns leasehold's requests per recreation.
func (r Run) total() (total float64) {
	for _, c := range r.named() {
		total += c.each
	}
	return total
}

// writes returns those of the requests that change something.
func (r Run) writes() (total float64) {
	for _, c := range r.named() {
		verb := strings.Fields(c.name)[1]
		if slices.Contains([]string{"create", "update", "patch", "delete"}, verb) {
			total += c.each
		}
	}
	return total
}

// A fit is a straight line through points, by least squares.
type fit struct {
	at0, slope float64
	// residual is the standard deviation of the points from the line.
	residual float64
}

// fitted returns the line through points, at least two.
func fitted(x, y []float64) fit {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	f := fit{slope: (n*sxy - sx*sy) / (n*sxx - sx*sx)}
	f.at0 = (sy - f.slope*sx) / n
	squares := 0.0
	for i := range x {
		d := y[i] - f.at(x[i])
		squares += d * d
	}
	if n > 2 {
		f.residual = math.Sqrt(squares / (n - 2))
	}
	return f
}

func (f fit) at(x float64) float64 { return f.at0 + f.slope*x }

func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
