package main

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A group is the partitions that its members have, and the offsets that they committed.
type group struct {
	// generation: the newest that a member of the classic protocol joined; 0: there are none.
	generation int
	// epochs: the epoch of each member, or its generation.
	epochs  map[string]int
	owners  map[int]string
	offsets map[int]int
}

// A partition belongs to one member at a time: of the classic protocol to one of a generation, of
// the consumer protocol until its owner says that it has given it up. What a member commits that is
// fenced, or whose partition another has, is refused. A group that has lost all members begins again
// with the first generation: what others have of the same number is fenced then.
//
//	join member                        → epoch partitions   of the classic protocol; or "refused"
//	beat member partitions             → epoch partitions   those that it has, and gets; or "refused"
//	leave member                       → ""                 what it commits from then on is refused
//	abandon member                     → ""                 it has no partitions from then on
//	commit member epoch partition offset → ""               or "refused"
//	fetch partition                    → offset             -1: none
func groupModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{group{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, one := range groupStep(state.(group), input.(call), output.(result)) {
				states = append(states, one)
			}
			return states
		},
		Equal: func(a, b any) bool {
			one, other := a.(group), b.(group)
			return one.generation == other.generation && maps.Equal(one.epochs, other.epochs) &&
				maps.Equal(one.owners, other.owners) && maps.Equal(one.offsets, other.offsets)
		},
		Hash:              func(state any) uint64 { return maphash.Comparable(seed, fmt.Sprint(state)) },
		DescribeOperation: described,
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
	return model.ToModel()
}

func groupStep(state group, in call, out result) []group {
	switch in.name {
	case "join":
		if !out.known || out.Status == "refused" {
			return []group{state}
		}
		fresh := state.copied()
		fresh.generation = out.Epoch
		clear(fresh.owners)
		if out.Epoch <= state.generation {
			clear(fresh.epochs)
		}
		states := fresh.assigned(in.Member, out)
		if out.Epoch == state.generation {
			states = append(states, state.copied().assigned(in.Member, out)...)
		}
		return states
	case "beat":
		released := state.without(in.Member, in.Partitions)
		if !out.known || out.Status == "refused" {
			return []group{state, released}
		}
		return released.assigned(in.Member, out)
	case "leave":
		left := state.without(in.Member, nil)
		delete(left.epochs, in.Member)
		if !out.known {
			return []group{state, left}
		}
		return []group{left}
	case "abandon":
		return []group{state.without(in.Member, nil)}
	case "commit":
		return state.committed(in, out)
	case "fetch":
		offset, there := state.offsets[in.Partition]
		if !there {
			offset = -1
		}
		if out.known && out.Offset != offset {
			return nil
		}
		return []group{state}
	}
	panic("a group has no operation " + in.name)
}

// fetched settles commits without an answer: one whose offset is fetched, which no other has, was
// made before that, and one that no fetch has makes no difference.
func fetched(history []porcupine.Operation) []porcupine.Operation {
	type place struct{ partition, offset int }
	until := map[place]int64{}
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		at := place{in.Partition, out.Offset}
		if before, there := until[at]; in.name == "fetch" && out.known && (!there || one.Return < before) {
			until[at] = one.Return
		}
	}
	var left []porcupine.Operation
	for _, one := range history {
		in, out := one.Input.(call), one.Output.(result)
		if in.name == "commit" && !out.known {
			end, there := until[place{in.Partition, in.Offset}]
			if !there {
				continue
			}
			one.Return, one.Output = end, result{known: true, Status: "as fetched"}
		}
		left = append(left, one)
	}
	return left
}

func (state group) copied() group {
	next := group{state.generation, map[string]int{}, map[int]string{}, map[int]int{}}
	maps.Copy(next.epochs, state.epochs)
	maps.Copy(next.owners, state.owners)
	maps.Copy(next.offsets, state.offsets)
	return next
}

// without returns the group in which a member has none but some of its partitions.
func (state group) without(member string, kept []int) group {
	next := state.copied()
	maps.DeleteFunc(next.owners, func(partition int, owner string) bool {
		return owner == member && !slices.Contains(kept, partition)
	})
	return next
}

// assigned gives partitions to a member of this group, which is a copy.
func (state group) assigned(member string, out result) []group {
	for _, partition := range out.Partitions {
		if owner, there := state.owners[partition]; there && owner != member {
			return nil
		}
		state.owners[partition] = member
	}
	state.epochs[member] = out.Epoch
	return []group{state}
}

func (state group) committed(in call, out result) []group {
	epoch, member := state.epochs[in.Member]
	owner, owned := state.owners[in.Partition]
	allowed := member && epoch == in.Epoch && (!owned || owner == in.Member) &&
		(state.generation == 0 || state.generation == in.Epoch)
	if !allowed {
		if out.known && out.Status != "refused" {
			return nil
		}
		return []group{state}
	}
	next := state.copied()
	next.offsets[in.Partition] = in.Offset
	switch {
	case !out.known:
		return []group{state, next}
	case out.Status == "refused":
		return []group{state}
	}
	return []group{next}
}
