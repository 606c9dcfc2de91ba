package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

type segment struct {
	bootstrap string
}

func newSegment(bootstrap string) library {
	return &segment{bootstrap}
}

// A client with a transport of its own, and its end: a transport keeps metadata for 6 s, and refuses topics that are younger.
func (s *segment) client() (*kafka.Client, func()) {
	transport := &kafka.Transport{}
	return &kafka.Client{Addr: kafka.TCP(s.bootstrap), Timeout: patience, Transport: transport}, transport.CloseIdleConnections
}

func (s *segment) topics() ([]string, error) {
	client, end := s.client()
	defer end()
	answer, err := client.Metadata(deadline(), &kafka.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, topic := range answer.Topics {
		names = append(names, topic.Name)
	}
	return names, nil
}

func (s *segment) create(topic string, partitions int32) error {
	asked := kafka.TopicConfig{Topic: topic, NumPartitions: int(partitions), ReplicationFactor: 1}
	client, end := s.client()
	defer end()
	answer, err := client.CreateTopics(deadline(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{asked}})
	if err != nil {
		return numbered(err)
	}
	return numbered(answer.Errors[topic])
}

func (s *segment) remove(topic string) error {
	client, end := s.client()
	defer end()
	answer, err := client.DeleteTopics(deadline(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return numbered(err)
	}
	return numbered(answer.Errors[topic])
}

func (s *segment) produce(asked call) ([]int64, error) {
	codecs := map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	var offsets []int64
	client, end := s.client()
	defer end()
	writer := &kafka.Writer{Addr: client.Addr, Transport: client.Transport, Topic: asked.Topic, BatchTimeout: 20 * time.Millisecond,
		BatchSize: len(asked.Records), BatchBytes: 8 << 20, RequiredAcks: kafka.RequireAll, MaxAttempts: 1,
		Compression: codecs[asked.Codec],
		Balancer:    kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(asked.Partition) }),
		Completion: func(messages []kafka.Message, err error) {
			for _, message := range messages {
				offsets = append(offsets, message.Offset)
			}
		}}
	var sent []kafka.Message
	for _, one := range asked.Records {
		made := kafka.Message{Key: unhex(one.Key), Value: unhex(one.Value), Time: time.UnixMilli(one.Timestamp)}
		for _, header := range one.Headers {
			made.Headers = append(made.Headers, kafka.Header{Key: *header[0], Value: unhex(header[1])})
		}
		sent = append(sent, made)
	}
	err := writer.WriteMessages(deadline(), sent...)
	if closed := writer.Close(); err == nil {
		err = closed
	}
	return offsets, numbered(err)
}

func (s *segment) read(asked call) ([]record, error) {
	conn, err := kafka.DialLeader(deadline(), "tcp", s.bootstrap, asked.Topic, int(asked.Partition))
	if err != nil {
		return nil, numbered(err)
	}
	defer conn.Close()
	if _, err = conn.Seek(asked.Offset, kafka.SeekAbsolute); err != nil {
		return nil, numbered(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	var found []record
	for len(found) < asked.Count {
		batch := conn.ReadBatch(1, 10<<20)
		for len(found) < asked.Count {
			one, err := batch.ReadMessage()
			if err != nil {
				break
			}
			shown := record{Offset: one.Offset, Key: hexed(one.Key), Value: hexed(one.Value),
				Timestamp: one.Time.UnixMilli(), Headers: [][2]*string{}}
			for _, header := range one.Headers {
				name := header.Key
				shown.Headers = append(shown.Headers, [2]*string{&name, hexed(header.Value)})
			}
			found = append(found, shown)
		}
		if err := batch.Close(); err != nil {
			return nil, numbered(err)
		}
	}
	return found, nil
}

func (s *segment) times(asked call) ([]int64, error) {
	client, end := s.client()
	defer end()
	var found []int64
	for _, timestamp := range asked.Timestamps {
		request := kafka.OffsetRequest{Partition: int(asked.Partition), Timestamp: timestamp}
		answer, err := client.ListOffsets(deadline(), &kafka.ListOffsetsRequest{
			Topics: map[string][]kafka.OffsetRequest{asked.Topic: {request}}})
		if err != nil {
			return nil, numbered(err)
		}
		one := answer.Topics[asked.Topic][0]
		if one.Error != nil {
			return nil, numbered(one.Error)
		}
		switch timestamp {
		case -2:
			found = append(found, one.FirstOffset)
		case -1:
			found = append(found, one.LastOffset)
		default:
			offset := int64(-1)
			for number := range one.Offsets {
				offset = number
			}
			found = append(found, offset)
		}
	}
	return found, nil
}

// A member of a group: kafka-go's ConsumerGroup, since its Reader does not say what is assigned.
type segmentMember struct {
	group    *kafka.ConsumerGroup
	messages chan kafka.Message
	ended    chan struct{}
	lock     sync.Mutex
	current  *kafka.Generation
	assigned []int32
	seen     map[int]int64
	topic    string
}

func (s *segment) join(asked call) (member, error) {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: asked.Group, Brokers: []string{s.bootstrap},
		Topics: []string{asked.Topic}, HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: 6 * time.Second,
		RebalanceTimeout: 6 * time.Second, JoinGroupBackoff: 100 * time.Millisecond, StartOffset: kafka.FirstOffset})
	if err != nil {
		return nil, err
	}
	made := &segmentMember{group: group, messages: make(chan kafka.Message, 1000), ended: make(chan struct{}),
		seen: map[int]int64{}, topic: asked.Topic}
	go made.run(s.bootstrap)
	return made, nil
}

func (m *segmentMember) run(bootstrap string) {
	defer close(m.ended)
	for {
		generation, err := m.group.Next(context.Background())
		if errors.Is(err, kafka.ErrGroupClosed) {
			return
		}
		if err != nil {
			continue
		}
		m.lock.Lock()
		m.current, m.assigned = generation, []int32{}
		for _, one := range generation.Assignments[m.topic] {
			m.assigned = append(m.assigned, int32(one.ID))
			generation.Start(func(ctx context.Context) { m.follow(ctx, bootstrap, one) })
		}
		generation.Start(func(ctx context.Context) {
			<-ctx.Done()
			m.lock.Lock()
			m.assigned = nil
			m.lock.Unlock()
		})
		m.lock.Unlock()
	}
}

func (m *segmentMember) follow(ctx context.Context, bootstrap string, place kafka.PartitionAssignment) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: m.topic,
		Partition: place.ID, MaxWait: 100 * time.Millisecond})
	defer reader.Close()
	reader.SetOffset(place.Offset)
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return
		}
		m.messages <- message
	}
}

func (m *segmentMember) poll(wait time.Duration) ([][2]int64, error) {
	found := [][2]int64{}
	for end := time.After(wait); ; {
		select {
		case message := <-m.messages:
			m.seen[message.Partition] = message.Offset + 1
			found = append(found, [2]int64{int64(message.Partition), message.Offset})
		case <-end:
			return found, nil
		}
	}
}

func (m *segmentMember) assignment() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	return append([]int32{}, m.assigned...)
}

func (m *segmentMember) commit() error {
	m.lock.Lock()
	defer m.lock.Unlock()
	return numbered(m.current.CommitOffsets(map[string]map[int]int64{m.topic: m.seen}))
}

func (m *segmentMember) leave() {
	m.group.Close()
	<-m.ended
}

func numbered(err error) error {
	var answered kafka.Error
	var several kafka.WriteErrors
	var large kafka.MessageTooLargeError
	var network net.Error
	switch {
	case errors.As(err, &several):
		for _, one := range several {
			if one != nil {
				return numbered(one)
			}
		}
	case errors.As(err, &large):
		return coded{int(kafka.MessageSizeTooLarge)}
	case errors.As(err, &answered) && !(errors.As(err, &network) && network.Timeout() && answered == 0):
		return coded{int(answered)}
	}
	return err
}
