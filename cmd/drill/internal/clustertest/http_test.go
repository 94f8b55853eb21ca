package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-io/spillway/cmd/drill/internal/cluster"
	"github.com/spillway-io/spillway/gateway/client"
)

// A router with SQLite and an edge, each a process: what is posted arrives at a
// client; a namespace that is full says when to come back, over HTTP and to clients.
func TestPostedEventsReachClients(t *testing.T) {
	api := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	c := Start(t, cluster.Config{
		Binary: []string{binary}, Store: cluster.SQLite, Edges: 1,
		Namespaces: "{chat: {publish: everyone, subscribe: everyone}, slow: {publish: everyone, subscribe: everyone, publish_per_second: 1, publish_burst: 2}}",
		Router:     "http_listen: " + api + "\n",
		Edge:       func(*cluster.Cluster, int) string { return "advertise_url: \"{url}\"\nauth: {anonymous: true}\n" },
	})
	w := (&testCluster{c, t}).watch([]string{"chat:a"}, c.Edges()[0].URL())
	if status, _, text := post(t, api, "/v1/publish", `{"channel":"chat:a","data":{ "n": 9007199254740993 }}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	Eventually(t, 20*time.Second, "the client has the event", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.events["chat:a"]) == 1 && w.events["chat:a"][0] == `{"n":9007199254740993}`
	})
	status, header, text := post(t, api, "/v1/broadcast", `{"channels":["slow:a","slow:b","slow:c"],"data":1}`)
	if status != 200 || strings.Count(text, `"offset":1`) != 2 || strings.Count(text, `"resource_exhausted"`) != 1 || !strings.Contains(text, `"retry_after_ms":`) {
		t.Errorf("%d %v %s", status, header, text)
	}
	// The rest of the rate may come back meanwhile: it is used up again by trying.
	Eventually(t, 20*time.Second, "429", func() bool {
		status, header, text = post(t, api, "/v1/publish", `{"channel":"slow:a","data":2}`)
		return status == 429 && header.Get("Retry-After") != "" && strings.Contains(text, `"code":"resource_exhausted"`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	Eventually(t, 20*time.Second, "rate_limited", func() bool {
		_, err := w.client.Publish(ctx, "slow:a", json.RawMessage("3"))
		var refused *client.Error
		return errors.As(err, &refused) && refused.Code == "rate_limited" && refused.Temporary && refused.RetryAfter > 0
	})
}

func post(t *testing.T, api, path, body string) (status int, header http.Header, text string) {
	t.Helper()
	resp, err := http.Post("http://"+api+path, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(out)
}
