package cniconf

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// stockList is what kube-flannel writes.
const stockList = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

func TestChanges(t *testing.T) {
	for file, change := range map[string]func(string, []byte) ([]byte, error){
		"with-leasehold.txt": WithLeasehold, "without-leasehold.txt": WithoutLeasehold,
	} {
		for _, c := range cases.Read(t, filepath.Join("testdata", file))[1:] {
			t.Run(file+"/"+c.Name, func(t *testing.T) {
				named := strings.NewReplacer("{@", `{"name":"n","cniVersion":"1.0.0"`)
				kind, text, _ := strings.Cut(named.Replace(c.Given[0]), " ")
				path, want := "10-net."+kind, named.Replace(c.Want[0])
				got, err := change(path, []byte(text))
				if fails, isError := strings.CutPrefix(want, "error: "); isError {
					check.Error(t, err, fails)
					return
				}
				must.Succeed(t, err)
				check.Equal(t, string(got), want)
				again, err := WithLeasehold(path, got)
				if file == "with-leasehold.txt" && (err != nil || string(again) != string(got)) {
					t.Errorf("a second time: %s, %v", again, err)
				}
			})
		}
	}
}
