// Package documents checks that the documents of the repository name nothing that is
// not there: no file, command, flag, key, metric, endpoint, identifier or test. It has
// tests only; nothing imports it.
//
// The tests read every *.md file of the tree but the change log, which may name what is
// gone. What they look at are links, code in backticks, and blocks of commands and YAML.
// What exists they take from the sources: names of files, the Makefile's targets, and
// the syntax trees of all Go files (string constants, struct tags, declarations), and the
// keys of configuration files from the packages that declare them.
//
// A word that only looks like one of ours (a balancer's option, a field of somebody
// else's file) is let pass when its first part is none of ours. Fields of the client
// protocol are not checked here: their documents are checked against the .proto files
// where these are.
package documents
