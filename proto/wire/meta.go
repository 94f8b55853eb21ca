package wire

import (
	"fmt"
	"slices"
)

// MetaJSON is the compact JSON object of a meta map, keys sorted; nil if empty.
func MetaJSON(meta map[string]string) []byte {
	if len(meta) == 0 {
		return nil
	}
	keys := make([]string, 0, len(meta))
	for k := range meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	dst := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, k)
		dst = append(dst, ':')
		dst = appendString(dst, meta[k])
	}
	return append(dst, '}')
}

// ParseMeta reads what MetaJSON wrote; nil if it is empty or not of that form.
func ParseMeta(data []byte) map[string]string {
	if len(data) == 0 {
		return nil
	}
	meta, err := parseMeta(data)
	if err != nil {
		return nil
	}
	return meta
}

func parseMeta(data []byte) (map[string]string, error) {
	meta := map[string]string{}
	err := eachField(data, func(name, value []byte) error {
		k, nameOK := unquote(name)
		if value[0] != '"' {
			return fmt.Errorf("%.32s: a string is expected", name)
		}
		v, valueOK := unquote(value)
		if !nameOK || !valueOK {
			return fmt.Errorf("%.32s: not Unicode text", name)
		}
		meta[k] = v
		return nil
	})
	return meta, err
}
