// Package storelab holds the tests that put the whole library on each of the
// ready stores, on real servers: what clients see while a server hangs, dies or
// loses its connections, and how fast the stores are. It is a module of its
// own, because it needs every driver and a plotting library, which no gateway
// should have to require.
//
// What it has measured is in docs/STORES.md, with the command that measures it
// again.
package storelab
