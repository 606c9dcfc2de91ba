// Plain NATS and streams, as users of nats.go have them.
package main

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func init() {
	scenarios["go_core"] = goCore
	scenarios["go_streams"] = goStreams
	scenarios["go_publishing"] = goPublishing
}

func goCore(c *client) (any, error) {
	subject := name("core")
	all := got(c.nc.SubscribeSync(subject + ".>"))
	one := got(c.nc.QueueSubscribeSync(subject+".q", "group"))
	two := got(c.nc.QueueSubscribeSync(subject+".q", "group"))
	got(c.nc.Subscribe(subject+".service", func(m *nats.Msg) { must(m.Respond(append([]byte("pong "), m.Data...))) }))
	for range 100 {
		must(c.nc.PublishMsg(&nats.Msg{Subject: subject + ".q", Data: []byte("x"), Header: nats.Header{"A": {"1", "2"}}}))
	}
	answer := got(c.nc.Request(subject+".service", []byte("ping"), patience))
	_, err := c.nc.Request(name("nobody"), nil, patience)
	first := got(all.NextMsg(patience))
	must(c.nc.Flush())
	shares := []int{}
	for _, member := range []*nats.Subscription{one, two} {
		count, _, _ := member.Pending()
		shares = append(shares, count)
	}
	return map[string]any{
		"request":   string(answer.Data),
		"nobody":    errors.Is(err, nats.ErrNoResponders),
		"headers":   first.Header,
		"delivered": shares[0] + shares[1],
		"shared":    shares[0] > 0 && shares[1] > 0,
		"payload":   c.nc.MaxPayload(),
	}, nil
}

func goStreams(c *client) (any, error) {
	stream := name("S")
	subject := name("s")
	config := jetstream.StreamConfig{Name: stream, Subjects: []string{subject + ".>"}, Description: "d"}
	_, missing := c.js.Stream(c.ctx, stream)
	made := got(c.js.CreateStream(c.ctx, config))
	defer c.js.DeleteStream(c.ctx, stream)
	config.Description = "other"
	_, taken := c.js.CreateStream(c.ctx, config)
	config.Replicas = 3
	_, replicas := c.js.UpdateStream(c.ctx, config)
	config.Replicas, config.MaxMsgs = 1, 100
	updated := got(c.js.CreateOrUpdateStream(c.ctx, config))
	for _, tail := range []string{"a", "b", "a", "c"} {
		got(c.js.Publish(c.ctx, subject+"."+tail, []byte(tail)))
	}
	raw := got(made.GetMsg(c.ctx, 2))
	last := got(made.GetLastMsgForSubject(c.ctx, subject+".a"))
	_, none := made.GetMsg(c.ctx, 77)
	must(made.DeleteMsg(c.ctx, 2))
	must(made.SecureDeleteMsg(c.ctx, 4))
	info := got(made.Info(c.ctx, jetstream.WithSubjectFilter(">"), jetstream.WithDeletedDetails(true)))
	subjects := []int{len(info.State.Subjects), int(info.State.Subjects[subject+".a"])}
	must(made.Purge(c.ctx, jetstream.WithPurgeKeep(1)))
	after := got(made.Info(c.ctx)).State
	byName := got(c.js.StreamNameBySubject(c.ctx, subject+".x"))
	names := c.js.StreamNames(c.ctx)
	seen := false
	for one := range names.Name() {
		seen = seen || one == stream
	}
	must(names.Err())
	listed := 0
	lister := c.js.ListStreams(c.ctx, jetstream.WithStreamListSubject(subject+".x"))
	for range lister.Info() {
		listed++
	}
	must(lister.Err())
	must(c.js.DeleteStream(c.ctx, stream))
	return map[string]any{
		"missing": outcome(missing), "taken": outcome(taken), "replicas": outcome(replicas), "none": outcome(none),
		"max": updated.CachedInfo().Config.MaxMsgs, "message": string(raw.Data), "last": last.Sequence,
		"deleted": info.State.Deleted, "subjects": subjects, "kept": after.Msgs, "first": after.FirstSeq,
		"found": byName == stream, "named": seen, "listed": listed, "gone": outcome(c.js.DeleteStream(c.ctx, stream)),
	}, nil
}

func goPublishing(c *client) (any, error) {
	stream, subject := name("S"), name("s")
	made := got(c.js.CreateStream(c.ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{subject}, AllowDirect: true}))
	defer c.js.DeleteStream(c.ctx, stream)
	first := got(c.js.Publish(c.ctx, subject, []byte("1"), jetstream.WithMsgID("a")))
	again := got(c.js.Publish(c.ctx, subject, []byte("1"), jetstream.WithMsgID("a")))
	_, sequence := c.js.Publish(c.ctx, subject, nil, jetstream.WithExpectLastSequence(9))
	_, last := c.js.Publish(c.ctx, subject, nil, jetstream.WithExpectLastMsgID("b"))
	_, other := c.js.Publish(c.ctx, subject, nil, jetstream.WithExpectStream("another"))
	_, nowhere := c.js.Publish(c.ctx, name("nowhere"), nil)
	for number := range 1000 {
		got(c.js.PublishAsync(subject, fmt.Appendf(nil, "%d", number)))
	}
	select {
	case <-c.js.PublishAsyncComplete():
	case <-time.After(patience):
		return nil, errors.New("not all were acknowledged")
	}
	info := got(made.Info(c.ctx))
	direct := got(made.GetMsg(c.ctx, 501))
	return map[string]any{
		"first": first.Sequence, "again": []any{again.Sequence, again.Duplicate}, "sequence": outcome(sequence),
		"last": outcome(last), "other": outcome(other), "nowhere": errors.Is(nowhere, jetstream.ErrNoStreamResponse),
		"messages": info.State.Msgs, "direct": string(direct.Data),
	}, nil
}

func sorted(values []string) []string {
	sort.Strings(values)
	return values
}
