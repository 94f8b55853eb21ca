// Package etcd keeps member records in etcd: presence.Registry over clientv3.
//
// Records lie under <prefix>/members/<role>/<id>, each under the lease of its
// member, as protobuf JSON so that `etcdctl get --prefix` can be read. A Registry
// is used by one presence.Cluster, which calls Watch and Register from goroutines
// of its own; Watch has one goroutine more, which it waits for.
//
// Every call has a deadline of a third of the TTL (of three seconds in Watch),
// and every failed one is tried again, for ever: etcd may be away for as long as
// it likes. An etcd that comes back gives every lease its whole life once more, so
// a member that reconnects within the TTL loses nothing; clients of NewClient
// reconnect within three seconds.
//
// Limits: one record is a few hundred bytes, a listing all of them. Each member
// makes one renewal and one small read each third of its TTL, and one read each
// five seconds for its watch.
//
// Left out on purpose: fencing (a lease does not exclude: the store does), load
// figures (the bus carries them), running an etcd (package etcdserver).
package etcd
