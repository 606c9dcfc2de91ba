package main

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Whether a message is acknowledged: maybe, if a crash may take it back.
const (
	unacked = iota
	maybeAcked
	acked
)

type pooled struct {
	value  string
	offset int
	acked  int
	// holder: the consumer that was given it last; "": none has it.
	holder string
	// left: the holder has lost its connection, or its turn, so that others may be given it.
	left bool
}

// A pool is messages of a log that the consumers of a subscription share.
type pool struct {
	values   []string
	messages []pooled
	// unseen: a lost consumer may hold what it never said that it was given.
	unseen bool
	// given: how often each consumer was given something.
	given map[string]int
}

// A message is with one consumer at a time, and never comes again once it is acknowledged. Messages
// of one key are given in order, to a consumer only if it has all before that are not acknowledged.
//
//	append key value → offset
//	read offset      → values   of the log, as in its model
//	hold member value → ""      it is given the message; its calls count up the offset
//	ack value        → ""       it is on disk
//	release member   → ""       it has nothing any more: it was closed, or gave all back
//	lose member      → ""       what it has may be given to others from now on; with limit=1 it may
//	                            be given more that it does not say
//	none             → ""       all messages are with a consumer, or acknowledged
//	crash            → ""       all have lost everything, and what is not on disk may be lost
//	drained          → ""       all messages are acknowledged
func poolModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{pool{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, one := range poolStep(state.(pool), input.(call), output.(result)) {
				states = append(states, one)
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(pool), b.(pool)
			return one.unseen == other.unseen && slices.Equal(one.values, other.values) &&
				slices.Equal(one.messages, other.messages) && maps.Equal(one.given, other.given)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
	return model.ToModel()
}

// byKey parts a history into the log and the messages of each key: what is done to one key says
// nothing of another. A consumer is left out where it was never given anything.
func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	keys := map[string]string{}
	var log []porcupine.Operation
	for _, one := range history {
		in := one.Input.(call)
		if in.name == "append" {
			keys[in.Value] = in.Key
		}
		if in.name == "append" || in.name == "read" {
			log = append(log, one)
		}
	}
	keyOf := func(in call) string {
		if key, appended := keys[in.Value]; appended {
			return key
		}
		return "never appended: " + in.Value
	}
	parts := map[string][]porcupine.Operation{}
	members := map[[2]string][]int{}
	for _, one := range history {
		if in := one.Input.(call); in.Value != "" {
			parts[keyOf(in)] = nil
			if in.name == "hold" {
				at := [2]string{keyOf(in), in.Member}
				members[at] = append(members[at], in.Offset)
			}
		}
	}
	for _, places := range members {
		slices.Sort(places)
	}
	for _, one := range history {
		for key := range parts {
			in := one.Input.(call)
			places, given := members[[2]string{key, in.Member}]
			switch in.name {
			case "read":
				continue
			case "append", "hold", "ack":
				if keyOf(in) != key {
					continue
				}
				if in.name == "append" {
					in.name = "arrive"
				} else if in.name == "hold" {
					in.Offset = slices.Index(places, in.Offset)
				}
			case "release":
				if !given {
					continue
				}
			case "lose":
				if !given && in.Limit == 0 {
					continue
				}
			}
			part := one
			part.Input = in
			parts[key] = append(parts[key], part)
		}
	}
	found := [][]porcupine.Operation{log}
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		found = append(found, parts[key])
	}
	return found
}

func poolStep(state pool, in call, out result) []pool {
	switch in.name {
	case "append", "read":
		legal, values := logStep(state.values, in, out)
		if !legal {
			return nil
		}
		state.values = values.([]string)
		return []pool{state}
	case "arrive":
		if count := len(state.messages); count > 0 && state.messages[count-1].offset >= out.Offset {
			return nil
		}
		state.messages = append(slices.Clip(state.messages), pooled{value: in.Value, offset: out.Offset})
		return []pool{state}
	case "none", "drained":
		for _, one := range state.messages {
			if one.acked == unacked && (in.name == "drained" || one.holder == "" && !state.unseen) {
				return nil
			}
		}
		return []pool{state}
	case "hold":
		return state.held(in)
	case "ack":
		return state.acknowledged(in, out)
	}
	next := state
	next.messages = slices.Clone(state.messages)
	for place := range next.messages {
		one := &next.messages[place]
		switch {
		case in.name == "crash", in.name == "release" && one.holder == in.Member:
			one.holder, one.left = "", false
		case in.name == "lose" && one.holder == in.Member:
			one.left = true
		}
	}
	switch in.name {
	case "release":
		return []pool{next}
	case "lose":
		next.unseen = state.unseen || in.Limit > 0
		return []pool{next}
	case "crash":
		next.unseen = false
		return next.without(0)
	}
	panic("a pool has no operation " + in.name)
}

func (state pool) held(in call) []pool {
	if state.given[in.Member] != in.Offset {
		return nil
	}
	for place, one := range state.messages {
		if one.value != in.Value {
			if one.acked == unacked && (one.holder != in.Member || one.left) {
				return nil
			}
			continue
		}
		if one.acked != unacked || one.holder != "" && !one.left {
			return nil
		}
		// Of one key all are with one consumer.
		for _, later := range state.messages[place+1:] {
			if later.acked == unacked && later.holder != "" && !later.left {
				return nil
			}
		}
		next := state
		next.messages = slices.Clone(state.messages)
		next.messages[place].holder, next.messages[place].left = in.Member, false
		next.given = maps.Clone(state.given)
		if next.given == nil {
			next.given = map[string]int{}
		}
		next.given[in.Member]++
		return []pool{next}
	}
	return nil
}

func (state pool) acknowledged(in call, out result) []pool {
	place := slices.IndexFunc(state.messages, func(one pooled) bool { return one.value == in.Value })
	if place < 0 {
		return nil
	}
	next := state
	next.messages = slices.Clone(state.messages)
	one := &next.messages[place]
	if out.known {
		one.acked, one.holder, one.left = acked, "", false
		return []pool{next}
	}
	if one.acked != unacked {
		return []pool{state}
	}
	one.acked, one.holder, one.left = maybeAcked, "", false
	return []pool{state, next}
}

// without returns the pool with and without each acknowledgement from a place on that a crash may
// take back.
func (state pool) without(from int) []pool {
	for place := from; place < len(state.messages); place++ {
		if state.messages[place].acked == maybeAcked {
			lost := state
			lost.messages = slices.Clone(state.messages)
			lost.messages[place].acked = unacked
			return append(state.without(place+1), lost.without(place+1)...)
		}
	}
	return []pool{state}
}
