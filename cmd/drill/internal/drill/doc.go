// Package drill breaks a cluster on purpose and checks what was promised: edges that
// are restarted, killed or emptied, balancers that cut everything, stores that vanish,
// with thousands of clients that watch.
//
// `go run ./cmd/drill` calls Run. It starts a cluster of processes of its own (package
// cluster) or uses a given one, fills it with clients (package loadgen), publishes at a
// steady rate, lets the scenario do its harm, waits until everything has settled, and
// gives one verdict for each promise. What is measured is what clients saw, put beside
// what the cluster says of itself.
//
// Life: Run ends all that it started. Goroutines: one publisher, which Run waits for,
// and those of the packages above.
//
// Time series have buckets of 200 ms. A promise about a rate is checked as a bucket of
// tokens, with what two buckets of a series may be off.
//
// Left out on purpose: browsers, TLS, more than one machine.
package drill
