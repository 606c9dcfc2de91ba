// Loads a server for about so long, and prints what it took: {"messages", "seconds", "latencies" in ms}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	subscribers = 100
	// Messages that a publisher may be ahead of the slowest subscriber: nobody is cut off.
	ahead = 512
	drain = 60 * time.Second
)

type loaded struct {
	Messages  int       `json:"messages"`
	Seconds   float64   `json:"seconds"`
	Latencies []float64 `json:"latencies"`
}

func load(kind, url string, seconds float64, size int) {
	kinds := map[string]func(string, time.Duration, []byte) loaded{
		"sync":    func(u string, d time.Duration, b []byte) loaded { return syncs(u, d, b, 1) },
		"syncs":   func(u string, d time.Duration, b []byte) loaded { return syncs(u, d, b, 16) },
		"async":   asyncs,
		"consume": consumes,
		"fanout":  fansOut,
	}
	found := kinds[kind](url, time.Duration(seconds*float64(time.Second)), make([]byte, size))
	check(json.NewEncoder(os.Stdout).Encode(found))
}

func number(text string) float64 {
	return got(strconv.ParseFloat(text, 64))
}

func opened(url string) (*nats.Conn, jetstream.JetStream) {
	nc := got(nats.Connect(url))
	return nc, got(jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000)))
}

func benchStream(js jetstream.JetStream) (jetstream.Stream, string) {
	subject := name("bench")
	return got(js.CreateStream(context.Background(), jetstream.StreamConfig{Name: subject, Subjects: []string{subject}})), subject
}

// syncs publishes one message at a time, each publisher on its own connection.
func syncs(url string, wait time.Duration, body []byte, publishers int) loaded {
	nc, js := opened(url)
	defer nc.Close()
	_, subject := benchStream(js)
	defer js.DeleteStream(context.Background(), subject)
	found := loaded{}
	var all sync.WaitGroup
	var keeping sync.Mutex
	began := time.Now()
	for range publishers {
		all.Add(1)
		go func() {
			defer all.Done()
			nc, js := opened(url)
			defer nc.Close()
			own := []float64{}
			for time.Since(began) < wait {
				sent := time.Now()
				got(js.Publish(context.Background(), subject, body))
				own = append(own, time.Since(sent).Seconds()*1000)
			}
			keeping.Lock()
			defer keeping.Unlock()
			found.Latencies = append(found.Latencies, own...)
		}()
	}
	all.Wait()
	found.Seconds, found.Messages = time.Since(began).Seconds(), len(found.Latencies)
	return found
}

func publishAll(js jetstream.JetStream, subject string, wait time.Duration, body []byte) int {
	sent, began := 0, time.Now()
	for time.Since(began) < wait {
		for range 100 {
			got(js.PublishAsync(subject, body, jetstream.WithStallWait(drain)))
			sent++
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(drain):
		panic("not all were acknowledged")
	}
	if stored := got(got(js.Stream(context.Background(), subject)).Info(context.Background())).State.Msgs; stored != uint64(sent) {
		panic(fmt.Sprintf("%d of %d messages are stored", stored, sent))
	}
	return sent
}

// asyncs publishes with at most 4,000 messages that are not acknowledged.
func asyncs(url string, wait time.Duration, body []byte) loaded {
	nc, js := opened(url)
	defer nc.Close()
	_, subject := benchStream(js)
	defer js.DeleteStream(context.Background(), subject)
	began := time.Now()
	sent := publishAll(js, subject, wait, body)
	return loaded{Messages: sent, Seconds: time.Since(began).Seconds()}
}

// consumes reads a backlog with a pull consumer, and acknowledges each message.
func consumes(url string, wait time.Duration, body []byte) loaded {
	nc, js := opened(url)
	defer nc.Close()
	stream, subject := benchStream(js)
	defer js.DeleteStream(context.Background(), subject)
	count := int64(publishAll(js, subject, wait/2, body))
	consumer := got(stream.CreateConsumer(context.Background(), jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10_000,
	}))
	var seen atomic.Int64
	done := make(chan bool)
	began := time.Now()
	running := got(consumer.Consume(func(m jetstream.Msg) {
		must(m.Ack())
		if seen.Add(1) == count {
			close(done)
		}
	}))
	select {
	case <-done:
	case <-time.After(drain):
		panic("not all messages came")
	}
	running.Stop()
	return loaded{Messages: int(count), Seconds: time.Since(began).Seconds()}
}

// fansOut publishes to subscribers of their own connections, as fast as all of them receive.
func fansOut(url string, wait time.Duration, body []byte) loaded {
	subject := name("bench")
	var slowest [subscribers]atomic.Int64
	for number := range subscribers {
		nc := got(nats.Connect(url))
		defer nc.Close()
		got(nc.Subscribe(subject, func(*nats.Msg) { slowest[number].Add(1) }))
		must(nc.Flush())
	}
	least := func() int64 {
		found := slowest[0].Load()
		for number := range slowest {
			found = min(found, slowest[number].Load())
		}
		return found
	}
	nc := got(nats.Connect(url))
	defer nc.Close()
	sent, began := int64(0), time.Now()
	for time.Since(began) < wait {
		must(nc.Publish(subject, body))
		sent++
		if sent%64 == 0 {
			must(nc.Flush())
			for sent-least() > ahead {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	must(nc.Flush())
	for least() < sent {
		time.Sleep(100 * time.Microsecond)
		if time.Since(began) > wait+drain {
			panic("not all messages came")
		}
	}
	return loaded{Messages: int(sent) * subscribers, Seconds: time.Since(began).Seconds()}
}
