package schema

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Setting is all that a reference says about one key.
type Setting struct {
	Key     string // "limits.max_conns"; "namespaces.NAME.recover" in a map
	Type    string // "a whole number"
	Unit    string // of a number that is not a duration: "bytes"
	Default string // as it would stand in a file; where it cannot be written down: what it is
	Zero    string // what 0, or nothing, means; "": it has no meaning of its own
	Rule    string // "must be above 0"; "": whatever has the type
	Hot     string // "true": can change while a node runs; "file": is read again on SIGHUP; "": cold
	Doc     string
	Example string // "": the default is one
}

// Settings lists what an operator can set in the struct that p points to, in the order
// of its fields. Defaults are those that it holds, so p comes from its package's Default.
func Settings(p any) []Setting { return settings("", p) }

func settings(prefix string, p any) []Setting {
	var all []Setting
	Walk(p, func(f Field) {
		if !f.Setting || f.Group {
			return
		}
		if t := f.Value.Type(); t.Kind() == reflect.Map {
			entry := reflect.New(t.Elem()).Interface()
			Fill(entry)
			all = append(all, settings(prefix+f.Key+".NAME.", entry)...)
			return
		}
		rule := cmp.Or(f.Tag.Get("must"), f.Rule())
		if rule == "cannot be read" {
			rule = "must be " + readable
		}
		all = append(all, Setting{
			Key: prefix + f.Key, Type: Type(f.Value.Type()), Unit: f.Tag.Get("unit"), Default: f.standard(), Zero: f.Tag.Get("zero"),
			Rule: rule, Hot: f.Hot, Doc: f.Tag.Get("doc"), Example: f.Tag.Get("example"),
		})
	})
	return all
}

// standard is the value that the field has, as a default is told.
func (f Field) standard() string {
	if text, ok := f.Tag.Lookup("auto"); ok {
		return text
	}
	switch v := f.Value.Interface().(type) {
	case []string:
		return "[" + strings.Join(v, ", ") + "]"
	case string:
		return v
	case time.Duration:
		return short(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(f.Value.Interface())
}

// short leaves out what is 0: "24h" and not "24h0m0s".
func short(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Changed lists the keys of the settings that cannot change while a node runs and that
// differ between two structs of one type.
func Changed(a, b any) []string {
	var were []any
	Walk(a, func(f Field) { were = append(were, f.Value.Interface()) })
	var keys []string
	i := 0
	Walk(b, func(f Field) {
		if f.Setting && !f.Group && f.Hot == "" && !reflect.DeepEqual(were[i], f.Value.Interface()) {
			keys = append(keys, f.Key)
		}
		i++
	})
	return keys
}
