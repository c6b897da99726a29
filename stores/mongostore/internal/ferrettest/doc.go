// Package ferrettest runs the tests of mongostore that need a server. It is a
// module of its own, because the server it brings along, FerretDB, has many
// times the dependencies of the adapter, which must not require them.
package ferrettest
