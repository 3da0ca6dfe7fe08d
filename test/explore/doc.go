// Package explore goes through small worlds state by state: a node with two or three pods, a few
// sandboxes and one to three addresses, over the real code of lease, adopt, ipam and store, with
// real files on a tmpfs, host-local's own code beside it, and a simulated kernel and clock. From
// each state that can be reached every possible next event is tried, and what was promised to pods
// is checked after each. A counter-example is the shortest sequence of events that leads to it.
//
// The files, in the order to read them:
//
//	config     what a world consists of, and which events it has
//	kernel     the simulated kernel and clocks
//	disk       everything that is on the node's disk, saved and restored
//	events     what may happen
//	kills      the states that a killed call leaves behind
//	promises   what sandboxes were told; the invariants
//	canonical  when two states are the same
//	search     breadth first
//	report     stories and tables
//	worlds     the worlds, and the test that goes through them
//	faults     faults that are planted into the code, and must be found
package explore
