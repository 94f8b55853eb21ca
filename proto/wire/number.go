package wire

// parseUint reads a JSON number whose value is a whole one. JSON has one kind of
// number, and some writers say 1e3 or 1.0: the value counts, not the spelling.
func parseUint(raw []byte) (uint64, bool) {
	if raw[0] < '0' || raw[0] > '9' {
		return 0, false
	}
	var n, fraction uint64
	i := 0
	for ; i < len(raw) && raw[i] >= '0' && raw[i] <= '9'; i++ {
		if n > MaxOffset {
			return 0, false
		}
		n = n*10 + uint64(raw[i]-'0')
	}
	if i == len(raw) {
		return n, n <= MaxOffset
	}
	if raw[i] == '.' {
		for i++; i < len(raw) && raw[i] >= '0' && raw[i] <= '9'; i++ {
			if n > MaxOffset || fraction > 32 {
				return 0, false
			}
			n = n*10 + uint64(raw[i]-'0')
			fraction++
		}
	}
	exponent, negative := 0, false
	if i < len(raw) {
		i++ // e
		if raw[i] == '+' || raw[i] == '-' {
			negative = raw[i] == '-'
			i++
		}
		for ; i < len(raw); i++ {
			exponent = min(exponent*10+int(raw[i]-'0'), 1000)
		}
	}
	if negative {
		exponent = -exponent
	}
	return scale(n, exponent-int(fraction))
}

// scale returns n x 10^exponent if that is whole and at most MaxOffset.
func scale(n uint64, exponent int) (uint64, bool) {
	if n == 0 {
		return 0, true
	}
	for ; exponent < 0; exponent++ {
		if n%10 != 0 {
			return 0, false
		}
		n /= 10
	}
	for ; exponent > 0; exponent-- {
		if n *= 10; n > MaxOffset {
			return 0, false
		}
	}
	return n, n <= MaxOffset
}
