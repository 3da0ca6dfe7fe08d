package pin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// gatedPod is one of the key's, with our gate on it.
func gatedPod(key string) *podView {
	r := requestFor(key)
	meta := metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, UID: types.UID("uid of " + key)}
	return &podView{ObjectMeta: meta, Gated: true, Gates: 1}
}

// ungatedPod is one that got no gate.
func ungatedPod(key string) *podView {
	p := gatedPod(key)
	p.Gated, p.Gates = false, 0
	return p
}

// limited returns a limiter whose clock stands at noon until the test moves it, and a function that
// asks it without waiting.
func limited() (l *gateLimiter, clock *time.Time, admitted func(key string) bool) {
	at := noon
	l = newGateLimiter(func() time.Time { return at })
	return l, &at, func(key string) bool {
		yes, _ := l.admit(key)
		return yes
	}
}

// fill has as many gates made as can be, one after the other in some namespaces.
func fill(admitted func(string) bool, name string, namespaces int) (made []string) {
	for i := range 10 * maxGates {
		if key := fmt.Sprintf("ns%d/%s-%d", i%namespaces, name, i); admitted(key) {
			made = append(made, key)
		}
	}
	return made
}

func TestPlaces(t *testing.T) {
	for namespaces, want := range map[int]int{1: maxNamespaceGates, 2: maxGates, 30: maxGates} {
		l, _, admitted := limited()
		made := fill(admitted, "pod", namespaces)
		if len(made) != want {
			t.Errorf("%d gates are made in %d namespaces, want %d", len(made), namespaces, want)
		}
		for i, key := range made {
			l.Seen(gatedPod(key))
			switch i % 4 {
			case 0:
				l.Lifted(gatedPod(key), true)
			case 1:
				l.Cancel(key)
			case 2:
				held := gatedPod(key)
				held.Gates = 2
				l.Seen(held) // by others
			default:
				lifted := gatedPod(key)
				lifted.Gated = false
				l.Seen(lifted) // by the other replica
			}
		}
		if again := fill(admitted, "again", namespaces); len(again) != want {
			t.Errorf("%d gates are made after that, want %d", len(again), want)
		}
	}
}

// The last place is for a namespace whose admission waits, not for one that has a place.
func TestPlaceOfAnAdmissionThatWaits(t *testing.T) {
	l, _, admitted := limited()
	for _, key := range []string{"a/1", "a/2", "a/3", "a/4", "a/5", "b/1", "b/2", "c/1"} {
		if !admitted(key) {
			t.Fatalf("%s gets no gate", key)
		}
	}
	l.wait("d/1", 1)
	if admitted("c/2") {
		t.Error("a namespace gets a second place while another waits for its first")
	}
	if !admitted("d/1") {
		t.Error("the one that waits gets no place")
	}
}

// A pod may be made again before a watch has shown the one before, whose gate is lifted.
func TestPodIsMadeAgainBeforeItIsSeen(t *testing.T) {
	l, clock, admitted := limited()
	admitted("db/0")
	l.LiftedUnseen(gatedPod("db/0"))
	if !admitted("db/0") {
		t.Fatal("it gets no gate")
	}
	*clock = clock.Add(unseenTimeout)
	if _, ask := l.Unseen("db/0"); !ask {
		t.Error("the API server is not asked about the new pod")
	}
}

func TestAdmissionsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newGateLimiter(time.Now)
		results := make(chan bool)
		const pods = 3 * maxNamespaceGates
		began := time.Now()
		for i := range pods {
			go func() {
				key := fmt.Sprintf("db/db-%d", i)
				ok := l.Admit(t.Context(), key)
				if ok {
					time.Sleep(300 * time.Millisecond)
					l.Lifted(gatedPod(key), true)
				}
				results <- ok
			}()
		}
		for range pods {
			if !<-results {
				t.Error("a pod gets no gate although others are soon lifted")
			}
		}
		if took := time.Since(began); took != 900*time.Millisecond {
			t.Errorf("they took %v", took)
		}
		for i := range maxNamespaceGates {
			l.Admit(t.Context(), fmt.Sprintf("db/stays-%d", i))
		}
		began = time.Now()
		if l.Admit(t.Context(), "db/late") || time.Since(began) != admissionWait {
			t.Errorf("it waits for %v", time.Since(began))
		}
		l.Failed(gatedPod("db/stays-0"))
		began = time.Now()
		if l.Admit(t.Context(), "db/late") || time.Since(began) != 0 {
			t.Errorf("it waits for %v although gates cannot be lifted", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if l.Admit(ctx, "other/pod") != true {
			t.Error("the other namespace has places")
		}
	})
}

// TestGatesThatCannotBeLifted has every lift refused in ever more namespaces: RBAC removed, a
// policy that refuses it all.
func TestGatesThatCannotBeLifted(t *testing.T) {
	l, clock, admitted := limited()
	var stuck []string
	for i := range 100 {
		key := fmt.Sprintf("ns%d/pod-%d", i, i)
		if admitted(key) {
			stuck = append(stuck, key)
			l.Seen(gatedPod(key))
			l.Failed(gatedPod(key))
		}
		*clock = clock.Add(time.Minute)
	}
	if len(stuck) != maxGates {
		t.Errorf("%d pods are stuck, want %d", len(stuck), maxGates)
	}
	*clock = clock.Add(24 * time.Hour)
	if admitted("another/pod") {
		t.Error("a gate is made, and none has been lifted")
	}
	again := l.Lifted(gatedPod(stuck[0]), false)
	if slices.Sort(again); !slices.Equal(again, slices.Sorted(slices.Values(stuck[1:]))) {
		t.Errorf("one is lifted, and tried again are %v", again)
	}
	if !admitted("another/pod") || admitted(stuck[1]+"0") || !admitted(stuck[0]+"0") {
		t.Error("gates are made where one was lifted, and where none has failed")
	}
}

// TestOneTenantsGates has the gates of a few namespaces refused forever, and those of another
// lifted now and then.
func TestOneTenantsGates(t *testing.T) {
	l, _, admitted := limited()
	for i := range 20 {
		if !admitted("good/pod") {
			t.Fatalf("with %d namespaces that cannot be lifted, another gets no gate", i)
		}
		l.Seen(gatedPod("good/pod"))
		l.Lifted(gatedPod("good/pod"), true)
		for j := range 20 {
			key := fmt.Sprintf("bad%d/pod-%d", i, j)
			if made := admitted(key); made != (j == 0) {
				t.Fatalf("%s gets a gate: %t", key, made)
			} else if made {
				l.Seen(gatedPod(key))
				l.Failed(gatedPod(key))
			}
		}
	}
	admitted("good/pod")
	l.Lifted(gatedPod("good/pod"), true)
	if again := fill(admitted, "again", 30); len(again) != maxGates {
		t.Errorf("others have %d places left", len(again))
	}
}

// TestTenantWithSeveralNamespaces has a tenant take all places with gates that cannot be lifted,
// before any gate of another tenant is made.
func TestTenantWithSeveralNamespaces(t *testing.T) {
	l, clock, admitted := limited()
	for _, key := range fill(admitted, "pod", 3) {
		l.Seen(gatedPod(key))
		l.Failed(gatedPod(key))
	}
	another := func(i int) (gate bool) {
		key := fmt.Sprintf("good/pod-%d", i)
		if gate = admitted(key); gate {
			l.Seen(gatedPod(key))
			l.Lifted(gatedPod(key), true)
		} else if l.TakeProbe(ungatedPod(key)) {
			l.Probed(ungatedPod(key))
		}
		*clock = clock.Add(time.Second)
		return gate
	}
	if another(0) || !another(1) {
		t.Error("a namespace gets no gate, although the API server would let it be lifted")
	}
	for i := range 10 {
		if !another(2 + i) {
			t.Errorf("pod %d after a gate was lifted has none", i)
		}
	}
	for i := range 3 {
		if admitted(fmt.Sprintf("ns%d/another", i)) {
			t.Error("a gate is made in a namespace where it cannot be lifted")
		}
	}
}

// TestNamespacesTakeTurns has one tenant's pods wait for places in two namespaces, and then
// another's.
func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lifting = 50 * time.Millisecond
		l := newGateLimiter(time.Now)
		admit := func(key string, after time.Duration) bool {
			time.Sleep(after)
			ok := l.Admit(t.Context(), key)
			if ok {
				time.Sleep(lifting)
				l.Lifted(gatedPod(key), true)
			}
			return ok
		}
		var all sync.WaitGroup
		for i := range 400 {
			after := time.Duration(i) * time.Millisecond
			all.Go(func() { admit(fmt.Sprintf("large%d/pod-%d", i%2, i), after) })
		}
		for i := range 10 {
			time.Sleep(25 * time.Millisecond)
			began := time.Now()
			if !admit(fmt.Sprintf("small/pod-%d", i), 0) || time.Since(began) > 2*lifting {
				t.Errorf("pod %d of another namespace waits for %v", i, time.Since(began)-lifting)
			}
		}
		all.Wait()
	})
}

func TestOneOfTheFailedIsTriedOften(t *testing.T) {
	l, _, _ := limited()
	if !l.Failed(gatedPod("a/1")) || l.Failed(gatedPod("a/2")) || !l.Failed(gatedPod("b/2")) ||
		!l.Failed(gatedPod("a/1")) {
		t.Error("want one in each namespace")
	}
	if l.Gone(gatedPod("a/1")) { // admitted by the other replica, and deleted
		t.Error("the API server is asked for the pod of another replica")
	}
	if !l.Failed(gatedPod("a/2")) {
		t.Error("nobody is tried often any more")
	}
}

// Whether a pod that is shown no more is deleted or has lost its label is asked at once: its gate
// may be left.
func TestPodThatIsShownNoMore(t *testing.T) {
	l, _, admitted := limited()
	admitted("db/0")
	l.Seen(gatedPod("db/0"))
	if !l.Gone(gatedPod("db/0")) {
		t.Error("the API server need not be asked")
	}
	if _, ask := l.Unseen("db/0"); !ask {
		t.Error("it is not asked at once")
	}
}

func TestUnseen(t *testing.T) {
	l, clock, admitted := limited()
	admitted("db/0")
	asks := func(story string, want bool) {
		t.Helper()
		if _, ask := l.Unseen("db/0"); ask != want {
			t.Errorf("%s: the API server is asked: %t", story, ask)
		}
	}
	asks("just admitted", false)
	*clock = clock.Add(unseenTimeout)
	asks("no watch shows it", true)
	other := gatedPod("db/0")
	other.Gated = false
	l.Seen(other)
	asks("a watch shows another pod of that name", true)
	l.Seen(gatedPod("db/0"))
	asks("a watch shows it", false)
	if !l.Gone(gatedPod("db/0")) {
		t.Error("whether it is deleted or has lost its label nobody knows")
	}
	asks("it has lost its label", true)
	l.Failed(gatedPod("db/0"))
	asks("it was found, and could not be lifted", true)
	if l.Own("db/0") != true || l.Own("db/1") {
		t.Error("this replica has admitted one pod")
	}
	again := l.LiftedUnseen(gatedPod("db/0"))
	if !l.Own("db/0") {
		t.Error("the gate is lifted, and this replica has not admitted the pod any more")
	}
	asks("lifted", false)
	*clock = clock.Add(again - 1)
	if l.Unwatched("db/0") {
		t.Error("the watch has some time")
	}
	*clock = clock.Add(1)
	if !l.Unwatched("db/0") || admitted("db/1") {
		t.Error("a watch that shows nothing stops gates")
	}
	*clock = clock.Add(firstPause)
	if !admitted("db/1") {
		t.Error("after a pause none is made, to see whether the watch is back")
	}
	if admitted("web/1") {
		t.Error("after a pause two gates are made at the same time")
	}
	l.LiftedUnseen(gatedPod("db/1"))
	*clock = clock.Add(unseenTimeout)
	l.Unwatched("db/1")
	*clock = clock.Add(firstPause)
	if admitted("db/2") {
		t.Error("the second pause is as short as the first")
	}
	*clock = clock.Add(firstPause)
	admitted("db/2")
	*clock = clock.Add(unseenTimeout)
	l.LiftedUnseen(gatedPod("db/2"))
	lifted := gatedPod("db/2")
	lifted.Gated = false
	l.Seen(lifted)
	*clock = clock.Add(unseenTimeout)
	if l.Unwatched("db/2") || !admitted("db/3") {
		t.Error("a watch that is slow counts as dead")
	}
}

// TestPauseOfAStalledWatch checks that a lifted gate ends the doubt about the watch only if the
// watch has shown its pod.
func TestPauseOfAStalledWatch(t *testing.T) {
	l, clock, admitted := limited()
	admitted("db/0")
	l.LiftedUnseen(gatedPod("db/0"))
	*clock = clock.Add(unseenTimeout)
	l.Unwatched("db/0")
	*clock = clock.Add(firstPause)
	admitted("db/1")
	l.Lifted(gatedPod("db/1"), true)
	if !admitted("db/2") || admitted("web/2") {
		t.Error("a gate was lifted without the watch: want one gate at a time")
	}
	l.Seen(gatedPod("db/2"))
	l.Lifted(gatedPod("db/2"), true)
	if !admitted("db/3") || !admitted("web/3") {
		t.Error("the watch has shown a pod: want no limit")
	}
}

func TestPodsThatAreNotCreated(t *testing.T) {
	l, clock, admitted := limited()
	made := fill(admitted, "pod", 1)
	asked := 0
	for age := unseenTimeout; age > 0; age = l.Missing(made[0]) {
		*clock = clock.Add(age)
		if asked++; asked == 1 && admitted("ns0/more") {
			t.Error("there is a place before it is known that the pod does not exist")
		}
	}
	if asked < 5 || asked > 10 || clock.Sub(noon) < createTimeout {
		t.Errorf("asked %d times within %v", asked, clock.Sub(noon))
	}
	for range 100 { // somebody tries again and again to create a pod for which there is no quota
		if !admitted("ns0/more") {
			t.Fatal("there is no place")
		}
		l.Missing("ns0/more")
	}
	l.Unanswered(made[1])
	if *clock = clock.Add(time.Hour); admitted("ns0/another") {
		t.Error("nobody knows whether a pod is gated, and gates are made")
	}
	l.Missing(made[1])
	if !admitted("ns0/another") {
		t.Error("it does not exist, and no gates are made")
	}
}

func TestLateGates(t *testing.T) {
	l, clock, admitted := limited()
	made := fill(admitted, "pod", 1)
	for _, key := range made {
		l.Seen(gatedPod(key))
		l.Late(gatedPod(key))
		l.Lifted(gatedPod(key), false)
	}
	if admitted("ns0/pod") || !admitted("ns1/pod") {
		t.Error("gates are made where they are lifted late, and nowhere else")
	}
	*clock = clock.Add(firstPause)
	if !admitted("ns0/pod") {
		t.Error("five pods that were late together make one pause")
	}
	if admitted("ns0/second") {
		t.Error("after a pause two gates are made at the same time")
	}
	l.Late(gatedPod("ns0/pod"))
	l.Late(gatedPod("ns1/pod"))
	if admitted("ns2/pod") {
		t.Error("several namespaces are late, and gates are made in others")
	}
	l.Seen(gatedPod("ns1/pod"))
	l.Lifted(gatedPod("ns1/pod"), true)
	if !admitted("ns2/pod") || !admitted("ns1/pod") || admitted("ns0/another") {
		t.Error("one is lifted in time")
	}
}

// Where no gate can be made, a pod that exists without one shows whether it could be lifted.
func TestIsProbe(t *testing.T) {
	l, _, _ := limited()
	l.chooseProbe("db/0", l.now())
	if l.TakeProbe(gatedPod("db/0")) {
		t.Error("a pod with a gate is probed")
	}
	for story, c := range map[string]struct {
		pod  *podView
		want bool
	}{
		"the pod":             {ungatedPod("db/0"), true},
		"another":             {ungatedPod("db/1"), false},
		"one that has a gate": {gatedPod("db/0"), false},
	} {
		if got := l.IsProbe(c.pod); got != c.want {
			t.Errorf("%s: %t", story, got)
		}
	}
}
