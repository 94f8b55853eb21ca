package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// event is one event to print, wherever it came from.
type event struct {
	channel, epoch, from string
	offset, timeMS       uint64
	meta                 map[string]string
	data                 []byte // JSON text, or any bytes if binary
	binary               bool
}

// eventLine is the form of --json. Data stands there as it was published.
type eventLine struct {
	Channel string            `json:"channel"`
	Epoch   string            `json:"epoch"`
	Offset  uint64            `json:"offset"`
	TimeMS  uint64            `json:"time_ms"`
	From    string            `json:"from,omitempty"`
	Meta    map[string]string `json:"meta,omitempty"`
	DataB64 []byte            `json:"data_b64,omitempty"`
}

// printEvent writes one line: "CHANNEL EPOCH:OFFSET DATA", or a JSON object.
func printEvent(to io.Writer, e event, asJSON bool) error {
	if !asJSON {
		shown := string(e.data)
		if e.binary {
			shown = fmt.Sprintf("(%d bytes)", len(e.data))
		}
		_, err := fmt.Fprintf(to, "%s %s:%d %s\n", e.channel, e.epoch, e.offset, shown)
		return err
	}
	line := eventLine{Channel: e.channel, Epoch: e.epoch, Offset: e.offset, TimeMS: e.timeMS, From: e.from, Meta: e.meta}
	if e.binary {
		line.DataB64 = e.data
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if !e.binary { // encoding/json would escape < and > in it
		text = append(append(append(text[:len(text)-1], `,"data":`...), e.data...), '}')
	}
	_, err = to.Write(append(text, '\n'))
	return err
}
