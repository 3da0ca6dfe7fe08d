// Package hostlocal has host-local's files: their format, their lock, and the marks that we leave
// in them and beside them, so that host-local can serve the next call, and a lost store can be
// rebuilt (docs/design.md, "host-local's files are kept in step").
package hostlocal
