package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

const answerPatience = 30 * time.Second

const firstPatience = 20 * time.Second

// What to send, as a line of JSON on standard input. Each connection sends its requests in turn until the time is over,
// or until it has received enough.
type order struct {
	Address string     `json:"address"`
	Seconds float64    `json:"seconds"`
	Enough  int        `json:"enough"` // bytes of bodies, of each connection; 0: only the time ends it
	Least   int        `json:"least"`  // a body of fewer bytes is an error
	Sends   [][][]byte `json:"sends"`  // of each connection its requests
	// Each connection has its first answer before all begin; then a line is written, and one is waited for.
	First bool `json:"first"`
}

// What came back: the milliseconds of each answer that was a 200.
type result struct {
	Latencies []float64 `json:"latencies"`
	Errors    int       `json:"errors"`
	Failure   string    `json:"failure"` // the first of them
	Bytes     int       `json:"bytes"`   // of their bodies
	Seconds   float64   `json:"seconds"`
}

func load(in io.Reader, out io.Writer) error {
	var asked order
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &asked); err != nil {
		return err
	}
	streams := make([]net.Conn, len(asked.Sends))
	for n := range streams {
		stream, err := net.DialTimeout("tcp", asked.Address, answerPatience)
		if err != nil {
			return err
		}
		defer stream.Close()
		streams[n] = stream
	}
	if asked.First {
		first := asked
		first.Enough = max(1, asked.Least)
		for n, part := range converseAll(streams, first, time.Now().Add(firstPatience)) {
			if len(part.Latencies) == 0 {
				return fmt.Errorf("connection %d has no first answer: %s", n, part.Failure)
			}
		}
		fmt.Fprintln(out)
		if _, err := lines.ReadBytes('\n'); err != nil {
			return err
		}
	}
	began := time.Now()
	parts := converseAll(streams, asked, began.Add(time.Duration(asked.Seconds*float64(time.Second))))
	all := result{Latencies: []float64{}, Seconds: time.Since(began).Seconds()}
	for _, part := range parts {
		all.Latencies = append(all.Latencies, part.Latencies...)
		all.Errors += part.Errors
		all.Bytes += part.Bytes
		if all.Failure == "" {
			all.Failure = part.Failure
		}
	}
	return json.NewEncoder(out).Encode(all)
}

func converseAll(streams []net.Conn, asked order, until time.Time) []result {
	parts := make([]result, len(streams))
	var running sync.WaitGroup
	for n, stream := range streams {
		running.Go(func() { parts[n] = converse(stream, asked, asked.Sends[n], until) })
	}
	running.Wait()
	return parts
}

// Sends the requests in turn, each when the last is answered.
func converse(stream net.Conn, asked order, sends [][]byte, until time.Time) result {
	var had result
	reader := bufio.NewReaderSize(stream, 64<<10)
	for n := 0; asked.Enough == 0 || had.Bytes < asked.Enough; n++ {
		began := time.Now()
		if !began.Before(until) {
			break
		}
		stream.SetDeadline(until.Add(answerPatience))
		_, err := stream.Write(sends[n%len(sends)])
		var size int
		if err == nil {
			size, err = receive(reader)
		}
		if err == nil && size < asked.Least {
			err = fmt.Errorf("a body of %d bytes", size)
		}
		if err == nil {
			had.Latencies = append(had.Latencies, float64(time.Since(began).Microseconds())/1000)
			had.Bytes += size
			continue
		}
		had.Errors++
		if had.Failure == "" {
			had.Failure = err.Error()
		}
		if size < 0 {
			break
		}
	}
	return had
}

// Reads an answer and returns the length of its body; -1: the connection is of no use any more.
func receive(reader *bufio.Reader) (int, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return -1, err
	}
	failure := error(nil)
	if fields := bytes.Fields(line); len(fields) < 2 || string(fields[1]) != "200" {
		failure = fmt.Errorf("%s", bytes.TrimSpace(line))
	}
	length := 0
	for {
		if line, err = reader.ReadSlice('\n'); err != nil {
			return -1, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return -1, err
			}
		}
	}
	if _, err = reader.Discard(length); err != nil {
		return -1, err
	}
	return length, failure
}
