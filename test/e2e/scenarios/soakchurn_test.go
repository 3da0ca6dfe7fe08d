package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// A soakWorkload is a workload of the soak.
type soakWorkload struct {
	name       string
	deployment bool
	size       int
	window     time.Duration // 0: none
	create     func(ctx context.Context) error
	away       bool // deleted or scaled down, until a later action undoes it
}

// A soakChurn replaces pods. Its calls may fail while an accident happens, so that their errors are
// only counted.
type soakChurn struct {
	*soakRun
	dice  *rand.Rand
	sets  []*soakWorkload
	bare  []*soakWorkload
	later []soakAction
}

type soakAction struct {
	at time.Time
	do func(ctx context.Context) error
}

// workloads starts the workloads of the soak.
func (s *soakRun) workloads(dice *rand.Rand) *soakChurn {
	c := &soakChurn{soakRun: s, dice: dice}
	t := s.Test
	add := func(name string, n *cluster.Node, size int, window time.Duration) {
		set := t.echoserver(name, n, size, KeptFor(annotation(window)))
		w := &soakWorkload{name: name, size: size, window: window}
		w.create = func(ctx context.Context) error {
			_, err := s.Client.AppsV1().StatefulSets(s.NS).Create(ctx, &set, metav1.CreateOptions{})
			return ignore(err, apierrors.IsAlreadyExists)
		}
		t.Must(w.create(t.Ctx))
		c.sets = append(c.sets, w)
	}
	for i, name := range t.nodes {
		n := t.Cluster.Node(name)
		add("kept-"+name, n, 4, 3*time.Minute)
		for _, window := range []time.Duration{0, 2 * time.Minute} {
			pod := fmt.Sprintf("bare-%d-%v", i+1, window)
			object := t.bare(pod, n, KeptFor(annotation(window)))
			w := &soakWorkload{name: pod, size: 1, window: window}
			w.create = func(ctx context.Context) error {
				_, err := s.Client.CoreV1().Pods(s.NS).Create(ctx, object, metav1.CreateOptions{})
				return err // it exists until the old one is gone: tried again
			}
			t.Must(w.create(t.Ctx))
			c.bare = append(c.bare, w)
		}
	}
	add("free", nil, 6, soakLongestWindow)
	add("unkept", nil, 3, 0)
	for _, name := range []string{"plain-a", "plain-b"} {
		t.Deployment(name, nil, 4)
		c.sets = append(c.sets, &soakWorkload{name: name, deployment: true, size: 4})
	}
	for _, w := range c.sets {
		t.set(w.name, w.size).Ready()
	}
	return c
}

func annotation(window time.Duration) string {
	if window == 0 {
		return ""
	}
	return strconv.Itoa(int(window.Seconds())) + "s"
}

func ignore(err error, harmless func(error) bool) error {
	if harmless(err) {
		return nil
	}
	return err
}

// run replaces pods until ctx is done, and undoes then what it has deleted or scaled down.
func (c *soakChurn) run(ctx context.Context) {
	next := time.Now()
	every(ctx, 500*time.Millisecond, func(now time.Time) {
		due := c.later
		c.later = nil
		for _, a := range due {
			if now.Before(a.at) {
				c.later = append(c.later, a)
			} else if err := a.do(ctx); err != nil {
				c.failed("repeated actions", err)
				c.later = append(c.later, soakAction{now.Add(2 * time.Second), a.do})
			}
		}
		if now.Before(next) {
			return
		}
		replaced, err := c.act(ctx)
		c.failed("actions that failed", err)
		next = now.Add(time.Duration(replaced) * soakPace)
	})
}

// act replaces some pods, and returns how many.
func (c *soakChurn) act(ctx context.Context) (int, error) {
	pods := c.Client.CoreV1().Pods(c.NS)
	sets := c.Client.AppsV1().StatefulSets(c.NS)
	w := c.sets[c.dice.IntN(len(c.sets))]
	what := c.dice.IntN(100)
	if what < 15 {
		w = c.bare[c.dice.IntN(len(c.bare))]
	}
	if w.away {
		return 0, nil
	}
	// away has the workload restored later, unless it could not be changed.
	away := func(err error, do func(context.Context) error) error {
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		w.away = true
		c.later = append(c.later, soakAction{time.Now().Add(c.pause(w.window)), func(ctx context.Context) error {
			err := do(ctx)
			if err == nil {
				w.away = false
			}
			return err
		}})
		return nil
	}
	switch {
	case what < 15:
		c.count("bare pods recreated")
		return 1, away(pods.Delete(ctx, w.name, metav1.DeleteOptions{}), w.create)
	case what < 88:
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name, ResourceVersion: "0"})
		if err != nil || len(list.Items) == 0 {
			return 1, err
		}
		victim := list.Items[c.dice.IntN(len(list.Items))]
		if victim.DeletionTimestamp != nil {
			return 0, nil
		}
		c.count("pods deleted")
		return 1, ignore(pods.Delete(ctx, victim.Name, metav1.DeleteOptions{}), apierrors.IsNotFound)
	case what < 93:
		c.count("rolling updates")
		patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"rollout":"` + time.Now().String() + `"}}}}}`)
		var err error
		if w.deployment {
			_, err = c.Client.AppsV1().Deployments(c.NS).Patch(ctx, w.name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
		} else {
			_, err = sets.Patch(ctx, w.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		}
		return w.size, err
	case w.deployment:
		return 0, nil
	case what < 98:
		c.count("scaled down and up")
		size := func(size int) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				_, err := sets.Patch(ctx, w.name, types.MergePatchType,
					fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, size), metav1.PatchOptions{})
				return err
			}
		}
		down := c.dice.IntN(w.size)
		return w.size - down, away(size(down)(ctx), size(w.size))
	default:
		c.count("StatefulSets deleted and created")
		background := metav1.DeletePropagationBackground
		return w.size, away(sets.Delete(ctx, w.name, metav1.DeleteOptions{PropagationPolicy: &background}), w.create)
	}
}

// pause returns how long pods stay away: mostly less than their window, sometimes more.
func (c *soakChurn) pause(window time.Duration) time.Duration {
	if window == 0 {
		window = time.Minute
	}
	if c.dice.IntN(5) == 0 {
		return window + time.Duration(c.dice.Int64N(int64(time.Minute)))
	}
	return time.Duration(c.dice.Int64N(int64(window * 3 / 4)))
}
