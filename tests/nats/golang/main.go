// Does with the Go clients of NATS, nats.go and jsm.go, what their users do.
// Usage: golang schemas                 prints jsm.go's schemas of JetStream's API by their types
//
//		golang run URL [SCENARIO...]   runs scenarios at the same time; a line of JSON for each: {"name", "shows" or "error"}
//		golang backup URL STREAM FOLDER       writes the stream and its consumers to a folder, as `nats backup stream` does
//		golang restore URL STREAM FOLDER      makes the stream of a folder; an error is printed, with status 1
//	       golang load KIND URL SECONDS BYTES   publishes, consumes or fans out for bench/nats.py; a line of JSON
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/jsm.go/api"
)

func main() {
	switch os.Args[1] {
	case "schemas":
		schemas()
	case "run":
		run(os.Args[2], os.Args[3:])
	case "backup":
		backup(os.Args[2], os.Args[3], os.Args[4])
	case "restore":
		restore(os.Args[2], os.Args[3], os.Args[4])
	case "load":
		load(os.Args[2], os.Args[3], number(os.Args[4]), int(number(os.Args[5])))
	}
}

func schemas() {
	found := map[string]json.RawMessage{}
	types, err := api.SchemaSearch("^io[.]nats[.]jetstream[.]api[.]v1[.]")
	check(err)
	for _, one := range types {
		text, err := api.Schema(one)
		check(err)
		found[strings.TrimPrefix(one, "io.nats.jetstream.api.v1.")] = text
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
