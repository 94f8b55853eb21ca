// Package config reads what an operator wrote: gateway.yaml and router.yaml, the
// environment and flags, strictly.
//
// The mains call LoadGateway and LoadRouter once, before anything runs; whoever
// builds a node turns the result into gateway.Config or router.Config. It
// calls koanf. No goroutine, no state.
//
// Order: defaults < file < environment (SPILLWAY_LIMITS__MAX_CONNS is
// limits.max_conns; lists by commas) < flags. A key that nobody knows is an error
// which names the key and where it stands; so is a variable that begins with
// SPILLWAY_, except those of the command line (SPILLWAY_SERVER, SPILLWAY_EDGE,
// SPILLWAY_API_KEY_FILE, SPILLWAY_CA_FILE) and those that Kubernetes makes for a
// service called spillway. All problems are reported at once.
//
// Secrets stand in files that a key names (…_file), or, for connection strings, in
// the file or the environment; never in flags.
//
// Some keys are accepted and not acted on yet: see GatewayFile and RouterFile. The hot
// ones of an edge can be laid over its file again and again: see WithSettings.
//
// Left out on purpose: when to reload, and who hears of it (cmd/internal/edgenode).
package config
