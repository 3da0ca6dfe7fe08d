// Package cniplugin implements the CNI protocol: bytes to Request, Result to bytes, error to code.
// It parses stdin and the environment into an ipam.Request, calls Service, and prints results and
// errors as CNI's JSON. No other package reads the network configuration that the runtime passes on
// stdin, or CNI_ARGS. This package accesses leases only through Service.
//
//	stdin, CNI_ARGS -> config, args -> ipam.Request -> Service -> ipam.Result -> stdout
//	                                                          \-> error -> coded -> stdout
//
// The configuration has the fields of host-local and, in the ipam section, additional fields for
// leasehold's policies. It is decoded level by level, so that an error can name the field:
// "ipam.ranges[1][0].rangeStart: ...". Unknown fields are ignored.
//
// Each verb reads only the fields that it needs, because a verb may get an incomplete configuration
// or another one than the ADD (docs/facts.md, "The CNI specification", "DEL uses the configuration
// that is on disk now", "flannel's DEL reads only its scratch file"). DEL accepts any configuration
// and uses its valid fields. GC reads only the name, dataDir and the list of attachments. STATUS
// does not need the ranges that a runtime passes with an ADD. CHECK ignores the annotation.
package cniplugin
