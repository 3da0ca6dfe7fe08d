package lab

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/must"
)

// Rand returns a random number generator. The seed is logged, and can be set with SEED.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must.Succeed(t, err, "SEED")
	}
	t.Logf("SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
