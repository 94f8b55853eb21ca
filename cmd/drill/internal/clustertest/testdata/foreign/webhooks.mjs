// A WebSocket client that is not ours (npm's ws) on real input: every payload of
// @octokit/webhooks-examples, a channel for each kind of event.
// node webhooks.mjs SPILLWAY_BINARY ROUTER EDGE_URL
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import examplesModule from "@octokit/webhooks-examples" with { type: "json" };
import WebSocket from "ws";

const [binary, router, edge] = process.argv.slice(2);
const kinds = new Map(examplesModule.map((k) => [`webhooks:${k.name}`, k.examples.map((e) => JSON.stringify(e))]));
const total = [...kinds.values()].reduce((n, list) => n + list.length, 0);
assert.ok(total > 100, `only ${total} payloads`);

// data as it stands in the frame, so that values are compared as they were written.
const raw = (line) => line.slice(line.indexOf('"data":') + 7, line.lastIndexOf(',"time_ms":'));

class Client {
  constructor(subscriptions) {
    this.events = new Map();
    this.replies = new Map();
    this.ws = new WebSocket(edge);
    this.connected = new Promise((resolve, reject) => {
      this.ws.on("error", reject);
      this.ws.on("open", () => this.ws.send(JSON.stringify({ type: "connect", id: 1, subscriptions })));
      this.ws.on("message", (text) => {
        for (const line of text.toString().split("\n")) {
          const f = JSON.parse(line);
          if (f.type === "connected") resolve(f);
          else if (f.type === "event") {
            if (!this.events.has(f.channel)) this.events.set(f.channel, []);
            this.events.get(f.channel).push({ offset: f.offset, data: raw(line) });
            this.wake?.();
          } else if (f.id) this.replies.get(f.id)?.(f, line);
          else if (f.type === "gap" || f.type === "error") reject(new Error(line));
        }
      });
    });
  }
  count() {
    return [...this.events.values()].reduce((n, list) => n + list.length, 0);
  }
  async wait(n) {
    const deadline = Date.now() + 60_000;
    while (this.count() < n) {
      assert.ok(Date.now() < deadline, `${this.count()} of ${n} events came`);
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, 200);
      });
    }
  }
  ask(frame) {
    return new Promise((resolve) => {
      this.replies.set(frame.id, resolve);
      this.ws.send(JSON.stringify(frame));
    });
  }
}

const publish = (channel, lines) =>
  new Promise((resolve, reject) => {
    const p = spawn(binary, ["publish", "--server", router, channel, "-", "--lines"], { stdio: ["pipe", "ignore", "inherit"] });
    p.on("exit", (code) => (code === 0 ? resolve() : reject(new Error(`publish ${channel}: exit ${code}`))));
    p.stdin.end(lines.join("\n"));
  });

const first = new Client([...kinds.keys()].map((channel) => ({ channel })));
const hello = await first.connected;
const epochs = new Map(hello.subscriptions.map((s) => [s.channel, s.epoch]));
for (const [channel, list] of kinds) await publish(channel, list);
await first.wait(total);
for (const [channel, list] of kinds) {
  assert.deepEqual(first.events.get(channel), list.map((data, i) => ({ offset: i + 1, data })), channel);
}

// A second client joins with a position in the middle and gets exactly the rest.
const middle = new Map([...kinds].map(([channel, list]) => [channel, Math.floor(list.length / 2)]));
const second = new Client([...middle].map(([channel, offset]) => ({ channel, offset, epoch: epochs.get(channel) })));
const again = await second.connected;
for (const s of again.subscriptions) assert.equal(s.recovered, true, JSON.stringify(s));
const rest = [...kinds].reduce((n, [channel, list]) => n + list.length - middle.get(channel), 0);
await second.wait(rest);
for (const [channel, list] of kinds) {
  const want = list.map((data, i) => ({ offset: i + 1, data })).slice(middle.get(channel));
  assert.deepEqual(second.events.get(channel) ?? [], want, channel);
}

// History returns them all.
let id = 100;
for (const [channel, list] of kinds) {
  const got = [];
  for (let more = true; more; ) {
    const page = await first.ask({ type: "history", id: id++, channel, limit: 50, offset: got.length, epoch: epochs.get(channel) });
    assert.equal(page.type, "history", JSON.stringify(page));
    for (const e of page.events) got.push(JSON.stringify(e.data));
    more = page.more;
  }
  assert.deepEqual(got, list, channel);
}
console.log(`${total} payloads on ${kinds.size} channels: received, recovered from the middle (${rest}), read again`);
process.exit(0);
