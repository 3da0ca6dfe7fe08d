// Package explore is an explicit-state model checker. A model is a node with one to three pods, a
// few sandboxes and one to three addresses, over the real code of lease, importer, ipam and store,
// with real files on a tmpfs, host-local's own code, and a simulated kernel and clock. From each
// state that can be reached every possible next event is tried, and the invariants are checked
// after each. A counter-example is a shortest sequence of events that breaks an invariant.
//
// The invariants, by the names that counter-examples give them:
//
//	I1     no two living sandboxes were given one address
//	I2     an address that is kept for a pod goes to nobody else, and the pod comes back to it
//	I3     no address is lost for good
//	I4     a living sandbox has the address that it was given
//	I5     a sandbox has an address of each range set, or none
//	I6     a DEL of a sandbox whose DEL was answered before changes nothing
//	order  a file of host-local's that leasehold has written is of a lease, also where a call was killed
//
// The files, in the order to read them:
//
//	config     what a model consists of, and which events it has
//	kernel     the simulated kernel and clocks
//	disk       everything that is on the node's disk, saved and restored
//	events     what may happen
//	kills      the states that a killed call leaves behind
//	enabled    which events may happen in a state
//	expectations
//	           what calls returned; which invariant a result breaks
//	names      the same for pods that share a reservation name
//	examine    which invariant a state breaks
//	leaks      whether an address is lost for good
//	canonical  when two states are the same
//	search     the breadth-first search
//	report     counter-examples and tables
//	models     the models, and the test that searches them
//	walk       random walks, which are longer than what the search reaches
package explore
