package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// CompactJSON checks that data is one JSON value (UTF-8, nested at most
// MaxJSONDepth deep) and drops the white space between its tokens; values
// (numbers, escapes, the order of fields, repeated fields) stay as they were
// written. The result is data itself if there was nothing to drop, else a copy;
// it holds no raw LF or CR. The error names the byte.
func CompactJSON(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("data: not UTF-8")
	}
	end, spaced, err := scanValue(data, 0)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	if rest := skipSpace(data, end); rest < len(data) {
		return nil, fmt.Errorf("data: %w", bad(rest, "something follows the value"))
	}
	if !spaced {
		return data[:end], nil
	}
	return dropSpace(data[:end]), nil
}

// dropSpace copies JSON text that scanValue accepted without its white space.
func dropSpace(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		switch data[i] {
		case ' ', '\n', '\r', '\t':
			i++
		case '"':
			end, _ := scanString(data, i)
			out = append(out, data[i:end]...)
			i = end
		default:
			out = append(out, data[i])
			i++
		}
	}
	return out
}
