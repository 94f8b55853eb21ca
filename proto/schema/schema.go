// Package schema reads what a configuration struct declares about its own fields. A
// setting is declared once, in the struct of the package that uses it, by tags:
//
//	MaxConns int `key:"limits.max_conns" default:"20,000" unit:"connections" rule:"above 0" doc:"Connections that may be held."`
//
//	key      its key in the file; a struct field with a key is a group. Without one a
//	         field is no setting of an operator: it may have a default and a rule all the same
//	default  what it is if nothing is said: "3s", "20,000", "64 KiB", "a, b"; "auto" for a
//	         duration that the package works out (Auto)
//	auto     what a default is that cannot be written down ("the host name")
//	unit     of a number
//	rule     what is allowed, see below
//	must     a rule that the struct's Check method holds, told in the reference only
//	oneof    the words that are allowed: "debug, info"
//	zero     what 0 or "" means; it is allowed then, whatever the rule says
//	hot      "true": can change while a node runs; "file": is read again on SIGHUP, but not
//	         a setting of the whole cluster. A group gives it to its fields
//	example  a value for documents, where the default is none
//	doc      a sentence
//
// Rules: "above N", "at least N", "between A and B", "not negative", "not empty",
// "host:port", "a URL with nats:// or tls://", "a file that can be read"; the last two
// hold for each item of a list.
//
// The packages of all tiers call Default and Validate. The mains call Walk to fill a
// struct from files, and Settings to document it. Nothing here keeps state or starts a
// goroutine. A tag that is wrong panics: each struct's tests meet it.
//
// Left out on purpose: files, environment and flags (cmd/internal/config).
package schema

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Auto is a duration about which the operator said nothing, where the package works out
// its own. It is none that a file can have.
const Auto = time.Duration(math.MinInt64)

// Field is one field that declares something.
type Field struct {
	Key     string // with the keys of its groups before it; of a field without one: its name in lower case
	Setting bool   // it has a key, so an operator can set it
	Group   bool   // a struct with a key
	Hot     string // "true", "file", or "": cold
	Value   reflect.Value
	Tag     reflect.StructTag
}

// Walk visits the fields of the struct that p points to, groups before what is in them.
func Walk(p any, visit func(Field)) { walk(reflect.ValueOf(p).Elem(), "", "", visit) }

func walk(s reflect.Value, prefix, hot string, visit func(Field)) {
	for i := range s.NumField() {
		sf := s.Type().Field(i)
		if !sf.IsExported() {
			continue
		}
		f := Field{Value: s.Field(i), Tag: sf.Tag, Hot: sf.Tag.Get("hot")}
		if f.Hot == "" {
			f.Hot = hot
		}
		f.Key, f.Setting = sf.Tag.Lookup("key")
		switch {
		case sf.Type.Kind() == reflect.Struct:
			inner := prefix
			if f.Setting {
				f.Key, f.Group, inner = prefix+f.Key, true, prefix+f.Key+"."
				visit(f)
			}
			walk(f.Value, inner, f.Hot, visit)
		case f.Setting:
			f.Key = prefix + f.Key
			visit(f)
		case f.has("default") || f.has("rule"):
			f.Key = prefix + snake(sf.Name)
			visit(f)
		}
	}
}

func (f Field) has(tag string) bool {
	_, ok := f.Tag.Lookup(tag)
	return ok
}

// snake turns ReadConns into read_conns.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(name[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Default returns a T with the defaults that it declares.
func Default[T any]() T {
	var t T
	Fill(&t)
	return t
}

// Fill sets the fields of the struct that p points to to their defaults.
func Fill(p any) { fillThose(p, func(Field) bool { return true }) }

// FillZero does so with the fields that are zero, for configs in which zero means the
// default.
func FillZero(p any) { fillThose(p, func(f Field) bool { return f.Value.IsZero() }) }

func fillThose(p any, which func(Field) bool) {
	Walk(p, func(f Field) {
		text, ok := f.Tag.Lookup("default")
		if !ok || !which(f) {
			return
		}
		if err := fill(text, f.Value); err != nil {
			panic(fmt.Sprintf("schema: default of %s: %v", f.Key, err))
		}
	})
}

func fill(text string, out reflect.Value) error {
	switch {
	case out.Type() == durationType && text == "auto":
		out.SetInt(int64(Auto))
		return nil
	case out.Kind() == reflect.Slice:
		for item := range strings.SplitSeq(text, ", ") {
			out.Set(reflect.Append(out, reflect.ValueOf(item)))
		}
		return nil
	case number(out.Type()) && out.Type() != durationType:
		n, err := figure(text, out.Type())
		if err != nil {
			return err
		}
		text = strconv.FormatFloat(n, 'f', -1, 64)
	}
	return Parse(text, out)
}

var durationType = reflect.TypeFor[time.Duration]()

// Parse sets out, a scalar, from text.
func Parse(text string, out reflect.Value) (err error) {
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch out.Kind() {
	case reflect.Int, reflect.Int64:
		var n int64
		if out.Type() == durationType {
			var d time.Duration
			d, err = time.ParseDuration(text)
			n = int64(d)
		} else {
			n, err = strconv.ParseInt(text, 10, 64)
		}
		if err == nil {
			out.SetInt(n)
		}
	case reflect.Float64:
		var n float64
		if n, err = strconv.ParseFloat(text, 64); err == nil {
			out.SetFloat(n)
		}
	case reflect.Bool:
		var b bool
		if b, err = strconv.ParseBool(text); err == nil {
			out.SetBool(b)
		}
	case reflect.String:
		out.SetString(text)
	default:
		err = fmt.Errorf("%v is set from a list or a group", out.Type())
	}
	return err
}

// ErrWord says that a text is none of the words that are allowed.
var ErrWord = errors.New("is none of the words that are allowed")

// Word sets out to the one of its values whose String a text is, for UnmarshalText.
func Word[T fmt.Stringer](text []byte, out *T, of ...T) error {
	for _, v := range of {
		if v.String() == string(text) {
			*out = v
			return nil
		}
	}
	return ErrWord
}

// Type says in words what a value of a type is in a file.
func Type(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a duration with its unit, such as "3s" or "24h"`
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Map || t.Kind() == reflect.Struct:
		return "a group of keys"
	}
	return "text"
}
