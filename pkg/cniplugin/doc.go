// Package cniplugin implements the CNI protocol: it parses stdin and the environment into an
// ipam.Request, and prints results and errors as CNI's JSON. No other package sees the network
// configuration or CNI_ARGS, and this one does not access leases except through Service.
//
//	stdin, CNI_ARGS -> config, args -> ipam.Request -> Service -> ipam.Result -> stdout
//	                                                          \-> error -> coded -> stdout
//
// The configuration is host-local's, with leasehold's policies as additional fields of the ipam
// section. It is decoded level by level, so that an error can name the field:
// "ipam.ranges[1][0].rangeStart: ...". Unknown fields are ignored.
//
// Each verb reads only the fields that it needs, because the configuration of one verb may be
// incomplete or another one than at ADD (docs/facts.md, "The CNI specification", "DEL uses the
// configuration that is on disk now", "flannel's DEL reads only its scratch file"): DEL accepts any
// configuration and uses what is valid of it, GC reads the name and dataDir, STATUS does not need
// ranges that a runtime passes with an ADD, and CHECK ignores the annotation.
package cniplugin
