package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// finding is one key that could not be decoded.
type finding struct{ key, text string }

// decode fills the struct that out points to from raw, by yaml tags. It goes on after
// each wrong key, which the libraries that were tried do not: they leave out unknown
// keys once a value is wrong. Fields without a key, or with a null, keep what
// they have.
func decode(raw map[string]any, out any) []finding {
	var d decoder
	d.group("", raw, reflect.ValueOf(out).Elem())
	return d.found
}

type decoder struct{ found []finding }

func (d *decoder) wrong(key, text string) { d.found = append(d.found, finding{key, text}) }

func (d *decoder) group(prefix string, raw map[string]any, out reflect.Value) {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if field := fieldByTag(out, name); !field.IsValid() {
			d.wrong(prefix+name, "unknown key")
		} else if raw[name] != nil {
			d.value(prefix+name, raw[name], field)
		}
	}
}

// fieldByTag looks into embedded structs too; the zero Value: there is none.
func fieldByTag(out reflect.Value, name string) reflect.Value {
	for i := range out.NumField() {
		f := out.Type().Field(i)
		if f.Anonymous {
			if inner := fieldByTag(out.Field(i), name); inner.IsValid() {
				return inner
			}
		} else if f.Tag.Get("yaml") == name {
			return out.Field(i)
		}
	}
	return reflect.Value{}
}

func (d *decoder) value(key string, raw any, out reflect.Value) {
	switch out.Kind() {
	case reflect.Struct:
		if m, ok := raw.(map[string]any); ok {
			d.group(key+".", m, out)
			return
		}
	case reflect.Map:
		if m, ok := raw.(map[string]any); ok {
			d.entries(key, m, out)
			return
		}
	case reflect.Slice:
		if list, ok := items(raw); ok {
			d.list(key, list, out)
			return
		}
	default:
		if v, ok := scalar(raw, out.Type()); ok {
			out.Set(reflect.ValueOf(v).Convert(out.Type()))
			return
		}
	}
	d.wrong(key, shown(raw)+": must be "+kindWord(out.Type()))
}

// entries fills a map of namespaces; each begins with the defaults.
func (d *decoder) entries(key string, raw map[string]any, out reflect.Value) {
	if out.IsNil() {
		out.Set(reflect.MakeMap(out.Type()))
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		entry := reflect.New(out.Type().Elem()).Elem()
		if entry.Type() == reflect.TypeFor[Namespace]() {
			entry.Set(reflect.ValueOf(DefaultNamespace()))
		}
		if raw[name] != nil {
			d.value(key+"."+name, raw[name], entry)
		}
		out.SetMapIndex(reflect.ValueOf(name), entry)
	}
}

func (d *decoder) list(key string, raw []any, out reflect.Value) {
	list := reflect.MakeSlice(out.Type(), len(raw), len(raw))
	for i, item := range raw {
		d.value(fmt.Sprintf("%s.%d", key, i+1), item, list.Index(i))
	}
	out.Set(list)
}

// items of a YAML list, or of text that is separated by commas.
func items(raw any) ([]any, bool) {
	switch v := raw.(type) {
	case []any:
		return v, true
	case string:
		list := []any{}
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return list, true
	}
	return nil, false
}

var durationType = reflect.TypeFor[time.Duration]()

// scalar converts without loss; text (variables, flags) is parsed.
func scalar(raw any, to reflect.Type) (any, bool) {
	if text, ok := raw.(string); ok {
		return fromText(text, to)
	}
	switch v := raw.(type) {
	case bool:
		return v, to.Kind() == reflect.Bool
	case int:
		if to == durationType {
			return v, v == 0 // any other number lacks its unit
		}
		return v, to.Kind() == reflect.Int
	case float64: // 1e6
		return int(v), to.Kind() == reflect.Int && v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return nil, false
}

func fromText(text string, to reflect.Type) (out any, ok bool) {
	var err error
	switch {
	case to == durationType:
		out, err = time.ParseDuration(text)
	case to.Kind() == reflect.Int:
		out, err = strconv.Atoi(text)
	case to.Kind() == reflect.Bool:
		out, err = strconv.ParseBool(text)
	default:
		return text, to.Kind() == reflect.String
	}
	return out, err == nil
}

func shown(raw any) string {
	switch v := raw.(type) {
	case string:
		return strconv.Quote(v)
	case map[string]any:
		return "(keys)"
	case []any:
		return "(a list)"
	}
	return fmt.Sprint(raw)
}

func kindWord(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a duration with its unit, such as "3s" or "24h"`
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "a group of keys"
}
