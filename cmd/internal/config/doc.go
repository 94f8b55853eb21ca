// Package config reads what an operator wrote: a YAML file, the environment and flags,
// strictly, over the defaults of a struct that declares its settings (package schema). It
// knows no key.
//
// Packages gatewayfile and routerfile have the structs, and call Load once before anything
// runs; Overlay lays the settings of the cluster over an edge's again and again. It calls
// koanf. No goroutine, no state.
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
// Left out on purpose: keys, defaults and rules, which stand where they are used; when to
// reload, and who hears of it (cmd/internal/edgenode).
package config
