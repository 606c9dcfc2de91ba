package main

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

var seed = maphash.MakeSeed()

// A log is the values that a partition holds, by their offsets.
//
//	append value → offset          the value stands behind all others; values: all do, in order
//	read offset  → values          some from there on; none: the offset is the end, or behind it
//	end          → offset          the number of values
func logModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return []string(nil) },
		Step: func(state, input, output any) (bool, any) {
			return logStep(state.([]string), input.(call), output.(result))
		},
		Equal:             func(a, b any) bool { return slices.Equal(a.([]string), b.([]string)) },
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState:     func(state any) string { return shown(state.([]string)) },
	}
}

func logStep(values []string, in call, out result) (bool, any) {
	switch in.name {
	case "append":
		if out.known && out.Offset != len(values) {
			return false, values
		}
		return true, append(slices.Clip(values), in.appended()...)
	case "read":
		if !out.known {
			return true, values
		}
		return holds(values, in.Offset, out.Values), values
	case "end":
		return !out.known || out.Offset == len(values), values
	}
	panic("a log has no operation " + in.name)
}

// appended returns what an append adds at once.
func (in call) appended() []string {
	if len(in.Values) > 0 {
		return in.Values
	}
	return []string{in.Value}
}

// A window is a log of which the newest values are there, as many as the limit of each operation.
//
//	append value       → offset
//	read offset limit  → values    that one; none: it is not there, or not any more
//	end                → offset
func windowModel() porcupine.Model {
	model := logModel()
	model.Step = func(state, input, output any) (bool, any) {
		values, in, out := state.([]string), input.(call), output.(result)
		if in.name != "read" || !out.known {
			return logStep(values, in, out)
		}
		if in.Offset >= len(values) || in.Offset < len(values)-in.Limit {
			return len(out.Values) == 0, values
		}
		return slices.Equal(values[in.Offset:in.Offset+1], out.Values), values
	}
	return model
}

// holds says whether the values at an offset are these; none: the offset is not before the end.
func holds(values []string, offset int, found []string) bool {
	if len(found) == 0 {
		return offset >= len(values)
	}
	end := offset + len(found)
	return end <= len(values) && slices.Equal(values[offset:end], found)
}

// settled settles appends without an answer, which else could stand at every place of the search.
// Every value is appended once, and the last operation of a history reads the whole log: an append
// whose value is there is pinned to its offset, and one whose value is not there never happened.
func settled(history []porcupine.Operation) []porcupine.Operation {
	places := map[string]int{}
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if in.name == "read" {
			for index, value := range out.Values {
				places[value] = in.Offset + index
			}
		}
	}
	var left []porcupine.Operation
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if in.name == "append" && !out.known {
			offset, read := places[in.appended()[0]]
			if !read {
				continue
			}
			one.Output = result{known: true, Offset: offset, Status: "as read"}
		}
		left = append(left, one)
	}
	return left
}

func shown(values []string) string {
	const most = 5
	if len(values) > most {
		return fmt.Sprintf("%d values, the last %v", len(values), values[len(values)-most:])
	}
	return fmt.Sprint(values)
}
