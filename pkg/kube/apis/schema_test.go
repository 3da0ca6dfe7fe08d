// Package apis tests what the API types have in common.
package apis

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jsonutil "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// kinds are the API types, by the plural in the name of their CRD.
var kinds = map[string]func() any{
	"persistentpodstates": func() any { return &pps.PersistentPodState{} },
	"addressrequests":     func() any { return &ipam.AddressRequest{} },
	"ipreservations":      func() any { return &ipam.IPReservation{} },
	"nodeaddresspools":    func() any { return &ipam.NodeAddressPool{} },
}

// schemas returns the schema of each version of each CRD, by the plural and the version.
func schemas(t *testing.T) map[string]spec.Schema {
	t.Helper()
	files, err := filepath.Glob("../../../daemonset/base/crds/*.yaml")
	must.Succeed(t, err)
	check.Equal(t, len(files), len(kinds), "CRDs")
	all := map[string]spec.Schema{}
	for _, file := range files {
		maps.Copy(all, schemasIn(t, file))
	}
	return all
}

// schemasIn returns the schemas of the CRD in a file.
func schemasIn(t *testing.T, file string) map[string]spec.Schema {
	t.Helper()
	data := must.Read(t, file)
	var crd struct {
		Spec struct {
			Names    struct{ Plural string }
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema spec.Schema }
			}
		}
	}
	must.Succeed(t, yaml.Unmarshal(data, &crd))
	all := map[string]spec.Schema{}
	for _, version := range crd.Spec.Versions {
		all[crd.Spec.Names.Plural+"/"+version.Name] = version.Schema.OpenAPIV3Schema
	}
	return all
}

// leaves calls do with each part of a schema that has no parts, and a function that returns an
// object with a value there and nothing else.
func leaves(s spec.Schema, path string, around func(any) any, do func(path string, leaf spec.Schema,
	around func(any) any)) {
	switch {
	case s.Items != nil:
		leaves(*s.Items.Schema, path+"[]", func(v any) any { return around([]any{v}) }, do)
	case s.AdditionalProperties != nil:
		leaves(*s.AdditionalProperties.Schema, path+"{}", func(v any) any { return around(map[string]any{"k": v}) }, do)
	case len(s.Properties) > 0:
		for name, part := range s.Properties {
			leaves(part, path+"."+name, func(v any) any { return around(map[string]any{name: v}) }, do)
		}
	default:
		do(path, s, around)
	}
}

// values are JSON values, of which those of the wrong type and the times are the ones that a schema
// could accept and Go not decode.
var values = []string{`null`, `true`, `{}`, `[]`, `"x"`, `""`, `0`, `-1`, `1.0`, `1.5`, `1e3`, `1e30`, `-1e30`,
	`2147483648`, `9223372036854775807`, `9223372036854775808`, `18446744073709551616`,
	`"2026-11-29T08:00:00Z"`, `"2026-11-29t08:00:00z"`, `"2026-11-29T08:00:00z"`, `"2026-11-29t08:00:00Z"`,
	`"2026-11-29T08:00:00"`, `"2026-11-29T08:00:00Zx"`, `"2026-11-29 08:00:00Z"`, `"2026-11-29T08:00:00.5Z"`,
	`"2026-11-29T08:00:00x5Z"`, `"2026-11-29T08:00:00+01:00"`, `"2026-11-29T08:00:00+99:99"`,
	`"2026-11-29T08:00:60Z"`, `"2026-11-29T24:00:00Z"`, `"2026-02-30T08:00:00Z"`, `"2026-13-01T08:00:00Z"`,
	`"0000-01-01T00:00:00Z"`, `"10000-01-01T00:00:00Z"`, `"2026-11-29"`, `"2026-11-29T08:00Z"`,
	`"2026-11-29T08:00:00.1234567890123456789Z"`, `"2026-11-29T08:00:00Z\n"`, `"\n2026-11-29T08:00:00Z"`}

// TestAcceptedValuesCanBeDecoded compares the schemas, as the API server applies them, with the Go
// types: one object that Go cannot decode must not be possible, because clients would fail to list.
func TestAcceptedValuesCanBeDecoded(t *testing.T) {
	accepted := 0
	for name, schema := range schemas(t) {
		plural, _, _ := strings.Cut(name, "/")
		leaves(schema, name, func(v any) any { return v }, func(path string, leaf spec.Schema, around func(any) any) {
			validator := validate.NewSchemaValidator(&leaf, nil, "", strfmt.Default)
			for _, text := range values {
				var value any
				if err := jsonutil.Unmarshal([]byte(text), &value); err != nil { // as the API server
					t.Fatal(err)
				}
				if value == nil && !leaf.Nullable || !validator.Validate(value).IsValid() {
					continue
				}
				accepted++
				data, err := json.Marshal(around(value))
				if err == nil {
					err = json.Unmarshal(data, kinds[plural]())
				}
				must.Succeed(t, err, path, text, "is accepted, and cannot be decoded")
			}
		})
	}
	if accepted == 0 {
		t.Error("no value is accepted")
	}
}

// TestAcceptedTimes compares the times that the schemas accept with those that Go encodes.
func TestAcceptedTimes(t *testing.T) {
	all := schemas(t)
	for name, schema := range map[string]spec.Schema{
		"heldUntil":          all["ipreservations/v1alpha1"].Properties["status"].Properties["heldUntil"],
		"lastTransitionTime": part(all["nodeaddresspools/v1alpha1"], "conditions").Properties["lastTransitionTime"],
	} {
		validator := validate.NewSchemaValidator(&schema, nil, "", strfmt.Default)
		for _, year := range []int{0, 1900, 1999, 2000, 2026, 2028, 2100, 9999} {
			for month := range 14 {
				for day := range 33 {
					text := fmt.Sprintf("%04d-%02d-%02dT%02d:%02d:%02dZ", year, month, day, day%24, day, 59)
					_, err := time.Parse(time.RFC3339, text)
					check.Equal(t, validator.Validate(text).IsValid(), err == nil, name, text, "and Go says", err)
				}
			}
		}
	}
}

// part returns the elements of a list in the status of a schema.
func part(s spec.Schema, list string) *spec.Schema {
	return s.Properties["status"].Properties[list].Items.Schema
}

// TestLargeObjectsOfKruise verifies that this project's CRD accepts objects as large as Kruise's
// does, in both versions.
func TestLargeObjectsOfKruise(t *testing.T) {
	own := schemas(t)
	for name, schema := range schemasIn(t, "../../../test/e2e/manifests/kruise-crd.yaml") {
		o := large(schema).(map[string]any)
		o["spec"].(map[string]any)["persistentPodStateRetentionPolicy"] = "WhenDeleted"
		for of, s := range map[string]spec.Schema{"Kruise's": schema, "its own": own[name]} {
			if result := validate.NewSchemaValidator(&s, nil, "", strfmt.Default).Validate(o); !result.IsValid() {
				t.Errorf("%s: %s CRD rejects it: %v", name, of, result.Errors[0])
			}
		}
	}
}

// large returns an object with all parts of a schema, and with long texts and lists.
func large(s spec.Schema) any {
	var list []any
	switch o := map[string]any{}; {
	case s.Type.Contains("integer"):
		return int64(7)
	case s.Type.Contains("string"):
		return strings.Repeat("x", 400)
	case s.Items != nil:
		for range 70 {
			list = append(list, large(*s.Items.Schema))
		}
		return list
	case s.AdditionalProperties != nil:
		for i := range 70 {
			o[fmt.Sprint(i)] = large(*s.AdditionalProperties.Schema)
		}
		return o
	default:
		for name, part := range s.Properties {
			o[name] = large(part)
		}
		return o
	}
}
