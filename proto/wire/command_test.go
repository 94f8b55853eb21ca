package wire

import (
	"strings"
	"testing"
)

// The commands of PROTOCOL.md, decoded and written again.
var commands = []string{
	`{"type":"connect","id":1}`,
	`{"type":"connect","id":1,"token":"t","attempt":3,"subscriptions":[{"channel":"a","epoch":"1","offset":9007199254740991},{"channel":"b","last":5}],"client":"x/1"}`,
	`{"type":"subscribe","id":4294967295,"channel":"chat:room-7"}`,
	`{"type":"subscribe","id":2,"subscriptions":[{"channel":"a","offset":0}]}`,
	`{"type":"unsubscribe","id":3,"channel":"a"}`,
	`{"type":"publish","id":4,"channel":"a","data":{"n":1.0e5},"meta":{"k":"v"},"key":"k1"}`,
	`{"type":"publish","id":4,"channel":"a","data":null}`,
	`{"type":"publish","id":4,"channel":"a","data_b64":"AP8="}`,
	`{"type":"history","id":5,"channel":"a","epoch":"2","offset":7,"limit":10,"reverse":true}`,
	`{"type":"presence","id":6,"channel":"a","counts_only":true}`,
	`{"type":"refresh","id":7,"token":"t"}`,
	`{"type":"ping","id":8}`,
}

func TestCommandsRoundTrip(t *testing.T) {
	for _, line := range commands {
		f, problem := DecodeClient([]byte(line))
		if problem != nil {
			t.Errorf("%s: %v", line, problem)
			continue
		}
		if got := string(AppendClient(nil, f)); got != line {
			t.Errorf("%s\ncame back as\n%s", line, got)
		}
	}
}

func TestBadCommandsAreNamed(t *testing.T) {
	for line, want := range map[string]struct {
		id   uint32
		text string
	}{
		`{`:                           {0, "not JSON"},
		`[]`:                          {0, "an object is expected"},
		``:                            {0, "ends too early"},
		`{"type":"ping","id":1}x`:     {0, "something follows"},
		`{"type":"ping","id":1,}`:     {0, "a field's name is expected"},
		`{"TYPE":"ping","id":1}`:      {1, "type is missing"},
		`{"type":"ping","ID":1}`:      {0, "id is missing"},
		`{"type":"ping","id":null}`:   {0, "id is missing"},
		`{"type":7,"id":1}`:           {1, "type: a string is expected"},
		`{"type":"subscribe","id":1}`: {1, "channel or subscriptions is missing"},
		`{"type":"connect","id":1,"subscriptions":[7]}`:                                     {1, "subscriptions[0]: an object"},
		`{"type":"connect","id":1,"subscriptions":{}}`:                                      {1, "subscriptions: an array"},
		`{"type":"connect","id":1,"subscriptions":[{"channel":"a"},{"channel":"a\udc00"}]}`: {1, "subscriptions[1].channel: not Unicode"},
		`{"type":"publish","id":4,"channel":"a","data":1,"meta":{"k":1}}`:                   {4, "meta: "},
		`{"type":"publish","id":4,"channel":"a","data":1,"meta":[]}`:                        {4, "meta: "},
		`{"type":"publish","id":4,"channel":"a","data":1,"key":"\u0007"}`:                   {4, "key: control"},
		"{\"type\":\"publish\",\"id\":4,\"channel\":\"a\",\"data\":\"\xff\"}":               {4, "data: not UTF-8"},
		"{\"type\":\"publish\",\"id\":4,\"channel\":\"\xff\",\"data\":1}":                   {4, "channel: not Unicode"},
		`{"type":"ping"}`:                         {0, "id is missing"},
		`{"id":4}`:                                {4, "type is missing"},
		`{"type":"dance","id":4}`:                 {4, `type: "dance" is unknown`},
		`{"type":"ping","id":0}`:                  {0, "id: a whole number from 1"},
		`{"type":"ping","id":-1}`:                 {0, "id"},
		`{"type":"ping","id":1.5}`:                {0, "id"},
		`{"type":"ping","id":"1"}`:                {0, "id"},
		`{"type":"ping","id":4294967296}`:         {0, "id: a whole number from 1"},
		`{"type":"publish","id":4,"channel":"a"}`: {4, "data is missing"},
		`{"type":"publish","id":4,"channel":"a","data":1,"data_b64":"AA=="}`:         {4, "only one"},
		`{"type":"publish","id":4,"channel":"a","data_b64":"!"}`:                     {4, "data_b64"},
		`{"type":"publish","id":4,"channel":"","data":1}`:                            {4, "channel: must not be empty"},
		`{"type":"publish","id":4,"channel":"a\nb","data":1}`:                        {4, "control character"},
		`{"type":"publish","id":4,"channel":"a\ud800","data":1}`:                     {4, "half of a character"},
		`{"type":"subscribe","id":4,"subscriptions":[]}`:                             {4, "subscriptions"},
		`{"type":"subscribe","id":4,"channel":"a","offset":9007199254740992}`:        {4, "offset: a whole number from 0 to 9007199254740991"},
		`{"type":"subscribe","id":4,"channel":"a","offset":-1}`:                      {4, "offset"},
		`{"type":"subscribe","id":4,"subscriptions":[{"channel":"a","offset":1.5}]}`: {4, "offset"},
	} {
		_, problem := DecodeClient([]byte(line))
		if problem == nil || problem.ID != want.id || !strings.Contains(problem.Message, want.text) {
			t.Errorf("%s: %+v, want id %d and %q", line, problem, want.id, want.text)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	f, problem := DecodeClient([]byte(`{"type":"ping","id":3,"color":{"deep":[1]}}`))
	if problem != nil || f.Id != 3 || f.GetPing() == nil {
		t.Fatalf("%v %v", f, problem)
	}
}

// JSON.parse and its kin let the last of equal names win; so does this reader, and
// nobody between can see another command than the edge does.
func TestOfEqualFieldsTheLastCounts(t *testing.T) {
	for line, want := range map[string]string{
		`{"id":1,"type":"ping","id":2}`:                                                     `{"type":"ping","id":2}`,
		`{"type":"unsubscribe","id":1,"channel":5,"channel":"b"}`:                           `{"type":"unsubscribe","id":1,"channel":"b"}`,
		`{"type":"subscribe","id":1,"channel":"a","offset":5,"offset":null}`:                `{"type":"subscribe","id":1,"channel":"a"}`,
		`{"\u0074ype" : "ping" , "id" : 3e0 , "channel" : 7 , "x":{"id":9}}`:                `{"type":"ping","id":3}`,
		`{"type":"publish","id":1,"channel":"a","data":[1 , 2],"data_b64":null}`:            `{"type":"publish","id":1,"channel":"a","data":[1,2]}`,
		`{"type":"publish","id":1,"channel":"\ud83d\ude00","data_b64":"AP8"}`:               `{"type":"publish","id":1,"channel":"😀","data_b64":"AP8="}`,
		`{"type":"history","id":1,"channel":"a","offset":9007199254740991.0,"limit":1.5e1}`: `{"type":"history","id":1,"channel":"a","offset":9007199254740991,"limit":15}`,
	} {
		f, problem := DecodeClient([]byte(line))
		if problem != nil {
			t.Errorf("%s: %v", line, problem)
		} else if got := string(AppendClient(nil, f)); got != want {
			t.Errorf("%s\nwas read as\n%s", line, got)
		}
	}
}
