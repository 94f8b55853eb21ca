// Package handovertest restarts routers in order, one after the other, under load, and
// asks clients what they saw of it.
//
// It is a test: three routers and two edges in one process, on a real NATS, etcd and
// PostgreSQL; publishers that go to whatever router serves and repeat with a key what
// was refused; clients of the Go SDK, some of which lose their connections all the time
// and come back with their positions. -rounds restarts all routers more than once.
package handovertest
