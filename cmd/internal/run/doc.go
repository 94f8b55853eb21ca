// Package run has what the mains share and no node knows: signals, exit codes, logs,
// the order of starting and stopping, the ops listener, and connections to the
// bus and to routers.
//
// Main calls a command and turns its error into one line and an exit code. A Group
// runs the parts of a node: started in the order in which they were added, stopped
// in the reverse, each waited for; the first to fail stops all.
//
// Goroutines: one for each part of a Group, one for signals; Run and the stop
// function wait for them.
//
// Left out on purpose: which parts a node has (packages edgenode and routernode).
package run
