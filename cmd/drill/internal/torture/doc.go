// Package torture runs whole clusters under random faults and holds what happened
// against what Spillway promises (package ledger).
//
// It is a test: `go test ./cmd/drill/internal/torture` runs a few short trials, with every kind
// of fault at least once over them, and one whose parts are broken on purpose, in
// which each break has to be found. CONTRIBUTING.md says how to run longer ones:
// -long and -minutes give more and longer faults, -seed repeats a mixture.
//
// A trial is a cluster of processes, each of them this test binary (so that routers and
// edges run with the race detector if the test does), PostgreSQL or SQLite, and a
// proxy between each node and NATS (package busproxy). Publishers repeat what was not
// answered, with keys that are their own or shared, one by one and in batches, one of
// them over HTTP; readers
// read history by every router; subscribers are clients of the Go SDK and bare
// WebSockets, which note what is on the wire. All note in one recorder, with the
// times of one clock. In the end everything is mended, subscribers get time to catch
// up, and the ledger is checked.
//
// Channels by namespace: kept (everything stays), brief (retention empties it between
// publishes), split (a second router that the membership does not know writes to it
// too, from its first event on), loose (no store).
//
// A seed gives the same faults in the same order, not the same run: the machine decides
// about moments. A failure prints the seed, the faults with their times, and the notes
// around each breach.
package torture
