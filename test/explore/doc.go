// Package explore goes through small worlds state by state: a node with two or three pods, a few
// sandboxes and one to three addresses, over the real code of lease, adopt, ipam and store, with
// real files on a tmpfs, host-local's own code beside it, and a simulated kernel and clock. From
// each state that can be reached every possible next event is tried, and what was promised to pods
// is checked after each. A counter-example is the shortest sequence of events that leads to it.
//
// The invariants, by the names that stories give them:
//
//	I1     no two living sandboxes were given one address
//	I2     an address that is kept for a pod goes to nobody else, and the pod comes back to it
//	I3     no address is lost for good
//	I4     whoever was given an address, and lives, has it
//	I5     a sandbox has an address of each range set, or none
//	I6     a DEL of a sandbox whose DEL was answered before changes nothing
//	order  a file of host-local's that leasehold has written is of a lease, also where a call was killed
//
// The files, in the order to read them:
//
//	config     what a world consists of, and which events it has
//	kernel     the simulated kernel and clocks
//	disk       everything that is on the node's disk, saved and restored
//	events     what may happen
//	kills      the states that a killed call leaves behind
//	enabled    which of it may happen in a state
//	promises   what sandboxes were told; what an answer breaks
//	examine    what a state breaks
//	leaks      whether an address is lost for good
//	canonical  when two states are the same
//	search     breadth first
//	report     stories and tables
//	worlds     the worlds, and the test that goes through them
//	faults     faults that are planted into the code, and must be found
package explore
