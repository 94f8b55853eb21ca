package drill

import (
	"math"
	"strings"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/loadgen"
)

// second is how many buckets a second has.
const second = int(time.Second / loadgen.Bucket)

// cut takes the buckets from at on, from the start of a report's series.
func cut(series []uint32, from int) []uint32 {
	if from >= len(series) {
		return nil
	}
	return series[max(from, 0):]
}

func sum(series []uint32) (n uint64) {
	for _, v := range series {
		n += uint64(v)
	}
	return n
}

// peak is the most in any second.
func peak(series []uint32) (most uint64) {
	var window uint64
	for i, v := range series {
		window += uint64(v)
		if i >= second {
			window -= uint64(series[i-second])
		}
		most = max(most, window)
	}
	return most
}

// excess is how many arrivals came over a bucket of tokens: rate a second, burst at
// once.
func excess(series []uint32, rate, burst float64) float64 {
	tokens, over := burst, 0.0
	for _, v := range series {
		tokens = min(burst, tokens+rate/float64(second))
		tokens -= float64(v)
		if tokens < 0 {
			over -= tokens
			tokens = 0
		}
	}
	return over
}

// last is the end of the last bucket that is not empty, from the start of the series.
func last(series []uint32) time.Duration {
	for i := len(series) - 1; i >= 0; i-- {
		if series[i] > 0 {
			return time.Duration(i+1) * loadgen.Bucket
		}
	}
	return 0
}

// level adds arrivals less ends, bucket by bucket.
func level(in, out []uint32) []int {
	levels := make([]int, max(len(in), len(out)))
	n := 0
	for i := range levels {
		if i < len(in) {
			n += int(in[i])
		}
		if i < len(out) {
			n -= int(out[i])
		}
		levels[i] = n
	}
	return levels
}

const (
	chartWidth = 72
	blocks     = " ▁▂▃▄▅▆▇█"
)

// spark draws a series in at most chartWidth columns; a column is the most of its
// buckets. Two rows tell more than one: rows of eight steps each.
func spark(series []uint32, columns, rows int) []string {
	levels := make([]float64, columns)
	each := max(1, (len(series)+columns-1)/columns)
	top := 0.0
	for i, v := range series {
		c := i / each
		levels[c] = max(levels[c], float64(v))
		top = max(top, levels[c])
	}
	steps := []rune(blocks)
	lines := make([]string, rows)
	for r := range rows {
		var b strings.Builder
		for _, v := range levels {
			filled := 0.0
			if top > 0 {
				filled = v/top*float64(rows) - float64(rows-1-r)
			}
			i := int(math.Ceil(min(max(filled, 0), 1) * float64(len(steps)-1)))
			b.WriteRune(steps[i])
		}
		lines[r] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// most is the largest value.
func most(series []uint32) (n uint32) {
	for _, v := range series {
		n = max(n, v)
	}
	return n
}
