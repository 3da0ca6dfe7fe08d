package scenarios

import "github.com/leasehold-cni/leasehold/test/e2e/machine"

var listServices = machine.Request{List: true}
