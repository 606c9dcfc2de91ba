// What users of the official Go client do, each scenario one function that returns what they saw.
// Usage: golang URL NAMESPACE [NAME]. Each line of the output is one scenario's outcome as JSON; a line that
// begins with "!" asks whoever started this for something that administrators do, and waits for a line
// on the standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	soon    = 10 * time.Second
	nothing = 700 * time.Millisecond
)

type list = []any

type place struct {
	client    pulsar.Client
	namespace string
	number    int
}

type point struct {
	X int `json:"x"`
	Y int `json:"y"`
}

const pointSchema = `{"type":"record","name":"Point","fields":[{"name":"x","type":"int"},{"name":"y","type":"int"}]}`

var scenarios = []struct {
	name string
	run  func(*place) (any, error)
}{
	{"messageWithEverything", messageWithEverything},
	{"batches", batches},
	{"chunks", chunks},
	{"delayed", delayed},
	{"exclusive", exclusive},
	{"refusals", refusals},
	{"negative", negative},
	{"deadLetters", deadLetters},
	{"keysInOrder", keysInOrder},
	{"seeking", seeking},
	{"readers", readers},
	{"compacted", compacted},
	{"compactedBatch", compactedBatch},
	{"partitions", partitions},
	{"pattern", pattern},
	{"schemas", schemas},
	{"acknowledgements", acknowledgements},
	{"transactions", transactions},
	// The last one: this client closes the connection when it hears that a topic has ended.
	{"terminated", terminated},
}

var orders = bufio.NewReader(os.Stdin)

func main() {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Args[1],
		OperationTimeout: soon,
		Logger:           quiet(),
	})
	if err != nil {
		panic(err)
	}
	for index, scenario := range scenarios {
		if len(os.Args) > 3 && os.Args[3] != scenario.name {
			continue
		}
		seen, err := scenario.run(&place{client, os.Args[2], index * 1000})
		if err != nil {
			seen = "ended by " + err.Error()
		}
		say(list{scenario.name, seen})
	}
}

func messageWithEverything(at *place) (any, error) {
	topic := at.topic()
	consumer, err := at.consumer(topic, pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: "p"})
	if err != nil {
		return nil, err
	}
	sequence := int64(9)
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("v"), Key: "k", OrderingKey: "o", Properties: map[string]string{"a": "b"},
		EventTime: time.UnixMilli(7), SequenceID: &sequence,
	})
	if err != nil {
		return nil, err
	}
	got, err := receive(consumer)
	if err != nil {
		return nil, err
	}
	return list{string(got.Payload()), got.Key(), got.OrderingKey(), got.Properties(), got.EventTime().UnixMilli(),
		got.ProducerName(), got.RedeliveryCount(), got.Topic() == topic}, nil
}

func batches(at *place) (any, error) {
	seen := map[string]bool{}
	kinds := map[string]pulsar.CompressionType{
		"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD}
	for name, kind := range kinds {
		topic := at.topic()
		consumer, err := at.consumer(topic, pulsar.Exclusive)
		if err != nil {
			return nil, err
		}
		producer, err := at.client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, CompressionType: kind, BatchingMaxPublishDelay: time.Second})
		if err != nil {
			return nil, err
		}
		for number := 0; number < 20; number++ {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("m", number))},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		if err := producer.Flush(); err != nil {
			return nil, err
		}
		values, err := take(consumer, 20)
		if err != nil {
			return nil, err
		}
		seen[name] = values[0] == "m0" && values[19] == "m19"
	}
	return seen, nil
}

func chunks(at *place) (any, error) {
	topic := at.topic()
	consumer, err := at.consumer(topic, pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true})
	if err != nil {
		return nil, err
	}
	large := make([]byte, 12_000_000)
	for _, value := range [][]byte{large, []byte("after")} {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: value}); err != nil {
			return nil, err
		}
	}
	got, err := receive(consumer)
	if err != nil {
		return nil, err
	}
	rest, err := take(consumer, 1)
	return list{len(got.Payload()) == len(large), rest}, err
}

func delayed(at *place) (any, error) {
	topic := at.topic()
	consumer, err := at.consumer(topic, pulsar.Shared)
	if err != nil {
		return nil, err
	}
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return nil, err
	}
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("later"), DeliverAfter: 6 * time.Second})
	if err != nil {
		return nil, err
	}
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("now")}); err != nil {
		return nil, err
	}
	first, err := take(consumer, 1)
	if err != nil {
		return nil, err
	}
	quiet := len(drain(consumer, 0)) == 0
	late, err := take(consumer, 1)
	return list{first, quiet, late}, err
}

func exclusive(at *place) (any, error) {
	topic := at.topic()
	first, err := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	if err != nil {
		return nil, err
	}
	_, second := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	first.Close()
	after, third := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if third == nil {
		after.Close()
	}
	return list{failed(second), failed(third)}, nil
}

func refusals(at *place) (any, error) {
	topic := at.topic()
	if _, err := at.consumer(topic, pulsar.Exclusive); err != nil {
		return nil, err
	}
	_, second := at.consumer(topic, pulsar.Exclusive)
	_, shared := at.consumer(topic, pulsar.Shared)
	_, missing := at.client.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/no-such-namespace/t"})
	return list{failed(second), failed(shared), failed(missing)}, nil
}

func negative(at *place) (any, error) {
	topic := at.topic()
	consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	if _, err := at.publish(topic, 1); err != nil {
		return nil, err
	}
	counts := list{}
	for attempt := 0; attempt < 3; attempt++ {
		got, err := receive(consumer)
		if err != nil {
			return nil, err
		}
		counts = append(counts, got.RedeliveryCount())
		consumer.Nack(got)
	}
	return counts, nil
}

func deadLetters(at *place) (any, error) {
	topic := at.topic()
	consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead"}})
	if err != nil {
		return nil, err
	}
	if _, err := at.publish(topic, 1); err != nil {
		return nil, err
	}
	for attempt := 0; attempt < 2; attempt++ {
		got, err := receive(consumer)
		if err != nil {
			return nil, err
		}
		consumer.Nack(got)
	}
	// The client gives up when the message comes once more.
	drain(consumer, 0)
	dead, err := at.consumer(topic+"-dead", pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	return take(dead, 1)
}

func keysInOrder(at *place) (any, error) {
	topic := at.topic()
	consumers := []pulsar.Consumer{}
	for index := 0; index < 2; index++ {
		consumer, err := at.consumer(topic, pulsar.KeyShared)
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, consumer)
	}
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	if err != nil {
		return nil, err
	}
	for number := 0; number < 40; number++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Key: fmt.Sprint("k", number%8), Payload: []byte(fmt.Sprintf("%02d", number))},
			func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	if err := producer.Flush(); err != nil {
		return nil, err
	}
	owners, ordered, total := map[string]int{}, true, 0
	for index, consumer := range consumers {
		last := map[string]string{}
		for _, got := range messages(consumer, 0) {
			if owner, known := owners[got.Key()]; known && owner != index {
				return "a key has two owners", nil
			}
			owners[got.Key()] = index
			ordered = ordered && last[got.Key()] < string(got.Payload())
			last[got.Key()] = string(got.Payload())
			total++
		}
	}
	return list{len(owners), ordered, total}, nil
}

func seeking(at *place) (any, error) {
	topic := at.topic()
	if _, err := at.publish(topic, 5); err != nil {
		return nil, err
	}
	consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", StartMessageIDInclusive: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
	if err != nil {
		return nil, err
	}
	// The ids of what was published name no partition, which this client takes for a wrong one.
	got := messages(consumer, 5)
	if len(got) != 5 {
		return nil, errors.New("not all messages came")
	}
	seen := list{}
	for index, seek := range []func() error{
		func() error { return consumer.Seek(got[2].ID()) },
		func() error { return consumer.SeekByTime(time.UnixMilli(1)) },
	} {
		if err := seek(); err != nil {
			return nil, err
		}
		values := list{}
		for _, got := range messages(consumer, 3+2*index) {
			values = append(values, string(got.Payload()))
		}
		seen = append(seen, values)
	}
	return seen, nil
}

func readers(at *place) (any, error) {
	topic := at.topic()
	ids, err := at.publish(topic, 4)
	if err != nil {
		return nil, err
	}
	seen := list{}
	for _, options := range []pulsar.ReaderOptions{
		{StartMessageID: pulsar.EarliestMessageID()},
		{StartMessageID: ids[1]},
		{StartMessageID: ids[1], StartMessageIDInclusive: true},
		{StartMessageID: pulsar.LatestMessageID(), StartMessageIDInclusive: true},
	} {
		options.Topic = topic
		reader, err := at.client.CreateReader(options)
		if err != nil {
			return nil, err
		}
		values := list{}
		for reader.HasNext() {
			within, cancel := context.WithTimeout(context.Background(), soon)
			got, err := reader.Next(within)
			cancel()
			if err != nil {
				return nil, err
			}
			values = append(values, string(got.Payload()))
		}
		reader.Close()
		seen = append(seen, values)
	}
	return seen, nil
}

func compacted(at *place) (any, error) {
	topic, seen, err := at.readCompacted(true)
	if err != nil {
		return nil, err
	}
	for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Shared, pulsar.KeyShared} {
		consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: fmt.Sprint("s", kind), Type: kind, ReadCompacted: true,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
		if err != nil {
			seen = append(seen, "refused")
			continue
		}
		values, err := take(consumer, 6)
		if err != nil {
			return nil, err
		}
		seen = append(seen, values)
		consumer.Close()
	}
	return seen, nil
}

func compactedBatch(at *place) (any, error) {
	_, seen, err := at.readCompacted(false)
	return seen, err
}

// readCompacted reads a compacted topic of six messages of four keys, and two of none behind.
func (at *place) readCompacted(disableBatching bool) (string, list, error) {
	topic := at.topic()
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: disableBatching, BatchingMaxPublishDelay: time.Minute})
	if err != nil {
		return topic, nil, err
	}
	defer producer.Close()
	for number := 0; number < 6; number++ {
		message := &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint("v", number)), Key: fmt.Sprint("k", number%4)}
		producer.SendAsync(context.Background(), message,
			func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	if err := producer.Flush(); err != nil {
		return topic, nil, err
	}
	if err := order("compact", topic, ""); err != nil {
		return topic, nil, err
	}
	if _, err := at.publish(topic, 2); err != nil {
		return topic, nil, err
	}
	reader, err := at.client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true})
	if err != nil {
		return topic, nil, err
	}
	defer reader.Close()
	seen := list{}
	for reader.HasNext() {
		within, cancel := context.WithTimeout(context.Background(), soon)
		got, err := reader.Next(within)
		cancel()
		if err != nil {
			return topic, nil, err
		}
		seen = append(seen, string(got.Payload()))
	}
	return topic, seen, nil
}

func partitions(at *place) (any, error) {
	topic := at.topic()
	if err := order("partitioned", topic, "3"); err != nil {
		return nil, err
	}
	names, err := at.client.TopicPartitions(topic)
	if err != nil {
		return nil, err
	}
	consumer, err := at.consumer(topic, pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	if _, err := at.publish(topic, 9); err != nil {
		return nil, err
	}
	values, err := take(consumer, 9)
	sort.Strings(values)
	return list{len(names), values}, err
}

func pattern(at *place) (any, error) {
	prefix := at.topic()
	for _, suffix := range []string{"-one", "-two"} {
		if _, err := at.publish(prefix+suffix, 1); err != nil {
			return nil, err
		}
	}
	consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{
		TopicsPattern: prefix + "-.*", SubscriptionName: "s", AutoDiscoveryPeriod: time.Second,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
	if err != nil {
		return nil, err
	}
	old, err := take(consumer, 2)
	if err != nil {
		return nil, err
	}
	if _, err := at.publish(prefix+"-three", 1); err != nil {
		return nil, err
	}
	late, err := take(consumer, 1)
	return list{old, late}, err
}

func schemas(at *place) (any, error) {
	seen := map[string]any{}
	for name, schema := range map[string]pulsar.Schema{
		"avro": pulsar.NewAvroSchema(pointSchema, nil), "json": pulsar.NewJSONSchema(pointSchema, nil)} {
		topic := at.topic()
		consumer, err := at.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", Schema: schema})
		if err != nil {
			return nil, err
		}
		producer, err := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
		if err != nil {
			return nil, err
		}
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &point{1, -2}}); err != nil {
			return nil, err
		}
		got, err := receive(consumer)
		if err != nil {
			return nil, err
		}
		var value point
		if err := got.GetSchemaValue(&value); err != nil {
			return nil, err
		}
		_, other := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewStringSchema(nil)})
		seen[name] = list{value.X, value.Y, failed(other)}
	}
	return seen, nil
}

func terminated(at *place) (any, error) {
	topic := at.topic()
	if _, err := at.publish(topic, 1); err != nil {
		return nil, err
	}
	if err := order("terminate", topic, ""); err != nil {
		return nil, err
	}
	_, refused := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	consumer, err := at.consumer(topic, pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	values, err := take(consumer, 1)
	return list{failed(refused), values}, err
}

func acknowledgements(at *place) (any, error) {
	topic := at.topic()
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Shared, AckWithResponse: true,
		EnableBatchIndexAcknowledgment: true, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}
	consumer, err := at.client.Subscribe(options)
	if err != nil {
		return nil, err
	}
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, BatchingMaxPublishDelay: time.Second})
	if err != nil {
		return nil, err
	}
	for number := 0; number < 5; number++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("m", number))},
			func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	if err := producer.Flush(); err != nil {
		return nil, err
	}
	for number := 0; number < 5; number++ {
		got, err := receive(consumer)
		if err != nil {
			return nil, err
		}
		if number == 1 || number == 4 {
			if err := consumer.Ack(got); err != nil {
				return nil, err
			}
		}
	}
	consumer.Close()
	again, err := at.client.Subscribe(options)
	if err != nil {
		return nil, err
	}
	return drain(again, 3), nil
}

// transactions consumes and produces in one that is aborted, and in one that is committed.
func transactions(at *place) (any, error) {
	source, target := at.topic(), at.topic()
	if _, err := at.publish(source, 2); err != nil {
		return nil, err
	}
	own, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], EnableTransaction: true, OperationTimeout: soon, Logger: quiet()})
	if err != nil {
		return nil, err
	}
	defer own.Close()
	at = &place{own, at.namespace, at.number}
	output, err := at.consumer(target, pulsar.Exclusive)
	if err != nil {
		return nil, err
	}
	input, err := at.consumer(source, pulsar.Shared)
	if err != nil {
		return nil, err
	}
	producer, err := own.CreateProducer(pulsar.ProducerOptions{
		Topic: target, DisableBatching: true, SendTimeout: -1})
	if err != nil {
		return nil, err
	}
	seen := list{}
	for _, commit := range []bool{false, true} {
		transaction, err := own.NewTransaction(time.Minute)
		if err != nil {
			return nil, err
		}
		other, err := own.NewTransaction(time.Minute)
		if err != nil {
			return nil, err
		}
		for number := 0; number < 2; number++ {
			got, err := receive(input)
			if err != nil {
				return nil, err
			}
			message := &pulsar.ProducerMessage{Payload: got.Payload(), Transaction: transaction}
			if _, err := producer.Send(context.Background(), message); err != nil {
				return nil, err
			}
			if err := input.AckWithTxn(got, transaction); err != nil {
				return nil, err
			}
			if number == 0 {
				seen = append(seen, input.AckWithTxn(got, other) != nil)
			}
		}
		end := transaction.Abort
		if commit {
			end = transaction.Commit
		}
		seen = append(seen, fmt.Sprint(end(context.Background())))
		seen = append(seen, transaction.Commit(context.Background()) != nil)
	}
	input.Close()
	again, err := at.consumer(source, pulsar.Shared)
	if err != nil {
		return nil, err
	}
	return append(seen, drain(output, 2), drain(again, 0)), nil
}

func quiet() log.Logger {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	return log.NewLoggerWithLogrus(logger)
}

func (at *place) topic() string {
	at.number++
	return fmt.Sprintf("persistent://%s/go-%d-%d", at.namespace, started, at.number)
}

func (at *place) consumer(topic string, kind pulsar.SubscriptionType) (pulsar.Consumer, error) {
	return at.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
}

func (at *place) publish(topic string, count int) ([]pulsar.MessageID, error) {
	producer, err := at.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	ids := []pulsar.MessageID{}
	for number := 0; number < count; number++ {
		id, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("m", number))})
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func receive(consumer pulsar.Consumer) (pulsar.Message, error) {
	within, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return consumer.Receive(within)
}

func take(consumer pulsar.Consumer, count int) ([]string, error) {
	values := []string{}
	for len(values) < count {
		got, err := receive(consumer)
		if err != nil {
			return nil, err
		}
		values = append(values, string(got.Payload()))
		if err := consumer.Ack(got); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// messages returns what comes until nothing comes for a while; so many are to come, which may take long.
func messages(consumer pulsar.Consumer, count int) []pulsar.Message {
	found := []pulsar.Message{}
	for {
		wait := nothing
		if len(found) < count {
			wait = soon
		}
		within, cancel := context.WithTimeout(context.Background(), wait)
		got, err := consumer.Receive(within)
		cancel()
		if err != nil {
			return found
		}
		found = append(found, got)
	}
}

func drain(consumer pulsar.Consumer, count int) []string {
	values := []string{}
	for _, got := range messages(consumer, count) {
		values = append(values, string(got.Payload()))
	}
	return values
}

// started parts the topics of one run from those of another.
var started = time.Now().UnixNano()

var code = regexp.MustCompile(
	`\b(ConsumerBusy|ProducerBusy|ProducerFenced|TopicNotFound|IncompatibleSchema|TopicTerminatedError)\b`)

// failed returns what kind of a failure it is: its sentence is the server's, and not the same.
func failed(err error) string {
	var known *pulsar.Error
	if err == nil {
		return "nothing"
	}
	if errors.As(err, &known) {
		return fmt.Sprint("result ", known.Result())
	}
	if found := code.FindString(err.Error()); found != "" {
		return found
	}
	return err.Error()
}

func order(what, topic, how string) error {
	fmt.Print("!")
	say(list{what, topic, how})
	_, err := orders.ReadString('\n')
	return err
}

func say(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
