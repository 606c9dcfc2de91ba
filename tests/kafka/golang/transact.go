package main

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func (f *franz) transactional(id string) (*kgo.Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.TransactionalID(id),
		kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	// The id is taken, and a producer before is fenced, before anything is written.
	_, _, err = client.ProducerID(deadline())
	return client, err
}

func write(client *kgo.Client, asked call, value string) error {
	return client.ProduceSync(deadline(), &kgo.Record{Topic: asked.Topic, Value: []byte(value)}).FirstErr()
}

// Writes transactions: one is committed, one aborted, and a producer is fenced. Returns whether it was.
func (f *franz) writeTransactions(asked call) (bool, error) {
	first, err := f.transactional(asked.Group)
	if err != nil {
		return false, err
	}
	defer first.Close()
	for _, one := range []struct {
		value string
		end   kgo.TransactionEndTry
	}{{"a", kgo.TryCommit}, {"b", kgo.TryAbort}, {"c", kgo.TryCommit}} {
		if err := first.BeginTransaction(); err != nil {
			return false, err
		}
		if err := write(first, asked, one.value); err != nil {
			return false, err
		}
		if err := first.EndTransaction(deadline(), one.end); err != nil {
			return false, err
		}
	}
	if err := first.BeginTransaction(); err != nil {
		return false, err
	}
	if err := write(first, asked, "d"); err != nil {
		return false, err
	}
	second, err := f.transactional(asked.Group)
	if err != nil {
		return false, err
	}
	defer second.Close()
	fenced := first.EndTransaction(deadline(), kgo.TryCommit) != nil
	if err := second.BeginTransaction(); err != nil {
		return fenced, err
	}
	if err := write(second, asked, "e"); err != nil {
		return fenced, err
	}
	return fenced, second.EndTransaction(deadline(), kgo.TryCommit)
}

// Copies records of a topic to another one, exactly once: consume, transform, produce. The first transaction is
// aborted, so that its records come again. Returns how often a transaction was committed.
func (f *franz) copyTransactions(asked call) (int, error) {
	options := []kgo.Opt{kgo.SeedBrokers(f.bootstrap), kgo.TransactionalID(asked.Group),
		kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if asked.Assignor == "server" {
		options = append(options, kgo.ServerSideBalancer())
	}
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	commits, aborted := 0, false
	for copied, until := 0, deadline(); copied < asked.Count; {
		fetched := session.PollRecords(until, 2)
		if err := fetched.Err(); err != nil {
			return commits, named(err)
		}
		if err := session.Begin(); err != nil {
			return commits, err
		}
		count := 0
		fetched.EachRecord(func(one *kgo.Record) {
			value := append([]byte("copied "), one.Value...)
			session.Produce(until, &kgo.Record{Topic: asked.Member, Value: value}, nil)
			count++
		})
		end := kgo.TransactionEndTry(aborted)
		committed, err := session.End(until, end)
		if err != nil {
			return commits, named(err)
		}
		aborted = true
		if committed {
			copied += count
			commits++
		}
	}
	return commits, nil
}

// Returns the values that a committed reader gets from the beginning of partition 0 on, until there are enough.
func (f *franz) committed(asked call) ([]string, error) {
	start := map[string]map[int32]kgo.Offset{asked.Topic: {0: kgo.NewOffset().AtStart()}}
	client := must(kgo.NewClient(kgo.SeedBrokers(f.bootstrap), kgo.ConsumePartitions(start),
		kgo.FetchIsolationLevel(kgo.ReadCommitted())))
	defer client.Close()
	found := []string{}
	for context := deadline(); len(found) < asked.Count; {
		fetched := client.PollFetches(context)
		if err := fetched.Err(); err != nil {
			return nil, fmt.Errorf("%v of %d: %w", found, asked.Count, err)
		}
		fetched.EachRecord(func(one *kgo.Record) { found = append(found, string(one.Value)) })
	}
	return found, nil
}
