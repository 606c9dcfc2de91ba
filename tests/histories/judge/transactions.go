package main

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// written is a message of a transaction, which is named by its transactional id and a number.
type written struct {
	partition   int
	transaction string
	value       string
	// offset: where it stands; -1: not known.
	offset int
}

// Transactions are the messages of several partitions, and what became of their transactions.
type transactions struct {
	log []written
	// decided: which transactions were committed (true) or aborted. The others are open.
	decided map[string]bool
	// ids: the transactional ids of transactions that have messages or positions.
	ids map[string]string
	// placed: what a transaction's end makes the position of its transactional id's group.
	placed map[string]int
	// positions: those of the groups, one for each transactional id.
	positions map[string]int
}

// A reader of what is committed sees the messages of a partition before the first of an open
// transaction, without those of aborted ones: a transaction on all its partitions at once.
//
//	init key                          → ""       aborts what the transactional id has open
//	append key transaction partition value → offset, or "refused"
//	place key transaction offset      → ""       or "refused"
//	end key transaction commit        → ""       or "refused"
//	fetch key                         → offset   the group's position, -1: none
//	read partition                    → values   all that is committed
func transactionsModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{transactions{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, one := range transactionsStep(state.(transactions), input.(call), output.(result)) {
				states = append(states, one)
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(transactions), b.(transactions)
			return slices.Equal(one.log, other.log) && maps.Equal(one.decided, other.decided) &&
				maps.Equal(one.placed, other.placed) && maps.Equal(one.positions, other.positions)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState: func(state any) string {
			one := state.(transactions)
			return fmt.Sprintf("%v %v %v", shown(one.committed(0)), shown(one.committed(1)), one.positions)
		},
	}
	return model.ToModel()
}

func transactionsStep(state transactions, in call, out result) []transactions {
	refused := out.known && out.Status == "refused"
	_, decided := state.decided[in.Transaction]
	var next transactions
	switch in.name {
	case "read":
		if out.known && !slices.Equal(state.committed(in.Partition), out.Values) {
			return nil
		}
		return []transactions{state}
	case "fetch":
		if out.known && state.position(in.Key) != out.Offset {
			return nil
		}
		return []transactions{state}
	case "init":
		next = state.copied()
		for transaction, id := range state.ids {
			if _, ended := state.decided[transaction]; id == in.Key && !ended {
				next.decided[transaction] = false
			}
		}
	case "append", "place", "end":
		if refused {
			return []transactions{state}
		}
		if decided {
			if out.known {
				return nil
			}
			return []transactions{state}
		}
		next = state.copied()
		if in.name == "append" {
			one := written{in.Partition, in.Transaction, in.Value, -1}
			if out.known {
				one.offset = out.Offset
				if state.end(in.Partition) > out.Offset {
					return nil
				}
			}
			next.log = append(slices.Clip(next.log), one)
			next.ids[in.Transaction] = in.Key
		} else if in.name == "place" {
			next.placed[in.Transaction] = in.Offset
			next.ids[in.Transaction] = in.Key
		} else {
			next.decided[in.Transaction] = in.Commit
			if offset, placed := state.placed[in.Transaction]; placed && in.Commit {
				next.positions[in.Key] = offset
			}
		}
	default:
		panic("transactions have no operation " + in.name)
	}
	if !out.known {
		return []transactions{state, next}
	}
	return []transactions{next}
}

// fenced bounds when a call without an answer may have happened, which else could stand at every
// place of the search: never after a producer that began later has taken its transactional id over.
func fenced(history []porcupine.Operation) []porcupine.Operation {
	for place, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if out.known || in.name != "append" && in.name != "place" && in.name != "end" {
			continue
		}
		for _, other := range history {
			begin, answer := other.Input.(call), other.Output.(result)
			if begin.name == "init" && begin.Key == in.Key && answer.known && other.Call > one.Call {
				history[place].Return = min(history[place].Return, other.Return)
			}
		}
	}
	return history
}

func (state transactions) copied() transactions {
	next := transactions{
		state.log, map[string]bool{}, map[string]string{}, map[string]int{}, map[string]int{},
	}
	maps.Copy(next.decided, state.decided)
	maps.Copy(next.ids, state.ids)
	maps.Copy(next.placed, state.placed)
	maps.Copy(next.positions, state.positions)
	return next
}

// position returns what a group committed last, -1: nothing.
func (state transactions) position(key string) int {
	if offset, found := state.positions[key]; found {
		return offset
	}
	return -1
}

// end returns an offset before which no message is appended any more to a partition: markers stand
// between messages, and each append has to come where its offset says.
func (state transactions) end(partition int) int {
	for _, one := range slices.Backward(state.log) {
		if one.partition == partition && one.offset >= 0 {
			return one.offset + 1
		}
	}
	return 0
}

// committed returns what a reader of a partition sees.
func (state transactions) committed(partition int) []string {
	var values []string
	for _, one := range state.log {
		if one.partition != partition {
			continue
		}
		committed, ended := state.decided[one.transaction]
		if !ended {
			break
		}
		if committed {
			values = append(values, one.value)
		}
	}
	return values
}
