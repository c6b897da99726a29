// Package interop lets real MCP clients work with three replicas behind a load
// balancer that is strictly round robin, and checks what they see, step by step:
// the Go SDK's client, mcp-go, and the TypeScript SDK, versions 1 and 2.
//
// A World is the replicas, the balancer, and a Tap in front of it, which knows
// where each request went and can break a stream. A Client is one of the clients
// behind one interface, so that there is a single table of steps. The same steps
// on bare replicas of the SDK show what would not work without sessionshare.
package interop
