// Parts of the benchmarks whose own cost has to be small, or that are not ours:
//
//	go load                      loads a server over HTTP as its standard input says (load.go)
//	go bridge ADDRESS BOOTSTRAP  serves Apache Kafka over HTTP (bridge.go)
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "load":
		err = load(os.Stdin, os.Stdout)
	case len(os.Args) == 4 && os.Args[1] == "bridge":
		err = bridge(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("usage: load, or bridge ADDRESS BOOTSTRAP")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
