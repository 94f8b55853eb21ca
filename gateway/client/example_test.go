package client_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spillway-io/spillway/gateway/client"
)

func Example() {
	c, err := client.New("ws://localhost:8400/v1/ws", client.WithToken(func(context.Context) (string, error) {
		return os.Getenv("TOKEN"), nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Subscribe("chat:room-7", client.Handler{
		OnEvent: func(e client.Event) { fmt.Println(e.Offset, string(e.Data)) },
		OnGap:   func(g client.Gap) { fmt.Println("reload in", g.ReloadAfter) },
	}, client.Last(20))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Connect(ctx); err != nil {
		fmt.Println(err)
		return
	}
	pos, err := c.Publish(ctx, "chat:room-7", []byte(`{"text":"hi"}`), client.Key("m-1"))
	fmt.Println(pos.Offset, err)
}
