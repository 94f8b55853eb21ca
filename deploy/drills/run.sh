#!/bin/sh
# Runs all drills, one after the other, and writes their reports beside this file.
# Usage: deploy/drills/run.sh [flags for all drills]
set -u
here=$(dirname "$0")
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/drill" ./cmd/drill || exit 1
failed=0
drill() {
	name=$1
	shift
	echo "== $name"
	"$bin/drill" "$@" --report "$here/$name.json" || failed=1
}
drill restart restart "$@"
drill restart-one-address restart --one-address "$@"
drill restart-fixed-1s restart --policy fixed-1s "$@"
drill restart-fixed-5s restart --policy fixed-5s "$@"
drill kill kill "$@"
drill kill-one-address kill --one-address "$@"
drill kill-exponential kill --policy exponential "$@"
drill old-clients-1s old-clients --policy fixed-1s "$@"
drill old-clients-5s old-clients --policy fixed-5s "$@"
drill rolling rolling "$@"
drill rolling-one-address rolling --one-address "$@"
drill evacuate evacuate "$@"
drill scale-out scale-out "$@"
drill scale-out-one-address scale-out --one-address "$@"
drill flap flap "$@"
drill proxy-cut proxy-cut "$@"
drill store-away store-away "$@"
for part in nats etcd store routers; do
	drill "outage-$part" outage --part "$part" "$@"
done
drill backfill backfill "$@"
if command -v haproxy >/dev/null; then
	drill restart-haproxy restart --haproxy --clients 12000 "$@"
fi
exit $failed
