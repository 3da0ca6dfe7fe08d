package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// traced prints its stack, as the errors of some libraries do.
type traced struct{ error }

func (e traced) Format(s fmt.State, verb rune) {
	fmt.Fprint(s, e.Error())
	if verb == 'v' && s.Flag('+') {
		fmt.Fprint(s, "\nmain.main\n\tmain.go:1")
	}
}

func TestErrorsOfARace(t *testing.T) {
	var out bytes.Buffer
	log := logger(options{logTo: &out}).WithName("cert-rotation").WithValues("a", "b")
	for text, err := range map[string]error{
		"level=INFO": apierrors.NewConflict(corev1.Resource("secrets"), "leasehold-manager",
			errors.New("it was modified")),
		"level=INFO ": traced{errors.New("Cert secret is not well-formed, missing ca.crt")},
		"level=ERROR": traced{errors.New("the disk is full")},
	} {
		out.Reset()
		log.Error(err, "could not refresh")
		got := strings.ReplaceAll(out.String(), `\"`, `"`)
		for _, want := range []string{text, err.Error(), "logger=cert-rotation"} {
			if !strings.Contains(got, want) || strings.Contains(got, "main.go") {
				t.Errorf("%v is logged as %s, want %s", err, got, want)
			}
		}
	}
}
