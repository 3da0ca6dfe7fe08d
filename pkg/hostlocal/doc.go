// Package hostlocal reads and writes address files, which are those of upstream's host-local
// plugin. leasehold writes them for its leases, so that host-local can serve the next call, and a
// lost store can be rebuilt (docs/design.md, "Address files").
//
// host-local has one directory for each pool, with a lock file and one file for each address in
// use, which contains the container id and the interface. leasehold adds two things:
//
//   - The file of a held address contains a Hold: the pod that the address is held for, and until
//     when. Its first word is one that no container id can be.
//   - The mark is the file .leasehold. It shows that leasehold has imported the directory, and
//     whether it has written the files of all leases.
package hostlocal
