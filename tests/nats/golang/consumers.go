// Consumers, with nats.go's interface of today and the one before.
package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func init() {
	scenarios["go_fetching"] = goFetching
	scenarios["go_consuming"] = goConsuming
	scenarios["go_acknowledging"] = goAcknowledging
	scenarios["go_ordered"] = goOrdered
	scenarios["go_pushing"] = goPushing
	scenarios["go_managing_consumers"] = goManagingConsumers
	scenarios["go_legacy"] = goLegacy
	scenarios["go_priority_groups"] = goPriorityGroups
}

// filled makes a stream with so many messages; their payloads are their sequences.
func filled(c *client, count int) (jetstream.Stream, string) {
	stream, subject := name("S"), name("s")
	made := got(c.js.CreateStream(c.ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{subject + ".>"}}))
	for number := 1; number <= count; number++ {
		got(c.js.PublishAsync(subject+".a", fmt.Appendf(nil, "%d", number)))
	}
	select {
	case <-c.js.PublishAsyncComplete():
	case <-time.After(patience):
		panic("not all were acknowledged")
	}
	return made, subject
}

func read(batch jetstream.MessageBatch) []string {
	found := []string{}
	for one := range batch.Messages() {
		found = append(found, string(one.Data()))
		must(one.Ack())
	}
	must(batch.Error())
	return found
}

func goFetching(c *client) (any, error) {
	stream, _ := filled(c, 10)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	consumer := got(stream.CreateConsumer(c.ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy}))
	three := read(got(consumer.Fetch(3)))
	rest := read(got(consumer.FetchNoWait(100)))
	none := read(got(consumer.Fetch(1, jetstream.FetchMaxWait(200*time.Millisecond))))
	_, waited := consumer.Next(jetstream.FetchMaxWait(100 * time.Millisecond))
	beats := read(got(consumer.Fetch(1, jetstream.FetchMaxWait(2500*time.Millisecond), jetstream.FetchHeartbeat(1200*time.Millisecond))))
	return map[string]any{"three": three, "rest": rest, "none": none, "beats": beats,
		"next": errors.Is(waited, nats.ErrTimeout)}, nil
}

func goConsuming(c *client) (any, error) {
	const count = 2000
	stream, _ := filled(c, count)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	consumer := got(stream.CreateConsumer(c.ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy}))
	var seen, wrong atomic.Int64
	done := make(chan bool)
	running := got(consumer.Consume(func(m jetstream.Msg) {
		if string(m.Data()) != fmt.Sprint(seen.Add(1)) {
			wrong.Add(1)
		}
		must(m.Ack())
		if seen.Load() == count {
			close(done)
		}
	}, jetstream.PullMaxMessages(200)))
	select {
	case <-done:
	case <-time.After(patience):
		return nil, fmt.Errorf("%d of %d messages came", seen.Load(), count)
	}
	running.Stop()
	<-running.Closed()
	second := got(stream.CreateConsumer(c.ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy}))
	iterator := got(second.Messages(jetstream.PullMaxMessages(10)))
	sum := 0
	for range 50 {
		message := got(iterator.Next())
		sum += int(got(message.Metadata()).Sequence.Stream)
		must(message.DoubleAck(c.ctx))
	}
	iterator.Stop()
	info := got(second.Info(c.ctx))
	return map[string]any{"seen": seen.Load(), "wrong": wrong.Load(), "sum": sum, "floor": info.AckFloor.Stream}, nil
}

func goAcknowledging(c *client) (any, error) {
	stream, _ := filled(c, 4)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	consumer := got(stream.CreateConsumer(c.ctx, jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 20 * time.Second, MaxDeliver: 3, MaxAckPending: 10,
	}))
	seen, twice := []string{}, false
	for range 6 {
		message := got(consumer.Next(jetstream.FetchMaxWait(20 * time.Second)))
		seen = append(seen, fmt.Sprintf("%s/%d", message.Data(), got(message.Metadata()).NumDelivered))
		switch seen[len(seen)-1] {
		case "1/1":
			must(message.Nak())
		case "2/1":
			must(message.NakWithDelay(3 * time.Second))
		case "3/1":
			must(message.TermWithReason("unwanted"))
		case "4/1":
			must(message.InProgress())
			must(message.Ack())
			twice = errors.Is(message.Ack(), jetstream.ErrMsgAlreadyAckd)
		default:
			must(message.DoubleAck(c.ctx))
		}
	}
	info := got(consumer.Info(c.ctx))
	return map[string]any{"seen": sorted(seen), "twice": twice, "floor": info.AckFloor.Stream,
		"pending": info.NumAckPending, "redelivered": info.NumRedelivered}, nil
}

func goOrdered(c *client) (any, error) {
	const count = 500
	stream, subject := filled(c, count)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	consumer := got(stream.OrderedConsumer(c.ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject + ".>"}}))
	iterator := got(consumer.Messages())
	wrong := 0
	for number := 1; number <= count; number++ {
		if got(got(iterator.Next()).Metadata()).Sequence.Stream != uint64(number) {
			wrong++
		}
	}
	iterator.Stop()
	from := got(stream.OrderedConsumer(c.ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: count,
	}))
	last := got(from.Next())
	return map[string]any{"wrong": wrong, "last": string(last.Data())}, nil
}

func goPushing(c *client) (any, error) {
	const count = 300
	stream, _ := filled(c, count)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	consumer := got(stream.CreatePushConsumer(c.ctx, jetstream.ConsumerConfig{
		Durable: "c", DeliverSubject: c.nc.NewInbox(), AckPolicy: jetstream.AckExplicitPolicy,
		FlowControl: true, IdleHeartbeat: time.Second,
	}))
	var seen atomic.Int64
	done := make(chan bool)
	running := got(consumer.Consume(func(m jetstream.Msg) {
		must(m.Ack())
		if seen.Add(1) == count {
			close(done)
		}
	}))
	select {
	case <-done:
	case <-time.After(patience):
		return nil, fmt.Errorf("%d of %d messages came", seen.Load(), count)
	}
	running.Stop()
	return seen.Load(), nil
}

func goManagingConsumers(c *client) (any, error) {
	stream, subject := filled(c, 5)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	config := jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{subject + ".a", subject + ".b"}}
	_, missing := stream.Consumer(c.ctx, "c")
	_, updating := stream.UpdateConsumer(c.ctx, config)
	made := got(stream.CreateConsumer(c.ctx, config))
	config.MaxAckPending = 7
	_, taken := stream.CreateConsumer(c.ctx, config)
	updated := got(stream.CreateOrUpdateConsumer(c.ctx, config))
	paused := got(stream.PauseConsumer(c.ctx, "c", time.Now().Add(time.Hour)))
	_, quiet := made.Next(jetstream.FetchMaxWait(200 * time.Millisecond))
	resumed := got(stream.ResumeConsumer(c.ctx, "c"))
	message := got(made.Next(jetstream.FetchMaxWait(20 * time.Second)))
	names := []string{}
	lister := stream.ConsumerNames(c.ctx)
	for one := range lister.Name() {
		names = append(names, one)
	}
	must(lister.Err())
	count := 0
	infos := stream.ListConsumers(c.ctx)
	for range infos.Info() {
		count++
	}
	must(infos.Err())
	must(stream.DeleteConsumer(c.ctx, "c"))
	return map[string]any{"missing": outcome(missing), "updating": outcome(updating), "taken": outcome(taken),
		"max": updated.CachedInfo().Config.MaxAckPending, "paused": paused.Paused, "quiet": errors.Is(quiet, nats.ErrTimeout),
		"resumed": resumed.Paused, "message": string(message.Data()), "names": names, "count": count,
		"gone": outcome(stream.DeleteConsumer(c.ctx, "c"))}, nil
}

func goLegacy(c *client) (any, error) {
	js := got(c.nc.JetStream(nats.MaxWait(patience)))
	stream, subject := name("S"), name("s")
	got(js.AddStream(&nats.StreamConfig{Name: stream, Subjects: []string{subject}}))
	defer js.DeleteStream(stream)
	for number := range 20 {
		got(js.Publish(subject, fmt.Appendf(nil, "%d", number), nats.MsgId(fmt.Sprint(number))))
	}
	push := got(js.SubscribeSync(subject, nats.Durable("push"), nats.ManualAck(), nats.DeliverAll()))
	for range 20 {
		must(got(push.NextMsg(patience)).AckSync())
	}
	pull := got(js.PullSubscribe(subject, "pull"))
	batch := got(pull.Fetch(20))
	for _, one := range batch {
		must(one.Ack())
	}
	ordered := got(js.SubscribeSync(subject, nats.OrderedConsumer()))
	for range 20 {
		got(ordered.NextMsg(patience))
	}
	group := got(js.QueueSubscribeSync(subject, "workers", nats.ManualAck()))
	message := got(group.NextMsg(patience))
	must(message.NakWithDelay(50 * time.Millisecond))
	must(push.Unsubscribe())
	info := got(js.StreamInfo(stream))
	_, none := js.ConsumerInfo(stream, "none")
	return map[string]any{"batch": len(batch), "messages": info.State.Msgs, "consumers": info.State.Consumers, "none": outcome(none)}, nil
}

// A client of an overflow waits for its bounds; the other client of a pinned consumer gets messages when the first is unpinned.
func goPriorityGroups(c *client) (any, error) {
	stream, subject := filled(c, 10)
	defer c.js.DeleteStream(c.ctx, stream.CachedInfo().Config.Name)
	config := jetstream.ConsumerConfig{Durable: "o", AckPolicy: jetstream.AckExplicitPolicy,
		PriorityPolicy: jetstream.PriorityPolicyOverflow, PriorityGroups: []string{"g"}}
	overflow := got(stream.CreateConsumer(c.ctx, config))
	group := jetstream.FetchPriorityGroup("g")
	few := read(got(overflow.Fetch(3, group, jetstream.FetchMinPending(11), jetstream.FetchMaxWait(300*time.Millisecond))))
	many := read(got(overflow.Fetch(3, group, jetstream.FetchMinPending(8))))

	config.Durable, config.PriorityPolicy, config.PinnedTTL = "p", jetstream.PriorityPolicyPinned, time.Minute
	pinned := got(stream.CreateConsumer(c.ctx, config))
	first := got(pinned.Messages(jetstream.PullPriorityGroup("g")))
	defer first.Stop()
	pins := map[string]bool{}
	for number := 1; number <= 10; number++ {
		one := got(first.Next())
		pins[one.Headers().Get("Nats-Pin-Id")] = true
		must(one.Ack())
	}
	other := got(got(stream.Consumer(c.ctx, "p")).Messages(jetstream.PullPriorityGroup("g")))
	defer other.Stop()
	came := make(chan string, 1)
	go func() {
		if one, err := other.Next(); err == nil {
			pins[one.Headers().Get("Nats-Pin-Id")] = true
			came <- string(one.Data())
		}
	}()
	waiting := got(pinned.Info(c.ctx)).NumWaiting
	for deadline := time.Now().Add(patience); waiting < 2 && time.Now().Before(deadline); waiting = got(pinned.Info(c.ctx)).NumWaiting {
		time.Sleep(20 * time.Millisecond)
	}
	got(c.js.Publish(c.ctx, subject+".a", []byte("11")))
	kept := string(got(first.Next()).Data())
	must(stream.UnpinConsumer(c.ctx, "p", "g"))
	got(c.js.Publish(c.ctx, subject+".a", []byte("12")))
	return map[string]any{"few": few, "many": many, "kept": kept, "other": <-came, "pins": len(pins)}, nil
}
