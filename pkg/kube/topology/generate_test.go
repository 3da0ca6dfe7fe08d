package topology

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// asking is db with the manual's annotations, and more: keys and values in turn.
func asking(more ...string) *Workload {
	w := db()
	w.Annotations = map[string]string{pps.AnnotationGenerate: "true", pps.AnnotationPreferredTopology: hostname}
	for i := 0; i < len(more); i += 2 {
		w.Annotations[more[i]] = more[i+1]
	}
	return w
}

// generatedObject is what was made for it.
func generatedObject(t *testing.T, w *Workload) *pps.PersistentPodState {
	t.Helper()
	o, err := generated(w)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestGenerate(t *testing.T) {
	action := Generate(db().Target, asking(pps.AnnotationRequiredTopology, zone+", rack ,"+zone, pps.AnnotationPodAnnotations, "a,b"), nil, nil)
	if action.Create == nil || action.Problem != "" {
		t.Fatalf("%+v", action)
	}
	required := pps.Term(zone, "rack")
	want := pps.PersistentPodStateSpec{
		TargetRef:                   pps.TargetReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db"},
		RequiredPersistentTopology:  &required,
		PreferredPersistentTopology: []pps.PreferredTopologyTerm{{Weight: 100, Preference: pps.Term(hostname)}},
		PersistentPodAnnotations:    []pps.PersistentPodAnnotation{{Key: "a"}, {Key: "b"}},
	}
	if diff := cmp.Diff(want, action.Create.Spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if owner := metav1.GetControllerOf(action.Create); owner == nil || owner.UID != "set-1" || owner.Kind != "StatefulSet" {
		t.Errorf("its owner is %v", owner)
	}
}

func TestGeneratedObjectsFollowTheirWorkload(t *testing.T) {
	target := db().Target
	current := generatedObject(t, asking())
	change := func(c func(*pps.PersistentPodState)) *pps.PersistentPodState { o := current.DeepCopy(); c(o); return o }
	byHand := change(func(o *pps.PersistentPodState) { o.Labels, o.OwnerReferences = nil, nil })
	ofKruise := change(func(o *pps.PersistentPodState) { o.Labels = nil })
	orphaned := change(func(o *pps.PersistentPodState) { o.OwnerReferences = nil })
	earlier := change(func(o *pps.PersistentPodState) { o.OwnerReferences[0].UID = "set-0" })
	leaving := change(func(o *pps.PersistentPodState) { o.DeletionTimestamp = &metav1.Time{Time: began} })
	other := change(func(o *pps.PersistentPodState) {
		o.Spec.TargetRef.APIVersion, o.OwnerReferences = "apps.kruise.io/v1beta1", nil
	})
	deleted := asking()
	deleted.Leaving = true
	tests := []struct {
		story    string
		workload *Workload
		object   *pps.PersistentPodState
		others   []string
		want     string
	}{
		{"nothing asked, nothing there", db(), nil, nil, "nothing"},
		{"no workload, nothing there", nil, nil, nil, "nothing"},
		{"asked", asking(), nil, nil, "create"},
		{"as it should be", asking(), current, nil, "nothing"},
		{"made by Kruise", asking(), ofKruise, nil, "update"},
		{"another required label", asking(pps.AnnotationRequiredTopology, zone), current, nil, "update"},
		{"P12: other annotations of pods", asking(pps.AnnotationPodAnnotations, "a"), current, nil, "update"},
		{"asked no longer", db(), current, nil, "delete"},
		{"P11: not asked, and not labelled, but controlled", db(), ofKruise, nil, "nothing"},
		{"P11: the workload is gone, what it controlled is the garbage collection's", nil, ofKruise, nil, "nothing"},
		{"the answer is not true", asking(pps.AnnotationGenerate, "True"), current, nil, "delete"},
		{"the workload leaves", deleted, current, nil, "delete"},
		{"the workload is gone", nil, current, nil, "delete"},
		{"the workload is gone and left an orphan", nil, orphaned, nil, "delete"},
		{"the workload is back", asking(), orphaned, nil, "update"},
		{"P2: another workload of that name", asking(), earlier, nil, "delete"},
		{"it is about to go", asking(), leaving, nil, "nothing"},
		{"P11: a person's, asked", asking(), byHand, nil, "nothing"},
		{"P11: a person's, not asked", db(), byHand, nil, "nothing"},
		{"P11: a person's, the workload is gone", nil, byHand, nil, "nothing"},
		{"P11: a person's of another name", asking(), nil, []string{"mine"}, "problem"},
		{"one for another kind", asking(), other, nil, "problem"},
		{"one for another kind, not asked", nil, other, nil, "nothing"},
		{"no label is named", asking(pps.AnnotationPreferredTopology, " , "), nil, nil, "problem"},
		{"what is named is no label", asking(pps.AnnotationPreferredTopology, hostname+"[,other node labels]"), nil, nil, "problem"},
		{"no label is named any more", asking(pps.AnnotationPreferredTopology, ""), current, nil, "problem"},
	}
	for _, tt := range tests {
		a := Generate(target, tt.workload, tt.object, tt.others)
		var got []string
		for word, yes := range map[string]bool{"create": a.Create != nil, "update": a.Update != nil, "delete": a.Delete != nil, "problem": a.Problem != ""} {
			if yes {
				got = append(got, word)
			}
		}
		if len(got) == 0 {
			got = []string{"nothing"}
		}
		if strings.Join(got, " and ") != tt.want {
			t.Errorf("%s: %s %s, want %s", tt.story, got, a.Problem, tt.want)
		}
		if a.Update != nil {
			if second := Generate(target, tt.workload, a.Update, nil); second != (Action{}) {
				t.Errorf("%s: and then %+v", tt.story, second)
			}
		}
	}
}

func TestGenerateKeepsWhatOthersWriteOnItsObject(t *testing.T) {
	o := generatedObject(t, asking())
	o.Spec.PersistentPodStateRetentionPolicy = pps.WhenDeleted
	o.Labels["mine"] = "yes"
	if a := Generate(db().Target, asking(), o, nil); a != (Action{}) {
		t.Errorf("%+v", a)
	}
	a := Generate(db().Target, asking(pps.AnnotationRequiredTopology, zone), o, nil)
	if a.Update == nil || a.Update.Spec.PersistentPodStateRetentionPolicy != pps.WhenDeleted || a.Update.Labels["mine"] != "yes" {
		t.Errorf("%+v", a.Update)
	}
}

func TestValidate(t *testing.T) {
	kinds, err := ParseKinds("example.com/v1/Database")
	if err != nil {
		t.Fatal(err)
	}
	kind := func(apiVersion, kind string) func(*pps.PersistentPodState) {
		return func(o *pps.PersistentPodState) { o.Spec.TargetRef.APIVersion, o.Spec.TargetRef.Kind = apiVersion, kind }
	}
	for _, tt := range []struct {
		story  string
		object *pps.PersistentPodState
		others []string
		want   string // a part of the message
	}{
		{"the built-in kind", state(), nil, ""},
		{"Kruise's, older", state(kind("apps.kruise.io/v1alpha1", "StatefulSet")), nil, ""},
		{"one of the flag", state(kind("example.com/v1", "Database")), nil, ""},
		{"a Deployment", state(kind("apps/v1", "Deployment")), nil,
			"Deployment of apps/v1 is not a kind that is served; want StatefulSet of apps, StatefulSet of apps.kruise.io, Database of example.com (more by the manager's --pps-kinds)"},
		{"a second one", state(), []string{"first"}, "PersistentPodState first has StatefulSet db already; a workload has one"},
		{"the manual's placeholder", state(requires("failure-domain.beta.kubernetes.io/zone[,other node labels]")), nil,
			`"failure-domain.beta.kubernetes.io/zone[,other node labels]" is not the name of a node label`},
		{"an annotation with spaces", state(keeps("a b")), nil, `"a b" is not the name of an annotation`},
		{"an annotation with capitals in its domain", state(keeps("CNI.example.com/IP")), nil, ""},
	} {
		err := validate(tt.object, kinds, tt.others)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.story, err, tt.want)
		}
	}
}

func TestParseKinds(t *testing.T) {
	kinds, err := ParseKinds("example.com/v1/Database,apps/v1/StatefulSet")
	if err != nil || len(kinds) != 3 {
		t.Errorf("%v, %v", kinds, err)
	}
	if got, ok := kinds.find(schema.GroupKind{Group: "example.com", Kind: "Database"}); !ok || got.Version != "v1" {
		t.Errorf("%v, %v", got, ok)
	}
	for _, bad := range []string{"Database", "example.com/Database", "example.com/v1/Database,", "a//B", "a/b/c/d"} {
		if _, err := ParseKinds(bad); err == nil || !strings.Contains(err.Error(), "want group/version/Kind") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzParseKinds proves that what is accepted can stand in the API server's condition without a way out of its quotes.
func FuzzParseKinds(f *testing.F) {
	f.Add("example.com/v1/Database")
	f.Add("a/b/c') || (true")
	f.Fuzz(func(t *testing.T, s string) {
		kinds, err := ParseKinds(s)
		if err != nil {
			return
		}
		for _, k := range kinds {
			if strings.ContainsAny(k.Group+k.Version+k.Kind, `'"\ ()`+"\n") {
				t.Errorf("%q is a kind", k)
			}
		}
	})
}
