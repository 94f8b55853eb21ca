package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"

	"github.com/spillway-io/spillway/proto/schema"
)

// Decode fills the struct that out points to from YAML, by the keys that it declares. The
// problems have a key and a text; err says that it is no YAML.
func Decode(text []byte, out any) (wrong []Problem, err error) {
	raw, err := yaml.Parser().Unmarshal(text)
	return decode(raw, out), err
}

// decode goes on after each wrong key, which the libraries that were tried do not: they
// leave out unknown keys once a value is wrong. Fields without a key in raw, or with a
// null, keep what they have.
func decode(raw map[string]any, out any) []Problem {
	var d decoder
	d.fields("", raw, out)
	return d.found
}

type decoder struct{ found []Problem }

func (d *decoder) wrong(key, text string) { d.found = append(d.found, Problem{Key: key, Text: text}) }

// fields fills a struct.
func (d *decoder) fields(prefix string, raw map[string]any, out any) {
	known := make(map[string]schema.Field)
	schema.Walk(out, func(f schema.Field) {
		if !f.Setting {
			return
		}
		for i, r := range f.Key { // "limits.margin" makes limits a group
			if _, ok := known[f.Key[:i]]; r == '.' && !ok {
				known[f.Key[:i]] = schema.Field{Group: true}
			}
		}
		known[f.Key] = f
	})
	d.group(prefix, "", raw, known)
}

func (d *decoder) group(prefix, within string, raw map[string]any, known map[string]schema.Field) {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		key := within + name
		f, ok := known[key]
		inner, isGroup := raw[name].(map[string]any)
		switch {
		case !ok:
			d.wrong(prefix+key, "unknown key")
		case raw[name] == nil:
		case !f.Group:
			d.value(prefix+key, raw[name], f)
		case isGroup:
			d.group(prefix, key+".", inner, known)
		default:
			d.wrong(prefix+key, shown(raw[name])+": must be a group of keys")
		}
	}
}

func (d *decoder) value(key string, raw any, f schema.Field) {
	out := f.Value
	switch out.Kind() {
	case reflect.Struct: // of a list
		if m, ok := raw.(map[string]any); ok {
			d.fields(key+".", m, out.Addr().Interface())
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
		d.scalar(key, raw, f)
		return
	}
	d.wrong(key, shown(raw)+": must be "+schema.Type(out.Type()))
}

// scalar converts without loss; text (of variables and flags too) is parsed.
func (d *decoder) scalar(key string, raw any, f schema.Field) {
	kind := f.Value.Kind()
	text, ok := "", false
	switch v := raw.(type) {
	case string:
		text, ok = v, true
	case bool:
		text, ok = strconv.FormatBool(v), kind == reflect.Bool
	case int: // a duration lacks its unit, if it is not 0
		text, ok = strconv.Itoa(v), kind == reflect.Int || kind == reflect.Int64 || kind == reflect.Float64
	case float64: // 1e6
		whole := v == math.Trunc(v) && math.Abs(v) < 1<<53
		text, ok = strconv.FormatFloat(v, 'f', -1, 64), kind == reflect.Float64 || whole && (kind == reflect.Int || kind == reflect.Int64)
	}
	rule := "must be " + schema.Type(f.Value.Type())
	if ok {
		err := schema.Parse(text, f.Value)
		if err == nil {
			return
		}
		switch _, words := f.Value.Addr().Interface().(encoding.TextUnmarshaler); {
		case errors.Is(err, schema.ErrWord):
			rule = f.Rule()
		case words:
			rule = err.Error()
		}
	}
	d.wrong(key, shown(raw)+": "+rule)
}

// entries fills a map of structs; each begins with the defaults.
func (d *decoder) entries(key string, raw map[string]any, out reflect.Value) {
	if out.IsNil() {
		out.Set(reflect.MakeMap(out.Type()))
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		entry := reflect.New(out.Type().Elem())
		schema.Fill(entry.Interface())
		if raw[name] != nil {
			d.value(key+"."+name, raw[name], schema.Field{Value: entry.Elem()})
		}
		out.SetMapIndex(reflect.ValueOf(name), entry.Elem())
	}
}

func (d *decoder) list(key string, raw []any, out reflect.Value) {
	list := reflect.MakeSlice(out.Type(), len(raw), len(raw))
	for i, item := range raw {
		d.value(fmt.Sprintf("%s.%d", key, i+1), item, schema.Field{Value: list.Index(i)})
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
