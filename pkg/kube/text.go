package kube

import (
	"strings"
	"unicode/utf8"
)

// The lengths of texts in bytes, at most. Users and nodes can make many texts of an object as long
// as the object may be, so that a view cuts or drops each text whose length the API server does not
// limit itself.
const (
	MaxName = 253  // of an object's name
	MaxUID  = 128  // of a UID; those of the API server have 36
	MaxNote = 1024 // of an Event's note; the API server rejects longer ones
)

// Cut returns at most limit bytes of s, without splitting a character.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return strings.Clone(s[:limit]) // so that the rest is not kept
}

// Short returns s, or "" if s has more than limit bytes, so that it is not what it should be.
func Short(s string, limit int) string {
	if len(s) > limit {
		return ""
	}
	return s
}
