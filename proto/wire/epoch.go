package wire

import "strconv"

// FormatEpoch gives the word that clients see for an epoch.
func FormatEpoch(epoch uint64) string { return strconv.FormatUint(epoch, 36) }

// ParseEpoch reads it back; false: it is none of ours. Zero is never an epoch.
func ParseEpoch(s string) (uint64, bool) {
	epoch, err := strconv.ParseUint(s, 36, 64)
	if err != nil || epoch == 0 || FormatEpoch(epoch) != s {
		return 0, false
	}
	return epoch, true
}
