package main

import (
	"fmt"
	"time"

	"github.com/spillway-io/spillway/gateway/auth"

	"github.com/spillway-io/spillway/cmd/internal/config"
	"github.com/spillway-io/spillway/cmd/internal/run"
)

type tokenCmd struct {
	Sub        string        `required:"" help:"The user."`
	Channels   []string      `help:"Patterns that the user may read: 'chat:*'." placeholder:"PATTERN"`
	Publish    []string      `help:"Patterns that the user may publish on." placeholder:"PATTERN"`
	Join       []string      `help:"Channels joined at connect." placeholder:"CHANNEL"`
	TTL        time.Duration `help:"Life of the token." default:"1h" name:"ttl"`
	SecretFile string        `required:"" help:"File with the HS256 secret of the edges; spillway dev says where its own is." placeholder:"FILE" type:"path"`
}

// Run prints a token, after an edge's own check of it.
func (c *tokenCmd) Run(*env) error {
	secret, err := config.Secret("--secret-file", c.SecretFile)
	if err != nil {
		return run.Usagef("%v", err)
	}
	if c.TTL <= 0 {
		return run.Usagef("--ttl: %v: must be above 0", c.TTL)
	}
	rights := make(map[string][]string)
	for _, p := range c.Channels {
		rights[p] = append(rights[p], "subscribe", "history", "presence")
	}
	for _, p := range c.Publish {
		rights[p] = append(rights[p], "publish")
	}
	now := time.Now()
	token, err := auth.Mint([]byte(secret), c.Sub, rights, c.Join, c.TTL, now)
	if err != nil {
		return run.Usagef("%v", err)
	}
	v, err := auth.New(auth.Config{HS256: []byte(secret), MaxTTL: max(c.TTL+time.Second, time.Minute)})
	if err == nil {
		_, err = v.Verify(token, now)
	}
	if err != nil {
		return run.Usagef("%v", err)
	}
	_, err = fmt.Println(token)
	return err
}
