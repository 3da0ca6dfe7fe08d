// Package cniplugin is the border to the container runtime: what it sends on
// stdin and in the environment becomes an ipam.Request, and what the use cases
// answer becomes CNI's JSON and error codes. Nothing behind it sees JSON or
// CNI_ARGS, nothing in it knows the store.
//
//	stdin, CNI_ARGS -> config, args -> ipam.Request -> Service -> ipam.Result -> stdout
//	                                                          \-> error -> coded -> stdout
//
// The configuration is host-local's own, with leasehold's policies beside it in
// the ipam section. It is read level by level, so that an error can name the
// place: "ipam.ranges[1][0].rangeStart: ...". Unknown fields are ignored.
//
// Each verb reads only what it needs, for each meets other configurations
// (FACTS 1, 2.12, 6.4): DEL refuses none and takes what it can read of it, GC
// reads the name and dataDir, STATUS no ranges that a runtime would pass with an
// ADD, CHECK no annotation.
package cniplugin
