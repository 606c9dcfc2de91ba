package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxBodyBytes    = 1 << 20
	commitInterval  = 500 * time.Millisecond
	fetchedTogether = 1000
	pollPatience    = 3 * time.Second
)

// A bridge as such bridges are: a group's consumer lives in this process, hands out one record a request, and commits
// on its own what it handed out.
type server struct {
	bootstrap string
	producer  *kgo.Client
	lock      sync.Mutex
	groups    map[[2]string]*group // by topic and group
}

type group struct {
	client  *kgo.Client
	records chan *kgo.Record
}

// What is answered for a record; JSON has the bytes in base64.
type message struct {
	Key       []byte `json:"key"`
	Value     []byte `json:"value"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

type stored struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

// Serves until it is terminated.
func bridge(address, bootstrap string) error {
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), kgo.AllowAutoTopicCreation())
	if err != nil {
		return err
	}
	bridge := &server{bootstrap: bootstrap, producer: producer, groups: map[[2]string]*group{}}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	routes.HandleFunc("POST /topics/{topic}/messages", bridge.produce)
	routes.HandleFunc("GET /topics/{topic}/messages", bridge.consume)
	return http.ListenAndServe(address, routes)
}

func (s *server) produce(answer http.ResponseWriter, request *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(answer, request.Body, maxBodyBytes))
	if err == nil {
		sent := &kgo.Record{Topic: request.PathValue("topic"), Value: value}
		if sent, err = s.producer.ProduceSync(request.Context(), sent).First(); err == nil {
			write(answer, stored{sent.Partition, sent.Offset})
			return
		}
	}
	http.Error(answer, err.Error(), http.StatusServiceUnavailable)
}

// Answers one record, or 408 if there is none in time: ?group=g&timeout=milliseconds.
func (s *server) consume(answer http.ResponseWriter, request *http.Request) {
	patience := pollPatience
	if given := request.FormValue("timeout"); given != "" {
		milliseconds, err := strconv.Atoi(given)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		patience = time.Duration(milliseconds) * time.Millisecond
	}
	group, err := s.group(request.PathValue("topic"), request.FormValue("group"))
	if err != nil {
		http.Error(answer, err.Error(), http.StatusServiceUnavailable)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case record := <-group.records:
		group.client.MarkCommitRecords(record)
		write(answer, message{record.Key, record.Value, record.Partition, record.Offset})
	case <-timer.C:
		http.Error(answer, "there is no message", http.StatusRequestTimeout)
	case <-request.Context().Done():
	}
}

// Returns the consumer of a group, which is made and begins to fetch if there is none.
func (s *server) group(topic, name string) (*group, error) {
	if name == "" {
		return nil, fmt.Errorf("group is missing")
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	key := [2]string{topic, name}
	if known := s.groups[key]; known != nil {
		return known, nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.bootstrap), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitMarks(),
		kgo.AutoCommitInterval(commitInterval))
	if err != nil {
		return nil, err
	}
	made := &group{client, make(chan *kgo.Record)}
	s.groups[key] = made
	go made.fetch()
	return made, nil
}

func (g *group) fetch() {
	for {
		fetched := g.client.PollRecords(context.Background(), fetchedTogether)
		if fetched.IsClientClosed() {
			return
		}
		fetched.EachError(func(topic string, partition int32, err error) {
			fmt.Fprintln(os.Stderr, topic, partition, err)
		})
		fetched.EachRecord(func(record *kgo.Record) { g.records <- record })
	}
}

func write(answer http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
		return
	}
	answer.Header().Set("Content-Type", "application/json")
	answer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	answer.Write(body)
}
