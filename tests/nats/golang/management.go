// jsm.go, on which the command nats is built.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"
)

func init() {
	scenarios["jsm_streams"] = jsmStreams
	scenarios["jsm_consumers"] = jsmConsumers
}

// manager works on a connection of its own: jsm.go pulls with requests of the old style only.
func manager(c *client) *jsm.Manager {
	nc := got(nats.Connect(c.nc.ConnectedUrl(), nats.UseOldRequestStyle()))
	context.AfterFunc(c.ctx, nc.Close)
	return got(jsm.New(nc, jsm.WithTimeout(patience)))
}

func jsmStreams(c *client) (any, error) {
	m := manager(c)
	stream, subject := name("S"), name("s")
	account := got(m.JetStreamAccountInfo())
	before := got(m.IsKnownStream(stream))
	made := got(m.NewStream(stream, jsm.Subjects(subject+".>"), jsm.FileStorage(), jsm.MaxAge(time.Hour)))
	defer m.DeleteStream(stream)
	_, replicas := m.NewStream(name("S"), jsm.Subjects(name("s")), jsm.Replicas(3))
	for number := range 10 {
		got(c.nc.Request(fmt.Sprintf("%s.%d", subject, number%3), fmt.Appendf(nil, "m%d", number), patience))
	}
	message := got(made.ReadMessage(3))
	must(made.DeleteMessage(3))
	_, deleted := made.ReadMessage(3)
	last := got(made.ReadLastMessageForSubject(subject + ".1"))
	subjects := got(made.ContainedSubjects())
	gaps := [][2]uint64{}
	must(made.DetectGaps(c.ctx, func(uint64, uint64) {}, func(first, last uint64) { gaps = append(gaps, [2]uint64{first, last}) }))
	pager := got(made.PageContents(jsm.PagerSize(4), jsm.PagerTimeout(500*time.Millisecond)))
	paged := 0
	for {
		_, ended, err := pager.NextMsg(c.ctx)
		if err != nil || ended && paged >= 9 {
			break
		}
		paged++
	}
	must(pager.Close())
	must(made.UpdateConfiguration(made.Configuration(), jsm.MaxMessages(5)))
	state := got(made.State())
	must(made.Purge(&api.JSApiStreamPurgeRequest{Subject: subject + ".1"}))
	purged := got(made.State())
	loaded := got(m.LoadStream(stream))
	names := got(m.StreamNames(&jsm.StreamNamesFilter{Subject: subject + ".1"}))
	each := 0
	_, _, err := m.EachStream(&jsm.StreamNamesFilter{Subject: subject + ".1"}, func(*jsm.Stream) { each++ })
	must(err)
	must(loaded.Delete())
	_, gone := m.LoadStream(stream)
	return map[string]any{
		"enabled": m.IsJetStreamEnabled(), "counted": account.Streams >= 0, "before": before, "replicas": outcome(replicas),
		"message": string(message.Data), "deleted": outcome(deleted), "last": string(last.Data), "subjects": len(subjects),
		"gaps": gaps, "paged": paged, "limited": state.Msgs, "purged": purged.Msgs, "age": int(loaded.MaxAge().Hours()),
		"names": len(names), "each": each, "gone": outcome(gone),
	}, nil
}

func jsmConsumers(c *client) (any, error) {
	m := manager(c)
	stream, subject := name("S"), name("s")
	made := got(m.NewStream(stream, jsm.Subjects(subject), jsm.FileStorage()))
	defer m.DeleteStream(stream)
	for number := range 5 {
		got(c.nc.Request(subject, fmt.Appendf(nil, "m%d", number), patience))
	}
	consumer := got(made.NewConsumer(jsm.DurableName("c"), jsm.AckWait(20*time.Second), jsm.MaxDeliveryAttempts(5)))
	first := got(consumer.NextMsg())
	must(first.AckSync())
	second := got(consumer.NextMsg())
	got(c.nc.Request(second.Reply, []byte("-NAK"), patience))
	again := got(consumer.NextMsg())
	parsed := got(jsm.ParseJSMsgMetadata(again))
	must(again.Respond(nil))
	inbox := got(c.nc.SubscribeSync(c.nc.NewInbox()))
	must(c.nc.Flush())
	must(consumer.NextMsgRequest(inbox.Subject, &api.JSApiConsumerGetNextRequest{Batch: 10, NoWait: true}))
	batch := 0
	for {
		message := got(inbox.NextMsg(patience))
		if message.Header.Get("Status") != "" {
			break
		}
		batch++
		must(message.AckSync())
	}
	state := got(consumer.State())
	pending := got(consumer.PendingMessages())
	paused := got(consumer.Pause(time.Now().Add(time.Hour)))
	must(consumer.Resume())
	must(consumer.UpdateConfiguration(jsm.ConsumerDescription("changed")))
	names := got(made.ConsumerNames())
	empty, cancel := context.WithTimeout(c.ctx, 300*time.Millisecond)
	defer cancel()
	_, waited := consumer.NextMsgContext(empty)
	push := got(made.NewConsumer(jsm.DurableName("p"), jsm.DeliverySubject(nats.NewInbox()), jsm.FilterStreamBySubject(subject), jsm.DeliverLastPerSubject(), jsm.AcknowledgeNone()))
	must(consumer.Delete())
	_, gone := made.LoadConsumer("c")
	return map[string]any{
		"first": string(first.Data), "delivered": parsed.Delivered(), "batch": batch, "floor": state.AckFloor.Stream,
		"pending": pending, "paused": paused.Paused, "description": consumer.Description(), "names": names,
		"waited": waited != nil, "push": push.IsPushMode(), "gone": outcome(gone),
	}, nil
}
