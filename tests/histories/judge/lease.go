package main

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A lease is a log and a group of several consumers that take from it, over several nodes. A poll
// has the partition for itself from its call to its answer: no two have the same messages, and each
// takes what comes next.
type lease struct {
	values []string
	// cursor: everything before was taken; low: no fault takes it further back, since it was
	// confirmed, or another node began to read there.
	cursor, low int
	node        string
}

// Polls and acknowledgements have a node; ack is as for a queue.
//
//	append value → offset
//	read offset  → values   of the log, as in its model
//	poll         → values   those at the cursor; none: another consumer has the partition
//	ack through  → ""       it is stored; or "outdated"
//	fault        → ""       grants did not stand: what was not confirmed may come again
//	drained      → ""       all was taken
func leaseModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{lease{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, one := range leaseStep(state.(lease), input.(call), output.(result)) {
				states = append(states, one)
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(lease), b.(lease)
			return one.cursor == other.cursor && one.low == other.low &&
				one.node == other.node && slices.Equal(one.values, other.values)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState: func(state any) string {
			one := state.(lease)
			return fmt.Sprintf("%d of %d, not before %d", one.cursor, len(one.values), one.low)
		},
	}
	return model.ToModel()
}

func leaseStep(state lease, in call, out result) []lease {
	switch in.name {
	case "append":
		if out.known && out.Offset != len(state.values) {
			return nil
		}
		state.values = append(slices.Clip(state.values), in.Value)
		return []lease{state}
	case "read":
		if out.known && !holds(state.values, in.Offset, out.Values) {
			return nil
		}
		return []lease{state}
	case "fault":
		var states []lease
		for cursor := state.low; cursor <= state.cursor; cursor++ {
			one := state
			one.cursor = cursor
			states = append(states, one)
		}
		return states
	case "drained":
		if state.cursor != len(state.values) {
			return nil
		}
		return []lease{state}
	case "ack":
		moved := movedTo(state, in.Through)
		if !out.known || out.Status == "outdated" {
			return []lease{state, moved}
		}
		moved.low = moved.cursor
		return []lease{moved}
	case "poll":
		states := leasePolled(state, in, out)
		if in.Ack == "token" && in.Through > state.cursor {
			states = append(states, leasePolled(movedTo(state, in.Through), in, out)...)
		}
		return states
	}
	panic("a lease has no operation " + in.name)
}

func movedTo(state lease, through int) lease {
	state.cursor = max(state.cursor, min(through, len(state.values)))
	return state
}

func leasePolled(state lease, in call, out result) []lease {
	if out.known {
		if len(out.Values) == 0 {
			return []lease{state}
		}
		if !holds(state.values, state.cursor, out.Values) {
			return nil
		}
		if in.Node != state.node {
			state.low, state.node = state.cursor, in.Node
		}
		if in.Ack == "" {
			state.cursor += len(out.Values)
		}
		return []lease{state}
	}
	states := []lease{state}
	for taken := 1; in.Ack == "" && taken <= in.Limit && state.cursor+taken <= len(state.values); taken++ {
		one := state
		if in.Node != state.node {
			one.low, one.node = state.cursor, in.Node
		}
		one.cursor += taken
		states = append(states, one)
	}
	return states
}
