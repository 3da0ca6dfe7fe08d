// Package monitoring tests the alerts and the dashboard of daemonset/monitoring with Prometheus
// itself.
package monitoring

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
)

// healthy are the series of a node and a manager of which nothing is to be said. Each sample is a
// minute.
var healthy = map[string]string{
	`leasehold_retention_active{node="node1",network="cbr0",instance="node1"}`:          "1x120",
	`leasehold_pool_addresses{network="cbr0",instance="node1"}`:                         "250x120",
	`leasehold_pool_free_addresses{network="cbr0",instance="node1"}`:                    "25x120",
	`leasehold_addresses{network="cbr0",state="Bound",instance="node1"}`:                "100x120",
	`leasehold_addresses{network="cbr0",state="Held",instance="node1"}`:                 "125x120",
	`up{job="leasehold-system/leasehold-agent",instance="node1"}`:                       "1x120",
	`up{job="another",instance="node1"}`:                                                "0x120",
	`leasehold_node_without_agent{node="node9",reason="AgentMissing",instance="node1"}`: "_x120",
	`leasehold_shared_ranges{node="node9",instance="manager1"}`:                         "_x120",
	`leasehold_survey_complete{instance="node1"}`:                                       "1x120",
	`leasehold_store_readable{instance="node1"}`:                                        "1x120",
	`leasehold_unknown_leases{instance="node1"}`:                                        "0x120",
	`leasehold_queued_deletes{instance="node1"}`:                                        "0 3 0 5 0x116",
	`leasehold_calls_total{verb="ADD",result="ok",instance="node1"}`:                    "0+100x120",
	`leasehold_calls_total{verb="ADD",result="11",instance="node1"}`:                    "0 9 9x118",
	`leasehold_task_failing{task="publish",instance="node1"}`:                           "0 1x10 0x109",
	`leasehold_undecodable_objects{objects="nodes",instance="manager1"}`:                "0x120",
	`leasehold_pin_replacements_total{instance="manager1"}`:                             "0 4 4x118",
	`leasehold_webhook_certificate_expiration_timestamp_seconds{instance="manager1"}`:   "1300000x120",
}

// alerts are the samples that replace those of the healthy state, and the minute of the first
// firing.
var alerts = []struct {
	alert          string
	series, values string
	fires          int // the minute
	summary        string
}{
	{"LeaseholdRetentionOff", `leasehold_retention_active{node="node1",network="cbr0",instance="node1"}`, "1x10 0x100",
		13, "Network cbr0 of node node1 is not served by leasehold."},
	{"LeaseholdPoolLow", `leasehold_pool_free_addresses{network="cbr0",instance="node1"}`, "25x10 24x100", 21,
		"Network cbr0 at node1 has 24 free addresses left."},
	{"LeaseholdHeldShareHigh", `leasehold_addresses{network="cbr0",state="Held",instance="node1"}`, "125x10 126x100",
		41, "More than half of network cbr0 at node1 is held for pods that are away."},
	{"LeaseholdAgentDown", `up{job="leasehold-system/leasehold-agent",instance="node1"}`, "1x10 0x100", 21,
		"The agent at node1 cannot be scraped."},
	{"LeaseholdNodeWithoutAgent", `leasehold_node_without_agent{node="node9",reason="AgentMissing",instance="node1"}`,
		"_x11 1x100", 21, "No agent works on node node9: AgentMissing."},
	{"LeaseholdAddressesShared", `leasehold_shared_ranges{node="node9",instance="manager1"}`, "_x11 1x100", 21,
		"Node node9 has addresses that another node has as well."},
	{"LeaseholdIncompleteSurvey", `leasehold_survey_complete{instance="node1"}`, "1x10 0x100", 21,
		"The agent at node1 does not see the whole host, and releases nothing."},
	{"LeaseholdStoreUnreadable", `leasehold_store_readable{instance="node1"}`, "1x10 0x100", 16,
		"The lease store at node1 cannot be read."},
	{"LeaseholdUnknownLeases", `leasehold_unknown_leases{instance="node1"}`, "0x10 2x100", 71,
		"2 leases at node1 stay bound because nothing proves that their pods are gone."},
	{"LeaseholdQueueGrowing", `leasehold_queued_deletes{instance="node1"}`, "0x10 1+1x100", 26,
		"16 DELs at node1 wait for the store."},
	{"LeaseholdPluginErrors", `leasehold_calls_total{verb="ADD",result="11",instance="node1"}`, "0x10 4+4x100", 18,
		"ADD at node1 fails with code 11."},
	{"LeaseholdTaskFailing", `leasehold_task_failing{task="publish",instance="node1"}`, "0x10 1x100", 26,
		"Something of the task publish at node1 has failed for 15 minutes."},
	{"LeaseholdObjectsIgnored", `leasehold_undecodable_objects{objects="nodes",instance="manager1"}`, "0x10 2x100", 16,
		"2 of the nodes cannot be decoded, and are ignored."},
	{"LeaseholdPodsReplaced", `leasehold_pin_replacements_total{instance="manager1"}`, "0x10 3+3x100", 12,
		"Recreated pods do not fit on the nodes that have their addresses."},
	{"LeaseholdCertificateExpires", `leasehold_webhook_certificate_expiration_timestamp_seconds{instance="manager1"}`,
		"1210200x120", 71, "The certificate of the webhooks at manager1 expires within 14 days."},
}

// TestAlerts lets Prometheus evaluate the rules each minute: in the healthy state none fires, and
// each fires from the expected minute on where its own samples are replaced, and no other one does.
func TestAlerts(t *testing.T) {
	tested := map[string]bool{}
	for _, a := range alerts {
		tested[a.alert] = true
		t.Run(a.alert, func(t *testing.T) {
			state := maps.Clone(healthy)
			if state[a.series] == "" {
				t.Fatalf("the healthy state has no series %s", a.series)
			}
			state[a.series] = a.values
			got := evaluate(t, state)
			want := []firing{{minute: a.fires, alert: a.alert, summary: a.summary}}
			if !slices.Equal(got, want) {
				t.Errorf("first firing: %+v\nwant %+v", got, want)
			}
		})
	}
	for _, rule := range load(t, promqltest.LoadedStorage(t, "")).AlertingRules() {
		if !tested[rule.Name()] {
			t.Errorf("no test for the alert %s", rule.Name())
		}
		for _, key := range []string{"summary", "description", "runbook_url"} {
			if rule.Annotations().Get(key) == "" {
				t.Errorf("the alert %s has no %s", rule.Name(), key)
			}
		}
	}
}

func TestHealthyClusterHasNoAlert(t *testing.T) {
	if got := evaluate(t, healthy); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

type firing struct {
	minute         int
	alert, summary string
}

// evaluate returns the first firing of each alert within two hours.
func evaluate(t *testing.T, state map[string]string) (all []firing) {
	t.Helper()
	script := "load 1m\n"
	for series, values := range state {
		script += "\t" + series + " " + values + "\n"
	}
	group := load(t, promqltest.LoadedStorage(t, script))
	seen := map[string]bool{}
	for minute := range 120 {
		group.Eval(t.Context(), time.Unix(int64(minute)*60, 0))
		for _, rule := range group.AlertingRules() {
			if rule.Health() != rules.HealthGood {
				t.Fatalf("%s: %v", rule.Name(), rule.LastError())
			}
			for _, active := range rule.ActiveAlerts() {
				if active.State == rules.StateFiring && !seen[rule.Name()] {
					seen[rule.Name()] = true
					all = append(all, firing{minute, rule.Name(), active.Annotations.Get("summary")})
				}
			}
		}
	}
	return all
}

// load reads the rules as Prometheus does.
func load(t *testing.T, samples *teststorage.TestStorage) *rules.Group {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		NameValidationScheme: model.LegacyValidation,
		ExternalURL:          &url.URL{},
		QueryFunc:            rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 0, 100_000), samples),
		Appendable:           samples,
		Queryable:            samples,
		NotifyFunc:           func(context.Context, string, ...*rules.Alert) {},
		Logger:               promslog.NewNopLogger(),
	})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false,
		"../../daemonset/monitoring/alerts.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, group := range groups {
		return group
	}
	t.Fatal(fmt.Errorf("alerts.yaml has no group"))
	return nil
}
