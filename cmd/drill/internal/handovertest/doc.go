// Package handovertest lets routers come and go under load, and asks who publishes and
// who listens what they saw of it.
//
// It is tests, on a real NATS, etcd and PostgreSQL. One has routers and edges in its own
// process: a router joins, then all are restarted in order, while clients of the Go SDK
// listen, some of which lose their connections all the time and come back with their
// positions; -rounds restarts all routers more than once. The others have a process for
// each router, so that it can be killed, or stopped by a signal: -channels is how many are
// handed, -still how long a router stands still.
package handovertest
