// Backups of streams with jsm.go, which is what the command `nats` makes them with.
package main

import (
	"context"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/nats.go"
)

func managerAt(url string) *jsm.Manager {
	nc, err := nats.Connect(url)
	check(err)
	found, err := jsm.New(nc, jsm.WithTimeout(30*time.Second))
	check(err)
	return found
}

func backup(url, stream, folder string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := managerAt(url).LoadStream(stream)
	check(err)
	_, err = found.SnapshotToDirectory(ctx, folder, jsm.SnapshotConsumers(), jsm.SnapshotHealthCheck(), jsm.SnapshotChunkSize(64*1024))
	check(err)
}

func restore(url, stream, folder string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _, err := managerAt(url).RestoreSnapshotFromDirectory(ctx, stream, folder)
	check(err)
}
