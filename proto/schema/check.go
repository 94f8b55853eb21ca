package schema

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Checker is a struct with rules that tags cannot say: what two fields have to do with
// each other, say. It need not report a field that p already has.
type Checker interface{ Check(p *Problems) }

// Problem is one field that breaks its rule.
type Problem struct {
	Key   string
	Value string // as it is shown; never a secret
	Rule  string // "must be above 0"
}

func (p *Problem) Error() string { return p.Key + ": " + p.Value + ": " + p.Rule }

// Problems collects them: one for each key, the first.
type Problems struct {
	root any
	all  []error
	keys map[string]bool
}

// Validate checks the struct that p points to by the rules of its fields, then by the
// Check methods of itself and of the structs in it. The error joins all Problems.
func Validate(p any) error {
	all := &Problems{root: p, keys: make(map[string]bool)}
	Walk(p, all.field)
	all.hooks(reflect.ValueOf(p))
	return errors.Join(all.all...)
}

// hooks calls the innermost Check methods first.
func (p *Problems) hooks(ptr reflect.Value) {
	s := ptr.Elem()
	for i := range s.NumField() {
		if s.Type().Field(i).IsExported() && s.Field(i).Kind() == reflect.Struct {
			p.hooks(s.Field(i).Addr())
		}
	}
	if c, ok := ptr.Interface().(Checker); ok {
		c.Check(p)
	}
}

// Add says that the field to which the pointer points breaks a rule.
func (p *Problems) Add(field any, rule string) {
	p.AddValue(field, reflect.ValueOf(field).Elem().Interface(), rule)
}

// AddValue shows another value than the field's own.
func (p *Problems) AddValue(field, value any, rule string) { p.add(p.Key(field), value, rule) }

// AddKey is for what is no field: an entry of a map, or of a file that a field names.
func (p *Problems) AddKey(key string, value any, rule string) { p.add(key, value, rule) }

// Hidden is shown in the place of a secret.
type Hidden string

// Has says that there is a problem with the field already.
func (p *Problems) Has(field any) bool { return p.keys[p.Key(field)] }

// Key is that of the field to which the pointer points.
func (p *Problems) Key(field any) (key string) {
	Walk(p.root, func(f Field) {
		if f.Value.Addr().Interface() == field {
			key = f.Key
		}
	})
	if key == "" {
		panic(fmt.Sprintf("schema: %T is no field that declares something", field))
	}
	return key
}

func (p *Problems) add(key string, value any, rule string) {
	if p.keys[key] {
		return
	}
	p.keys[key] = true
	p.all = append(p.all, &Problem{Key: key, Value: shown(value), Rule: rule})
}

func shown(value any) string {
	if text, ok := value.(string); ok {
		return strconv.Quote(text)
	}
	return fmt.Sprint(value)
}

// field holds a field to its rule.
func (p *Problems) field(f Field) {
	switch {
	case f.Value.Kind() == reflect.Map && f.Value.Type().Elem().Kind() == reflect.Struct:
		p.entries(f)
	case f.Group || !f.has("rule") && !f.has("oneof") || f.optional():
	case f.Value.Kind() != reflect.Slice:
		if !f.allows(f.Value) {
			p.add(f.Key, f.Value.Interface(), f.Rule())
		}
	case f.Value.Len() == 0:
		p.add(f.Key, "[]", "must name at least one")
	default:
		for i := range f.Value.Len() {
			item := f.Value.Index(i)
			if f.allows(item) {
				continue
			}
			shown := item.Interface()
			if strings.HasPrefix(f.Tag.Get("rule"), "a URL") {
				shown = fmt.Sprintf("(number %d)", i+1) // it may hold a password
			}
			p.add(f.Key, shown, f.Rule())
		}
	}
}

// entries checks a map of structs, each under its name.
func (p *Problems) entries(f Field) {
	names := f.Value.MapKeys()
	slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names {
		entry := reflect.New(f.Value.Type().Elem())
		entry.Elem().Set(f.Value.MapIndex(name))
		var joined interface{ Unwrap() []error }
		if errors.As(Validate(entry.Interface()), &joined) {
			for _, err := range joined.Unwrap() {
				of := *err.(*Problem)
				of.Key = f.Key + "." + name.String() + "." + of.Key
				p.keys[of.Key] = true
				p.all = append(p.all, &of)
			}
		}
	}
}

// optional: nothing is said, and that is allowed.
func (f Field) optional() bool {
	if f.Value.Type() == durationType && f.Value.Interface() == Auto {
		return true
	}
	return f.has("zero") && (f.Value.IsZero() || f.Value.Kind() == reflect.Slice && f.Value.Len() == 0)
}

// Rule is what is allowed, as it is told: "must be above 0".
func (f Field) Rule() string {
	if words := f.words(); words != nil {
		return "must be " + strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	}
	rule := f.Tag.Get("rule")
	switch {
	case rule == "":
		return ""
	case rule == readable:
		return "cannot be read"
	case strings.HasPrefix(rule, "not "):
		return "must " + strings.Replace(rule, "not ", "not be ", 1)
	case f.has("zero") && number(f.Value.Type()) && !f.allows(reflect.Zero(f.Value.Type())):
		return "must be 0 or " + rule
	}
	return "must be " + rule
}

func (f Field) words() []string {
	if words, ok := f.Tag.Lookup("oneof"); ok {
		return strings.Split(words, ", ")
	}
	return nil
}

const readable = "a file that can be read"

// allows says that the rule does. A rule that is none panics.
func (f Field) allows(v reflect.Value) bool {
	if words := f.words(); words != nil {
		return slices.Contains(words, fmt.Sprint(v.Interface()))
	}
	rule := f.Tag.Get("rule")
	switch rule {
	case "host:port":
		_, _, err := net.SplitHostPort(v.String())
		return err == nil
	case "not empty":
		return !v.IsZero()
	case readable:
		file, err := os.Open(v.String())
		if err == nil {
			_ = file.Close()
		}
		return err == nil
	}
	if schemes, ok := strings.CutPrefix(rule, "a URL with "); ok {
		u, err := url.Parse(v.String())
		return err == nil && u.Host != "" && slices.Contains(strings.Split(schemes, " or "), u.Scheme+"://")
	}
	low, high, strict := f.bounds(rule)
	n := amount(v)
	return n <= high && (n > low || n == low && !strict)
}

// bounds of a number; strict: the lower one is not allowed itself.
func (f Field) bounds(rule string) (low, high float64, strict bool) {
	at := func(text string) float64 {
		n, err := figure(text, f.Value.Type())
		if err != nil {
			panic(fmt.Sprintf("schema: rule of %s: %v", f.Key, err))
		}
		return n
	}
	const most = 1 << 63
	kind, text, _ := strings.Cut(rule, " ")
	switch kind {
	case "not": // negative
		return 0, most, false
	case "above":
		return at(text), most, true
	case "at":
		return at(strings.TrimPrefix(text, "least ")), most, false
	case "between":
		a, b, _ := strings.Cut(text, " and ")
		return at(a), at(b), false
	}
	panic(fmt.Sprintf("schema: %s has an unknown rule %q", f.Key, rule))
}

func number(t reflect.Type) bool {
	return t.Kind() == reflect.Int || t.Kind() == reflect.Int64 || t.Kind() == reflect.Float64
}

func amount(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	return float64(v.Int())
}

// figure reads "20,000", "64 KiB" or, for a duration, "3s".
func figure(text string, t reflect.Type) (float64, error) {
	if t == durationType {
		d, err := time.ParseDuration(text)
		return float64(d), err
	}
	text, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	switch unit {
	case "":
	case "KiB":
		n *= 1 << 10
	case "MiB":
		n *= 1 << 20
	default:
		return 0, fmt.Errorf("unit %q", unit)
	}
	return n, err
}
