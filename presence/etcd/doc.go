// Package etcd keeps records in etcd: Registry implements presence.Registry with the
// records of members under leases, and KeyValue implements control.KeyValue with records
// that have none. Only the mains' packages in cmd make them; they call clientv3.
//
// The record of a member has the key <prefix>/members/<role>/<id>, and is protobuf JSON
// so that `etcdctl get --prefix` can be read. A Registry is used by one
// presence.Cluster, which calls Watch and Register from goroutines of its own. Watch and
// KeyValue.Follow run a follower, which has one goroutine more and waits for it.
//
// Every call has a deadline: a third of the TTL, or three seconds in a follower. Every
// call that failed is tried again, for ever, so etcd may be away for as long as it
// likes. An etcd that comes back gives every lease its whole life once more, so a member
// that reconnects within the TTL loses nothing. Clients of NewClient reconnect within
// three seconds.
//
// Limits: one record is a few hundred bytes, and a listing is all of them. Each member
// makes one renewal and one small read each third of its TTL, and one read each five
// seconds for each of its watches.
//
// Left out on purpose: fencing (a lease does not exclude others, the store does), load
// figures (the bus carries them), and running an etcd (package etcdserver).
package etcd
