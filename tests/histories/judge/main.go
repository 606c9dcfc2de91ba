// Judge decides whether a history of concurrent operations is linearizable.
//
// It reads operations as lines of JSON from standard input, checks them with porcupine by the model
// that -model names, and prints one object: {"verdict":…,"operations":…}. The verdict is "legal",
// "illegal" or "undecided" if -timeout passed. An illegal history is drawn to the file of -picture.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// maxLine bounds a line of the history, in bytes.
const maxLine = 1 << 20

// operation is a line. Times are nanoseconds of one clock. An operation without an output may have
// happened at any time after its call, or never: then Return is ignored.
type operation struct {
	Client int             `json:"client"`
	Name   string          `json:"op"`
	Call   int64           `json:"call"`
	Return int64           `json:"return"`
	Input  json.RawMessage `json:"input"`
	Output json.RawMessage `json:"output"`
}

// call is the input of a model's step, whatever the operation is.
type call struct {
	name  string
	Key   string `json:"key"`
	Value string `json:"value"`
	// Values: of an append of several at once, instead of Value.
	Values   []string `json:"values"`
	Offset   int      `json:"offset"`
	Expected *int     `json:"expected"`
	Ack      string   `json:"ack"`
	Node     string   `json:"node"`
	Token    string   `json:"token"`
	Through  int      `json:"through"`
	Limit    int      `json:"limit"`

	Member      string `json:"member"`
	Epoch       int    `json:"epoch"`
	Partition   int    `json:"partition"`
	Partitions  []int  `json:"partitions"`
	Transaction string `json:"transaction"`
	Commit      bool   `json:"commit"`
}

// result is the output of a model's step.
type result struct {
	known    bool
	Offset   int      `json:"offset"`
	Revision int      `json:"revision"`
	Value    string   `json:"value"`
	Values   []string `json:"values"`
	// Offsets: of the values.
	Offsets []int  `json:"offsets"`
	Status  string `json:"status"`
	Token   string `json:"token"`

	Epoch      int   `json:"epoch"`
	Partitions []int `json:"partitions"`
}

var models = map[string]func() porcupine.Model{
	"log":    logModel,
	"window": windowModel,
	"queue":  queueModel,
	"lease":  leaseModel,
	"pool":   poolModel,
	"cursor": cursorModel,
	"bucket": bucketModel,
	"topic":  topicModel,

	"group":        groupModel,
	"transactions": transactionsModel,
}

func main() {
	name := flag.String("model", "", "log, window, queue, lease, pool, cursor, bucket, topic, group or transactions")
	timeout := flag.Duration("timeout", 20*time.Second, "undecided after this time")
	picture := flag.String("picture", "", "where the picture of an illegal history is written")
	flag.Parse()
	if err := judge(*name, *timeout, *picture); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	}
}

func judge(name string, timeout time.Duration, picture string) error {
	build, ok := models[name]
	if !ok {
		return fmt.Errorf("there is no model %q", name)
	}
	history, err := read()
	if err != nil {
		return err
	}
	switch name {
	case "log", "queue", "lease", "pool":
		history = settled(history)
	case "group":
		history = fetched(history)
	case "transactions":
		history = bounded(history)
	}
	model := build()
	found, info := porcupine.CheckOperationsVerbose(model, history, timeout)
	if found == porcupine.Illegal && picture != "" {
		if err := porcupine.VisualizePath(model, info, picture); err != nil {
			return err
		}
	}
	verdicts := map[porcupine.CheckResult]string{
		porcupine.Ok: "legal", porcupine.Illegal: "illegal", porcupine.Unknown: "undecided",
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"verdict": verdicts[found], "operations": len(history),
	})
}

// read returns the history; what has no output returns after everything else.
func read() ([]porcupine.Operation, error) {
	var history []porcupine.Operation
	var last int64 = math.MinInt64
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var line operation
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		one, err := taken(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		last = max(last, one.Call, one.Return)
		history = append(history, one)
	}
	for place := range history {
		if !history[place].Output.(result).known {
			history[place].Return = last + 1
		}
	}
	return history, lines.Err()
}

func taken(line operation) (porcupine.Operation, error) {
	input, output := call{name: line.Name}, result{}
	if err := json.Unmarshal(line.Input, &input); err != nil {
		return porcupine.Operation{}, err
	}
	if output.known = len(line.Output) > 0 && string(line.Output) != "null"; output.known {
		if err := json.Unmarshal(line.Output, &output); err != nil {
			return porcupine.Operation{}, err
		}
		if line.Return < line.Call {
			return porcupine.Operation{}, fmt.Errorf("it returns before its call")
		}
	}
	return porcupine.Operation{
		ClientId: line.Client, Input: input, Call: line.Call, Output: output, Return: line.Return,
	}, nil
}

// described says an operation in the picture.
func described(input, output any) string {
	in, out := input.(call), output.(result)
	text := in.name
	if len(in.Values) > 0 {
		text += fmt.Sprintf(" %v", in.Values)
	}
	for _, part := range []string{in.Key, in.Value, in.Ack, in.Node, in.Member, in.Transaction} {
		if part != "" {
			text += " " + part
		}
	}
	switch in.name {
	case "read", "commit", "fetch", "append", "place":
		text += fmt.Sprintf(" %d of %d at epoch %d", in.Offset, in.Partition, in.Epoch)
	case "beat":
		text += fmt.Sprintf(" %v", in.Partitions)
	case "end":
		text += fmt.Sprintf(" commit %v", in.Commit)
	case "poll", "ack":
		text += fmt.Sprintf(" through %d limit %d", in.Through, in.Limit)
	}
	if in.Expected != nil {
		text += fmt.Sprintf(" expected %d", *in.Expected)
	}
	if !out.known {
		return text + " → unknown"
	}
	return fmt.Sprintf("%s → %s %s%v offset %d revision %d epoch %d %v",
		text, out.Status, out.Value, out.Values, out.Offset, out.Revision, out.Epoch, out.Partitions)
}
