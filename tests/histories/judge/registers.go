package main

import (
	"fmt"
	"maps"

	"github.com/anishathalye/porcupine"
)

// A cursor is the offset that a group committed for one partition; -1: none.
//
//	commit offset → ""
//	fetch         → offset
func cursorModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return -1 },
		Step: func(state, input, output any) (bool, any) {
			in, out := input.(call), output.(result)
			if in.name == "commit" {
				return true, in.Offset
			}
			return !out.known || out.Offset == state.(int), state
		},
		DescribeOperation: described,
	}
}

// A topic is there or not.
//
//	create → "created" or "exists"
//	delete → "deleted" or "absent"
//	look   → "exists" or "absent"
func topicModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return false },
		Step: func(state, input, output any) (bool, any) {
			in, out := input.(call), output.(result)
			there := state.(bool)
			agrees := !out.known || there == (out.Status == "exists" || out.Status == "deleted")
			switch in.name {
			case "create":
				return agrees, true
			case "delete":
				return agrees, false
			}
			return agrees, there
		},
		DescribeOperation: described,
	}
}

// An entry is the newest message of a key.
type entry struct {
	revision int
	value    string
	deleted  bool
}

// A bucket has one entry for each key; revisions count over all keys.
type bucket struct {
	last int
	keys map[string]entry
}

// A conflict is answered with the revision that the key has; 0: none.
//
//	put key value [expected]  → revision, or "conflict" and the revision
//	delete key [expected]     → revision, or "conflict" and the revision
//	get key                   → value and revision, "deleted" and the revision, or "absent"
//	end                       → revision, the last of all keys
func bucketModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return bucket{} },
		Step: func(state, input, output any) (bool, any) {
			return bucketStep(state.(bucket), input.(call), output.(result))
		},
		Equal: func(a, b any) bool {
			one, other := a.(bucket), b.(bucket)
			return one.last == other.last && maps.Equal(one.keys, other.keys)
		},
		Hash:              func(state any) uint64 { return uint64(state.(bucket).last) },
		DescribeOperation: described,
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
}

func bucketStep(state bucket, in call, out result) (bool, any) {
	found, there := state.keys[in.Key]
	switch in.name {
	case "end":
		return !out.known || out.Revision == state.last, state
	case "get":
		return !out.known || shows(out, found, there), state
	}
	meets := in.Expected == nil || *in.Expected == found.revision
	if out.known && out.Status == "conflict" {
		return !meets && out.Revision == found.revision, state
	}
	if !meets {
		// Without an answer it may have been refused; with one it was taken and must not have been.
		return !out.known, state
	}
	if out.known && out.Revision != state.last+1 {
		return false, state
	}
	next := bucket{last: state.last + 1, keys: map[string]entry{}}
	maps.Copy(next.keys, state.keys)
	next.keys[in.Key] = entry{next.last, in.Value, in.name == "delete"}
	return true, next
}

func shows(out result, found entry, there bool) bool {
	if !there {
		return out.Status == "absent"
	}
	if found.deleted {
		return out.Status == "deleted" && out.Revision == found.revision
	}
	return out.Status == "" && out.Value == found.value && out.Revision == found.revision
}
