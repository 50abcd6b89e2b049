// Package cmdline is what the command lines of the programs have in common: how
// arguments are counted, what is said about a name that is mistyped, that a help or a
// completion that does not exist is an error, what a build is, and where the value of
// a flag comes from that is not on the command line. It knows no command by name.
package cmdline
