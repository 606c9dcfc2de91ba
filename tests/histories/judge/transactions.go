package main

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// slackMs is how much earlier than its time a transaction may end: clocks are read in milliseconds.
const slackMs = 5

// written is a message of a transaction, which is named by its transactional id and a number.
type written struct {
	partition   int
	transaction string
	value       string
	// offset: where it stands; -1: not known.
	offset int
}

// Transactions are the messages of several partitions, in the order of these, and what became of their transactions.
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
	// taken: which transaction acknowledged a message of a group.
	taken map[groupMessage]string
	// due: transactions whose time is over; each may be aborted before any operation.
	due map[string]bool
}

type groupMessage struct{ key, value string }

// A reader of what is committed sees the messages of a partition before the first of an open
// transaction, without those of aborted ones: a transaction on all its partitions at once. What a
// transaction that is open or committed acknowledged is not acknowledged again, nor sent.
//
//	init key                          → ""       aborts what the transactional id has open
//	append key transaction partition value → offset, or "refused"
//	place key transaction offset      → ""       or "refused"
//	take key transaction value        → ""       acknowledges it; "conflict": it is, or "refused"
//	end key transaction commit        → ""       or "refused"; "gone": it has ended
//	expire transaction                → ""       it may be aborted from then on, if it is open
//	fetch key                         → offset   the group's position, -1: none
//	read partition                    → values   all that is committed
//	acked key                         → values   of the group, in committed transactions
//	came key value                    → ""       it was sent to a consumer of the group
func transactionsModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{transactions{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, before := range state.(transactions).timedOut() {
				for _, one := range transactionsStep(before, input.(call), output.(result)) {
					states = append(states, one)
				}
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(transactions), b.(transactions)
			return slices.Equal(one.log, other.log) && maps.Equal(one.decided, other.decided) &&
				maps.Equal(one.placed, other.placed) && maps.Equal(one.positions, other.positions) &&
				maps.Equal(one.taken, other.taken) && maps.Equal(one.due, other.due)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState: func(state any) string {
			one := state.(transactions)
			return fmt.Sprintf("%v %v %v %v", shown(one.committed(0)), shown(one.committed(1)),
				one.positions, one.taken)
		},
	}
	return model.ToModel()
}

func transactionsStep(state transactions, in call, out result) []transactions {
	refused := out.known && out.Status == "refused"
	_, decided := state.decided[in.Transaction]
	message := groupMessage{in.Key, in.Value}
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
	case "acked":
		if out.known && !slices.Equal(state.acked(in.Key), out.Values) {
			return nil
		}
		return []transactions{state}
	case "came":
		if !state.free(message) {
			return nil
		}
		return []transactions{state}
	case "expire":
		next = state.copied()
		if !decided {
			next.due[in.Transaction] = true
		}
	case "init":
		next = state.copied()
		for transaction, id := range state.ids {
			if _, ended := state.decided[transaction]; id == in.Key && !ended {
				next.decided[transaction] = false
			}
		}
	case "append", "place", "take", "end":
		if refused || out.Status == "gone" && decided || out.Status == "conflict" && !state.free(message) {
			return []transactions{state}
		}
		if out.Status != "" {
			return nil
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
			// By partition, so that the same logs are the same state.
			place := len(next.log)
			for place > 0 && next.log[place-1].partition > in.Partition {
				place--
			}
			next.log = slices.Insert(slices.Clone(next.log), place, one)
			next.ids[in.Transaction] = in.Key
		} else if in.name == "place" {
			next.placed[in.Transaction] = in.Offset
			next.ids[in.Transaction] = in.Key
		} else if in.name == "take" && state.free(message) {
			next.taken[message] = in.Transaction
		} else if in.name == "take" {
			if out.known {
				return nil
			}
			return []transactions{state}
		} else {
			next.decided[in.Transaction] = in.Commit
			delete(next.due, in.Transaction)
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

// bounded settles calls without an answer, which else could stand at every place of the search. An
// append whose value is read was made before that, at the offset that the read says. Others happen
// never after a producer that began later has taken their transactional id over, or after their
// transaction ended; a transaction with a time, given as a limit in ms when it began, is due after
// that.
func bounded(history []porcupine.Operation) []porcupine.Operation {
	ends, read := map[string]int64{}, map[string]porcupine.Operation{}
	offsets := map[string]int{}
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if end, there := ends[in.Transaction]; in.name == "end" && out.known && out.Status != "refused" && (!there || one.Return < end) {
			ends[in.Transaction] = one.Return
		}
		for place, offset := range out.Offsets {
			value := out.Values[place]
			if before, there := read[value]; !there || one.Return < before.Return {
				read[value], offsets[value] = one, offset
			}
		}
	}
	var left []porcupine.Operation
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if in.name == "begin" {
			in.name = "expire"
			one.Call += (int64(in.Limit) - slackMs) * 1e6
			one.Input, one.Return = in, one.Call
		}
		if end, there := ends[in.Transaction]; there && (in.name == "expire" || !out.known) {
			one.Return = min(one.Return, end)
		}
		for _, other := range history {
			begin, answer := other.Input.(call), other.Output.(result)
			if !out.known && begin.name == "init" && begin.Key == in.Key && answer.known && other.Call > one.Call {
				one.Return = min(one.Return, other.Return)
			}
		}
		if first, there := read[in.Value]; in.name == "append" && !out.known && there {
			one.Return = min(one.Return, first.Return)
			one.Output = result{known: true, Offset: offsets[in.Value]}
		}
		if one.Call <= one.Return {
			left = append(left, one)
		}
	}
	return left
}

func (state transactions) copied() transactions {
	next := transactions{
		state.log, map[string]bool{}, map[string]string{}, map[string]int{}, map[string]int{},
		map[groupMessage]string{}, map[string]bool{},
	}
	maps.Copy(next.decided, state.decided)
	maps.Copy(next.ids, state.ids)
	maps.Copy(next.placed, state.placed)
	maps.Copy(next.positions, state.positions)
	maps.Copy(next.taken, state.taken)
	maps.Copy(next.due, state.due)
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

// timedOut returns the state with and without the abort of each transaction whose time is over.
func (state transactions) timedOut() []transactions {
	states := []transactions{state}
	for transaction := range state.due {
		for _, one := range states {
			next := one.copied()
			next.decided[transaction] = false
			delete(next.due, transaction)
			states = append(states, next)
		}
	}
	return states
}

// free says whether a message of a group is acknowledged in no transaction but aborted ones.
func (state transactions) free(message groupMessage) bool {
	transaction, found := state.taken[message]
	committed, ended := state.decided[transaction]
	return !found || ended && !committed
}

// acked returns what is acknowledged for good, in order.
func (state transactions) acked(key string) []string {
	var values []string
	for message, transaction := range state.taken {
		if message.key == key && state.decided[transaction] {
			values = append(values, message.value)
		}
	}
	slices.Sort(values)
	return values
}
