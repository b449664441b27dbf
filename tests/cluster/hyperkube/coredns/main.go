// Command coredns is CoreDNS with the plugins that the tests use. Its own list imports the client libraries
// of every cloud. It is no part of the multi-call binary, because it registers flags for the whole process.
package main

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	caddy.AppName = "coredns"
	// The order in which the plugins see a query.
	dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
	coremain.Run()
}
