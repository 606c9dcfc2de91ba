// Does with a Kafka client in Go what the scenarios ask, a line of JSON for each call and each answer.
// Usage: golang franz-go|kafka-go BOOTSTRAP. A failure that a broker answered is {"code": N}, any other {"error": TEXT}.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const patience = 20 * time.Second

type record struct {
	Offset    int64        `json:"offset"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp int64        `json:"timestamp"`
}

type call struct {
	Op         string   `json:"op"`
	Topic      string   `json:"topic"`
	Partition  int32    `json:"partition"`
	Partitions int32    `json:"partitions"`
	Codec      string   `json:"codec"`
	Idempotent bool     `json:"idempotent"`
	Records    []record `json:"records"`
	Offset     int64    `json:"offset"`
	Count      int      `json:"count"`
	Timestamps []int64  `json:"timestamps"`
	Member     string   `json:"member"`
	Group      string   `json:"group"`
	Assignor   string   `json:"assignor"`
}

// What both libraries do; a broker's error is a coded one.
type library interface {
	topics() ([]string, error)
	create(topic string, partitions int32) error
	remove(topic string) error
	produce(asked call) ([]int64, error)
	read(asked call) ([]record, error)
	times(asked call) ([]int64, error)
	join(asked call) (member, error)
}

// A member of a group.
type member interface {
	poll(wait time.Duration) ([][2]int64, error)
	assignment() []int32
	commit() error
	leave()
}

type coded struct{ code int }

func (e coded) Error() string { return fmt.Sprintf("error %d", e.code) }

func main() {
	libraries := map[string]func(string) library{"franz-go": newFranz, "kafka-go": newSegment}
	used := libraries[os.Args[1]](os.Args[2])
	members := map[string]member{}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var asked call
		answer := map[string]any{}
		if err = json.Unmarshal(line, &asked); err == nil {
			answer["ok"], err = answered(used, members, asked)
		}
		if failure, ok := err.(coded); ok {
			answer = map[string]any{"code": failure.code}
		} else if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
	for _, one := range members {
		one.leave()
	}
}

func answered(used library, members map[string]member, asked call) (any, error) {
	switch asked.Op {
	case "write transactions":
		return used.(*franz).writeTransactions(asked)
	case "copy transactions":
		return used.(*franz).copyTransactions(asked)
	case "committed":
		return used.(*franz).committed(asked)
	case "topics":
		return used.topics()
	case "create":
		return nil, used.create(asked.Topic, asked.Partitions)
	case "delete":
		return nil, used.remove(asked.Topic)
	case "produce":
		return used.produce(asked)
	case "read":
		return used.read(asked)
	case "times":
		return used.times(asked)
	case "ends":
		asked.Timestamps = []int64{-2, -1}
		return used.times(asked)
	case "join":
		joined, err := used.join(asked)
		members[asked.Member] = joined
		return nil, err
	case "poll":
		return members[asked.Member].poll(time.Duration(asked.Count) * time.Millisecond)
	case "assignment":
		return members[asked.Member].assignment(), nil
	case "commit":
		return nil, members[asked.Member].commit()
	case "leave":
		members[asked.Member].leave()
		delete(members, asked.Member)
		return nil, nil
	}
	return nil, fmt.Errorf("unknown call %s", asked.Op)
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	value, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	if value == nil {
		value = []byte{}
	}
	return value
}

func hexed(value []byte) *string {
	if value == nil {
		return nil
	}
	text := hex.EncodeToString(value)
	return &text
}
