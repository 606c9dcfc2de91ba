// Runs scenarios beside one another, each on a connection and with streams of its own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	patience = 60 * time.Second
	together = 12
)

// What a scenario works with.
type client struct {
	ctx context.Context
	nc  *nats.Conn
	js  jetstream.JetStream
	// What the API answered, as it came.
	replies []json.RawMessage
	keeping sync.Mutex
}

func (c *client) keep(subject string, payload []byte, _ nats.Header) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if strings.HasPrefix(subject, "$JS.API.") && !strings.HasPrefix(subject, "$JS.API.DIRECT.") && json.Valid(payload) {
		c.replies = append(c.replies, append([]byte{}, payload...))
	}
}

// A scenario returns what its user saw, as plain values.
type scenario func(*client) (any, error)

var scenarios = map[string]scenario{}

func run(url string, names []string) {
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
		sort.Strings(names)
	}
	var all sync.WaitGroup
	var printing sync.Mutex
	slots := make(chan bool, together)
	for _, name := range names {
		all.Add(1)
		go func() {
			defer all.Done()
			slots <- true
			answer := map[string]any{"name": name}
			shows, replies, err := played(url, scenarios[name])
			answer["replies"] = replies
			if err != nil {
				answer["error"] = err.Error()
			} else {
				answer["shows"] = shows
			}
			<-slots
			printing.Lock()
			defer printing.Unlock()
			check(json.NewEncoder(os.Stdout).Encode(answer))
		}()
	}
	all.Wait()
}

func played(url string, one scenario) (shows any, replies []json.RawMessage, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%v\n%s", cause, debug.Stack())
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	defer nc.Close()
	c := &client{ctx: ctx, nc: nc}
	c.js, err = jetstream.New(nc, jetstream.WithClientTrace(&jetstream.ClientTrace{ResponseReceived: c.keep}))
	if err != nil {
		return nil, nil, err
	}
	shows, err = one(c)
	return shows, c.replies, err
}

// name returns a name that no other stream has.
func name(prefix string) string {
	return prefix + "-" + nuid.Next()
}

// outcome returns "ok", the code of the server's error, or the text of another one.
func outcome(err error) any {
	var ours *jetstream.APIError
	var jsm api.ApiError
	var old *nats.APIError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &ours):
		return []int{ours.Code, int(ours.ErrorCode)}
	case errors.As(err, &old):
		return []int{old.Code, int(old.ErrorCode)}
	case errors.As(err, &jsm):
		return []int{jsm.Code, int(jsm.ErrCode)}
	}
	return err.Error()
}

// must panics with an error, which ends the scenario.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// got returns a value, or panics with the error.
func got[T any](value T, err error) T {
	must(err)
	return value
}
