package main

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A queue is a log and the position of a group of one consumer in it.
type queue struct {
	values []string
	// cursor: everything before is acknowledged; durable: a crash does not take it further back.
	cursor, durable int
	// tokens: of answers since the broker was started, or a Pulsar consumer had the group: others
	// may be out of date.
	tokens []string
}

// Of polls, ack says what acknowledges: "" the write of the answer, "explicit" nothing, "token" an
// earlier answer that ended before the offset "through".
//
//	append value        → offset
//	read offset         → values   of the log, as in its model
//	poll                → values   those at the cursor; none: it stands at the end. A member is a
//	                               Pulsar consumer, which is told when acknowledgements are on disk
//	ack through         → ""       the token of an answer, with limit=0: it is on disk; or "outdated"
//	attach              → ""       a Pulsar consumer has the group, until it has polled
//	crash               → ""       acknowledgements that are not on disk yet may be lost
//
// A poll without an answer has taken nothing or up to its limit.
func queueModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{queue{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, one := range queueStep(state.(queue), input.(call), output.(result)) {
				states = append(states, one)
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(queue), b.(queue)
			return one.cursor == other.cursor && one.durable == other.durable &&
				slices.Equal(one.tokens, other.tokens) && slices.Equal(one.values, other.values)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState: func(state any) string {
			one := state.(queue)
			return fmt.Sprintf("%d of %d", one.cursor, len(one.values))
		},
	}
	return model.ToModel()
}

func queueStep(state queue, in call, out result) []queue {
	switch in.name {
	case "append":
		if out.known && out.Offset != len(state.values) {
			return nil
		}
		state.values = append(slices.Clip(state.values), in.Value)
		return []queue{state}
	case "read":
		if out.known && !holds(state.values, in.Offset, out.Values) {
			return nil
		}
		return []queue{state}
	case "attach":
		state.tokens = nil
		return []queue{state}
	case "crash":
		return crashed(state)
	case "ack":
		return acknowledged(state, in, out)
	case "poll":
		var states []queue
		for _, one := range beforePoll(state, in, out.known) {
			states = append(states, polled(one, in, out)...)
		}
		return states
	}
	panic("a queue has no operation " + in.name)
}

func crashed(state queue) []queue {
	var states []queue
	for cursor := state.durable; cursor <= state.cursor; cursor++ {
		one := state
		one.cursor, one.tokens = cursor, nil
		states = append(states, one)
	}
	return states
}

// beforePoll returns the queue with what a poll's token acknowledges, and without where that may be.
func beforePoll(state queue, in call, answered bool) []queue {
	if in.Ack != "token" || in.Through <= state.cursor {
		return []queue{state}
	}
	moved := state
	moved.cursor = min(in.Through, len(state.values))
	if !slices.Contains(state.tokens, in.Token) || !answered {
		return []queue{moved, state}
	}
	return []queue{moved}
}

func polled(state queue, in call, out result) []queue {
	if out.known {
		if !holds(state.values, state.cursor, out.Values) {
			return nil
		}
		if in.Ack == "" {
			state.cursor += len(out.Values)
			if in.Member != "" && len(out.Values) > 0 {
				state.durable = state.cursor
			}
		}
		if out.Token != "" {
			state.tokens = append(slices.Clip(state.tokens), out.Token)
		}
		return []queue{state}
	}
	if in.Ack != "" {
		return []queue{state}
	}
	states := []queue{}
	for taken := 0; taken <= in.Limit && state.cursor+taken <= len(state.values); taken++ {
		one := state
		one.cursor += taken
		states = append(states, one)
	}
	return states
}

func acknowledged(state queue, in call, out result) []queue {
	moved := state
	moved.cursor = max(state.cursor, min(in.Through, len(state.values)))
	switch {
	case !out.known:
		return []queue{state, moved}
	case out.Status == "outdated":
		if slices.Contains(state.tokens, in.Token) {
			return nil
		}
		// It may have been carried out before the broker ended, and was sent again by the router.
		return []queue{state, moved}
	}
	moved.durable = moved.cursor
	return []queue{moved}
}
