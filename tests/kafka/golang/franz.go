package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type franz struct {
	bootstrap string
	client    *kgo.Client
}

func newFranz(bootstrap string) library {
	return &franz{bootstrap, must(kgo.NewClient(kgo.SeedBrokers(bootstrap)))}
}

func (f *franz) topics() ([]string, error) {
	request := kmsg.NewPtrMetadataRequest()
	answer, err := request.RequestWith(deadline(), f.client)
	if err != nil {
		return nil, named(err)
	}
	var names []string
	for _, topic := range answer.Topics {
		names = append(names, *topic.Topic)
	}
	return names, nil
}

func (f *franz) create(topic string, partitions int32) error {
	request := kmsg.NewPtrCreateTopicsRequest()
	asked := kmsg.NewCreateTopicsRequestTopic()
	asked.Topic, asked.NumPartitions, asked.ReplicationFactor = topic, partitions, 1
	request.Topics = append(request.Topics, asked)
	answer, err := request.RequestWith(deadline(), f.client)
	if err != nil {
		return named(err)
	}
	return named(kerr.ErrorForCode(answer.Topics[0].ErrorCode))
}

func (f *franz) remove(topic string) error {
	request := kmsg.NewPtrDeleteTopicsRequest()
	asked := kmsg.NewDeleteTopicsRequestTopic()
	asked.Topic = &topic
	request.TopicNames, request.Topics = []string{topic}, append(request.Topics, asked)
	answer, err := request.RequestWith(deadline(), f.client)
	if err != nil {
		return named(err)
	}
	return named(kerr.ErrorForCode(answer.Topics[0].ErrorCode))
}

func (f *franz) produce(asked call) ([]int64, error) {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	options := []kgo.Opt{kgo.SeedBrokers(f.bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[asked.Codec]), kgo.ProducerLinger(20 * time.Millisecond),
		kgo.ProducerBatchMaxBytes(8 << 20)}
	if !asked.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client := must(kgo.NewClient(options...))
	defer client.Close()
	var sent []*kgo.Record
	for _, one := range asked.Records {
		made := &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Key: unhex(one.Key),
			Value: unhex(one.Value), Timestamp: time.UnixMilli(one.Timestamp)}
		for _, header := range one.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: *header[0], Value: unhex(header[1])})
		}
		sent = append(sent, made)
	}
	var offsets []int64
	// in the order of the records, whatever the order of their promises
	results := client.ProduceSync(deadline(), sent...)
	if err := results.FirstErr(); err != nil {
		return nil, named(err)
	}
	for _, one := range sent {
		offsets = append(offsets, one.Offset)
	}
	return offsets, nil
}

func (f *franz) read(asked call) ([]record, error) {
	start := map[string]map[int32]kgo.Offset{asked.Topic: {asked.Partition: kgo.NewOffset().At(asked.Offset)}}
	client := must(kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.ConsumePartitions(start),
		kgo.ConsumeResetOffset(kgo.NoResetOffset())))
	defer client.Close()
	var found []record
	for context := deadline(); len(found) < asked.Count; {
		fetched := client.PollFetches(context)
		if err := fetched.Err(); err != nil {
			return nil, named(err)
		}
		fetched.EachRecord(func(one *kgo.Record) {
			shown := record{Offset: one.Offset, Key: hexed(one.Key), Value: hexed(one.Value),
				Timestamp: one.Timestamp.UnixMilli(), Headers: [][2]*string{}}
			for _, header := range one.Headers {
				name := header.Key
				shown.Headers = append(shown.Headers, [2]*string{&name, hexed(header.Value)})
			}
			found = append(found, shown)
		})
	}
	return found[:asked.Count], nil
}

func (f *franz) times(asked call) ([]int64, error) {
	var found []int64
	for _, timestamp := range asked.Timestamps {
		request := kmsg.NewPtrListOffsetsRequest()
		request.ReplicaID = -1
		topic, partition := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = asked.Partition, timestamp
		topic.Topic, topic.Partitions = asked.Topic, append(topic.Partitions, partition)
		request.Topics = append(request.Topics, topic)
		answer, err := request.RequestWith(deadline(), f.client)
		if err != nil {
			return nil, named(err)
		}
		one := answer.Topics[0].Partitions[0]
		if err := named(kerr.ErrorForCode(one.ErrorCode)); err != nil {
			return nil, err
		}
		found = append(found, one.Offset)
	}
	return found, nil
}

type franzMember struct {
	client   *kgo.Client
	lock     sync.Mutex
	assigned map[int32]bool
}

func (f *franz) join(asked call) (member, error) {
	made := &franzMember{assigned: map[int32]bool{}}
	balancer := kgo.RangeBalancer()
	if asked.Assignor == "cooperative" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	changed := func(now bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			made.lock.Lock()
			defer made.lock.Unlock()
			for _, partition := range partitions[asked.Topic] {
				if now {
					made.assigned[partition] = true
				} else {
					delete(made.assigned, partition)
				}
			}
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Topic), kgo.Balancers(balancer), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(200*time.Millisecond), kgo.OnPartitionsAssigned(changed(true)),
		kgo.OnPartitionsRevoked(changed(false)), kgo.OnPartitionsLost(changed(false)))
	made.client = client
	return made, err
}

func (m *franzMember) poll(wait time.Duration) ([][2]int64, error) {
	context, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	found := [][2]int64{}
	fetched := m.client.PollFetches(context)
	fetched.EachRecord(func(one *kgo.Record) {
		found = append(found, [2]int64{int64(one.Partition), one.Offset})
	})
	return found, nil
}

func (m *franzMember) assignment() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := []int32{}
	for partition := range m.assigned {
		found = append(found, partition)
	}
	return found
}

func (m *franzMember) commit() error { return named(m.client.CommitUncommittedOffsets(deadline())) }

func (m *franzMember) leave() { m.client.Close() }

func named(err error) error {
	var answered *kerr.Error
	if errors.As(err, &answered) {
		return coded{int(answered.Code)}
	}
	return err
}

func deadline() context.Context {
	found, cancel := context.WithTimeout(context.Background(), patience)
	time.AfterFunc(patience, cancel)
	return found
}

func must(client *kgo.Client, err error) *kgo.Client {
	if err != nil {
		panic(err)
	}
	return client
}
