// Key-value buckets and object stores.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func init() {
	scenarios["go_key_values"] = goKeyValues
	scenarios["go_watching_keys"] = goWatchingKeys
	scenarios["go_keys_that_expire"] = goKeysThatExpire
	scenarios["go_objects"] = goObjects
}

func goKeyValues(c *client) (any, error) {
	bucket := name("B")
	kv := got(c.js.CreateKeyValue(c.ctx, jetstream.KeyValueConfig{Bucket: bucket, History: 5}))
	defer c.js.DeleteKeyValue(c.ctx, bucket)
	_, absent := kv.Get(c.ctx, "k")
	first := got(kv.Create(c.ctx, "k", []byte("1")))
	_, exists := kv.Create(c.ctx, "k", []byte("2"))
	second := got(kv.Update(c.ctx, "k", []byte("2"), first))
	_, stale := kv.Update(c.ctx, "k", []byte("3"), first)
	value := got(kv.Get(c.ctx, "k"))
	old := got(kv.GetRevision(c.ctx, "k", first))
	history := len(got(kv.History(c.ctx, "k")))
	got(kv.PutString(c.ctx, "other.key", "x"))
	keys := sorted(got(kv.Keys(c.ctx)))
	must(kv.Delete(c.ctx, "k"))
	_, deleted := kv.Get(c.ctx, "k")
	must(kv.Purge(c.ctx, "other.key"))
	_, empty := kv.Keys(c.ctx)
	again := got(kv.Create(c.ctx, "k", []byte("4")))
	status := got(kv.Status(c.ctx))
	names := 0
	for one := range c.js.KeyValueStoreNames(c.ctx).Name() {
		if one == bucket {
			names++
		}
	}
	return map[string]any{
		"absent": errors.Is(absent, jetstream.ErrKeyNotFound), "exists": errors.Is(exists, jetstream.ErrKeyExists),
		"revisions": []uint64{first, second, again}, "stale": outcome(stale), "value": string(value.Value()),
		"old": string(old.Value()), "history": history, "keys": keys,
		"deleted": errors.Is(deleted, jetstream.ErrKeyNotFound), "empty": errors.Is(empty, jetstream.ErrNoKeysFound),
		"values": status.Values(), "named": names,
	}, nil
}

func goWatchingKeys(c *client) (any, error) {
	bucket := name("B")
	kv := got(c.js.CreateKeyValue(c.ctx, jetstream.KeyValueConfig{Bucket: bucket, TTL: time.Hour}))
	defer c.js.DeleteKeyValue(c.ctx, bucket)
	got(kv.PutString(c.ctx, "a.1", "old"))
	watcher := got(kv.WatchAll(c.ctx))
	seen := []string{}
	show := func(entry jetstream.KeyValueEntry) {
		if entry == nil {
			seen = append(seen, "all there")
		} else {
			seen = append(seen, entry.Key()+" "+entry.Operation().String()+" "+string(entry.Value()))
		}
	}
	show(<-watcher.Updates())
	show(<-watcher.Updates())
	got(kv.PutString(c.ctx, "a.2", "new"))
	show(<-watcher.Updates())
	must(kv.Delete(c.ctx, "a.1"))
	show(<-watcher.Updates())
	must(watcher.Stop())
	later := got(kv.Watch(c.ctx, "a.*", jetstream.UpdatesOnly()))
	got(kv.PutString(c.ctx, "b.1", "not watched"))
	got(kv.PutString(c.ctx, "a.3", "watched"))
	show(<-later.Updates())
	must(later.Stop())
	return seen, nil
}

// A watcher sees when the time of a key is over, and the marker in its place; a marker leaves none.
func goKeysThatExpire(c *client) (any, error) {
	bucket := name("B")
	kv := got(c.js.CreateKeyValue(c.ctx, jetstream.KeyValueConfig{Bucket: bucket, History: 3, LimitMarkerTTL: time.Second}))
	defer c.js.DeleteKeyValue(c.ctx, bucket)
	watcher := got(kv.WatchAll(c.ctx))
	seen := []string{}
	show := func() {
		if entry := <-watcher.Updates(); entry == nil {
			seen = append(seen, "all there")
		} else {
			seen = append(seen, fmt.Sprintf("%s %s %s %d", entry.Key(), entry.Operation(), entry.Value(), entry.Revision()))
		}
	}
	show()
	got(kv.Create(c.ctx, "k", []byte("1"), jetstream.KeyTTL(time.Second)))
	show()
	show()
	_, expired := kv.Get(c.ctx, "k")
	got(kv.Create(c.ctx, "k", []byte("2")))
	show()
	must(kv.Purge(c.ctx, "k", jetstream.PurgeTTL(time.Second)))
	show()
	must(watcher.Stop())
	status := got(kv.Status(c.ctx))
	for got(kv.Status(c.ctx)).Values() > 0 {
		time.Sleep(20 * time.Millisecond)
	}
	stream := got(c.js.Stream(c.ctx, "KV_"+bucket)).CachedInfo()
	return map[string]any{"seen": seen, "expired": errors.Is(expired, jetstream.ErrKeyNotFound),
		"marker": status.LimitMarkerTTL().String(), "last": stream.State.LastSeq}, nil
}

func goObjects(c *client) (any, error) {
	bucket := name("O")
	store := got(c.js.CreateObjectStore(c.ctx, jetstream.ObjectStoreConfig{Bucket: bucket}))
	defer c.js.DeleteObjectStore(c.ctx, bucket)
	large := bytes.Repeat([]byte("0123456789"), 40_000)
	info := got(store.PutBytes(c.ctx, "large", large))
	got(store.PutString(c.ctx, "small", "hello"))
	same := bytes.Equal(got(store.GetBytes(c.ctx, "large")), large)
	got(store.PutString(c.ctx, "small", "changed"))
	changed := got(store.GetString(c.ctx, "small"))
	names := []string{}
	for _, one := range got(store.List(c.ctx)) {
		names = append(names, one.Name)
	}
	must(store.Delete(c.ctx, "large"))
	_, gone := store.GetInfo(c.ctx, "large")
	status := got(store.Status(c.ctx))
	return map[string]any{"size": info.Size, "chunks": info.Chunks, "same": same, "changed": changed,
		"names": sorted(names), "gone": errors.Is(gone, jetstream.ErrObjectNotFound), "bucket": status.Bucket() == bucket}, nil
}
