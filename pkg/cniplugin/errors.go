package cniplugin

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The verbs of CNI, as CNI_COMMAND spells them.
const (
	verbAdd    = "ADD"
	verbDel    = "DEL"
	verbCheck  = "CHECK"
	verbGC     = "GC"
	verbStatus = "STATUS"
)

// What can be wrong with a call before any use case runs. Each begins the text
// of its errors.
var (
	errEnvironment = errors.New("invalid environment")
	errJSON        = errors.New("invalid JSON")
	errConfig      = errors.New("invalid network configuration")
	errAnnotation  = errors.New("invalid pod annotation")
	errPrint       = errors.New("the result cannot be printed")
	errPanic       = errors.New("internal fault")
)

// codeNotHolder is plugin-specific (SPEC: 100 and above): CHECK found that the
// container does not have its addresses.
const codeNotHolder uint = 100

// translation is what the runtime is told of an error: its code (NAMES, "CNI
// error codes") and what can be done about it.
type translation struct {
	of     error
	code   uint
	advice string
}

// translations are asked in this order.
var translations = []translation{
	{errEnvironment, types.ErrInvalidEnvironmentVariables, "the container runtime sets CNI_ARGS and the other variables"},
	{errJSON, types.ErrDecodingFailure, "the network configuration on stdin must be one JSON object"},
	{errConfig, types.ErrInvalidNetworkConfig, "correct the network configuration, usually in /etc/cni/net.d"},
	{errAnnotation, types.ErrInvalidNetworkConfig, "correct the annotation; the pod keeps waiting until then"},
	{errPrint, types.ErrIOFailure, "the caller has gone away; what was assigned for it is released again"},
	{ipam.ErrRequest, types.ErrInvalidNetworkConfig, "a requested address must be a usable one of a range set of its own"},
	{ipam.ErrNetns, types.ErrInvalidEnvironmentVariables, "the sandbox has ended; nothing was assigned"},
	{ipam.ErrNotHolder, codeNotHolder, "the sandbox has to be made again"},
	{ipam.ErrHolderAlive, types.ErrTryAgainLater, "the pod gets its address as soon as its former sandbox has ended"},
	{ipam.ErrTaken, types.ErrTryAgainLater, "request another address, or release this one with leasectl"},
	{ipam.ErrExhausted, types.ErrTryAgainLater, "leasectl list shows who has the addresses; leasectl release ends a hold"},
	{ipam.ErrNoWitness, types.ErrTryAgainLater, "leasectl import --dry-run shows what is known of addresses in use"},
	{adopt.ErrBlind, types.ErrTryAgainLater, "the plugin has to see the host's /proc and host-local's directory"},
	{store.ErrBusy, types.ErrTryAgainLater, "nothing was changed; the call can be repeated"},
	{store.ErrNewer, types.ErrTryAgainLater, "install the newer version of the plugin on this node"},
	{store.ErrLost, types.ErrTryAgainLater, "nothing is assigned before it is known which addresses are in use; leasectl check says more"},
	{store.ErrDamaged, types.ErrTryAgainLater, "leasectl check names the record"},
	{store.ErrIO, types.ErrIOFailure, "is the disk full or read-only?"},
	{errPanic, types.ErrTryAgainLater, "this is a bug of leasehold; its stack is on stderr"},
}

// fallback is for errors that nobody foresaw. A repeated call does no harm.
var fallback = translation{code: types.ErrTryAgainLater, advice: "the call can be repeated"}

// coded translates an error of a verb for the runtime. It is the only place
// where CNI's codes are chosen: never 3, which would say that no DEL is needed,
// and never the library's 999.
func coded(verb string, err error) *types.Error {
	t := fallback
	for _, known := range translations {
		if errors.Is(err, known.of) {
			t = known
			break
		}
	}
	msg := strings.ReplaceAll(err.Error(), "\n", "; ") // of errors.Join
	if verb == verbStatus {
		t.code = types.ErrPluginNotAvailable
	}
	if verb == verbDel {
		msg = swallowed.Replace(msg)
	}
	return types.NewError(t.code, msg, t.advice)
}

// swallowed are words that make containerd take a failed DEL for a successful
// one, so that it never comes back (FACTS 2.15).
var swallowed = strings.NewReplacer(
	"no such file or directory", "is missing",
	"not found", "is missing",
)
