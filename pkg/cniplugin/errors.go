package cniplugin

import (
	"errors"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The values of CNI_COMMAND.
const (
	verbAdd    = "ADD"
	verbDel    = "DEL"
	verbCheck  = "CHECK"
	verbGC     = "GC"
	verbStatus = "STATUS"
)

// The errors that this package finds itself. Each message of such an error begins with its text.
var (
	errEnvironment = errors.New("invalid environment")
	errJSON        = errors.New("invalid JSON")
	errConfig      = errors.New("invalid network configuration")
	errAnnotation  = errors.New("invalid pod annotation")
	errPrint       = errors.New("printing the result failed")
	errPanic       = errors.New("internal error")
)

// errFamilies is the end of host-local's message for more range sets than an old CNI version can
// return addresses of. The tests of containernetworking/plugins want that message and nothing else.
var errFamilies = errors.New("does not support more than 1 address per family")

// codeNotHolder is the error code of CHECK if the container does not have its addresses. The CNI
// specification reserves the codes from 100 on for plugins.
const codeNotHolder uint = 100

// translation maps an error to its CNI code (docs/reference.md, "CNI error codes") and to advice,
// which becomes the details of the CNI error.
type translation struct {
	of     error
	code   uint
	advice string
}

// translations are searched in this order. The first translation whose error is in the chain is
// used.
var translations = []translation{
	{errEnvironment, types.ErrInvalidEnvironmentVariables,
		"the container runtime sets CNI_ARGS and the other variables"},
	{errJSON, types.ErrDecodingFailure, "the network configuration on stdin must be one JSON object"},
	{errConfig, types.ErrInvalidNetworkConfig, "correct the network configuration, usually in /etc/cni/net.d"},
	{errAnnotation, types.ErrInvalidNetworkConfig, "correct the annotation; the pod cannot start until then"},
	{errPrint, types.ErrIOFailure, "the caller has closed stdout; addresses that this call assigned are released"},
	{ipam.ErrRequest, types.ErrInvalidNetworkConfig, "request at most one usable address of each range set"},
	{ipam.ErrNetns, types.ErrInvalidEnvironmentVariables, "the sandbox has ended; nothing was assigned"},
	{ipam.ErrCheckFailed, codeNotHolder, "recreate the sandbox"},
	{ipam.ErrAddressInUse, types.ErrTryAgainLater, "the pod gets its address as soon as its old sandbox has ended"},
	{ipam.ErrUnavailable, types.ErrTryAgainLater, "request another address, or release this one with leasectl"},
	{ipam.ErrExhausted, types.ErrTryAgainLater,
		"leasectl doctor on the node says who has the addresses, and what frees them"},
	{operation.ErrNoEvidence, types.ErrTryAgainLater,
		"leasectl recover --dry-run shows which addresses are known to be in use"},
	{operation.ErrOtherNode, types.ErrTryAgainLater,
		"give each node a dataDir of its own, or remove the file .leasehold there if no other node uses it"},
	{importer.ErrUnreadable, types.ErrTryAgainLater,
		"run the plugin where it sees the host's /proc and host-local's directory"},
	{store.ErrBusy, types.ErrTryAgainLater, "nothing was changed; the call can be repeated"},
	{store.ErrNewer, types.ErrTryAgainLater,
		"install the newer version again, or move the state directory away, as docs/upgrade.md says"},
	{store.ErrLost, types.ErrTryAgainLater,
		"no address is assigned until it is known which are in use; run leasectl check"},
	{store.ErrDamaged, types.ErrTryAgainLater, "leasectl check names the record"},
	{store.ErrIO, types.ErrIOFailure, "check whether the disk is full or read-only"},
	{errPanic, types.ErrTryAgainLater, "this is a bug of leasehold; the stack is on stderr"},
}

// fallback is the translation of all other errors. Repeating the call is always safe.
var fallback = translation{code: types.ErrTryAgainLater, advice: "the call can be repeated"}

// coded translates an error of a verb to the error that the runtime gets. The code is never 3,
// because after that code a runtime need not send a DEL, and never 999, the code that libcni uses
// for errors without a code.
func coded(verb string, err error) *types.Error {
	t := fallback
	if i := slices.IndexFunc(translations, func(t translation) bool { return errors.Is(err, t.of) }); i >= 0 {
		t = translations[i]
	}
	if errors.Is(err, errFamilies) {
		t = translation{code: types.ErrInvalidNetworkConfig}
	}
	// errors.Join separates errors by newlines.
	msg := strings.ReplaceAll(err.Error(), "\n", "; ")
	// STATUS reports every error with this code.
	if verb == verbStatus {
		t.code = types.ErrPluginNotAvailable
	}
	if verb == verbDel {
		msg = notSuccess.Replace(msg)
	}
	return types.NewError(t.code, msg, t.advice)
}

// notSuccess replaces the phrases that make containerd treat a failed DEL as successful. containerd
// would not retry such a DEL (docs/facts.md, "Two phrases in a DEL error make it a success").
var notSuccess = strings.NewReplacer(
	"no such file or directory", "is missing",
	"not found", "is missing",
)
