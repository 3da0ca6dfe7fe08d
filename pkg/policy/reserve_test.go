package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestParseReserveAs(t *testing.T) {
	for _, row := range readTable(t, "testdata/reservations.txt") {
		got, err := ParseReserveAs(row.value)
		isOK := err == nil && got == row.value
		isError := err != nil && got == "" && strings.Contains(err.Error(), "; want ")
		if row.meaning == "ok" && !isOK || row.meaning != "ok" && !isError {
			t.Errorf("%q: %q, %v; want %s", row.value, got, err, row.meaning)
		}
	}
}

func TestRequestWithAReservationName(t *testing.T) {
	hour := lease.Window(time.Hour)
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		want        Request
		fails       string
	}{
		{"a window and a name", map[string]string{Annotation: "60", ReserveAs: "registry"},
			Request{Known: true, Window: hour, ReserveAs: "registry"}, ""},
		{"a name alone", map[string]string{ReserveAs: "registry"}, Request{Known: true}, ""},
		{"an invalid name alone", map[string]string{ReserveAs: "a/b"}, Request{Known: true}, ""},
		{"a window of 0", map[string]string{Annotation: "0", ReserveAs: "registry"}, Request{Known: true}, ""},
		{"an invalid name", map[string]string{Annotation: "60", ReserveAs: "a/b"}, Request{},
			"annotation leasehold.dev/reserve-as: \"a/b\" is not a reservation name"},
		{"an empty name", map[string]string{Annotation: "60", ReserveAs: ""}, Request{}, "reserve-as"},
	} {
		got, err := RequestFrom(tt.annotations)
		failed := err != nil && tt.fails != "" && strings.Contains(err.Error(), tt.fails)
		if got != tt.want || failed != (tt.fails != "") || !failed && err != nil {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
}
