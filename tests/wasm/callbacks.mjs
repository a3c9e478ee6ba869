// The compiled filter, callback by callback, in V8 as in Envoy but with a host of its own, which can refuse.
// `scripts/test e2e` runs this: FILTER=… node --test tests/wasm/callbacks.mjs
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Shared, Vm } from "../../bench/wasm/host.mjs";

const CONTINUE = 0, PAUSE = 1;
const REQUEST = 0, RESPONSE = 2;
const REQUEST_BODY = 0, RESPONSE_BODY = 1;
const bytes = (text) => new TextEncoder().encode(text);
const module = new WebAssembly.Module(readFileSync(process.env.FILTER));
const policy = {
  role: "router",
  explain: true,
  region: "eu-west",
  regions: { "eu-west": { jurisdiction: "EU", operator: "acme", rtt_ms: 1 },
    "us-east": { jurisdiction: "US", operator: "acme", rtt_ms: 80 } },
  pools: { "demo-eu": { region: "eu-west", model: "demo" }, "demo-us": { region: "us-east", model: "demo" } },
  zones: { eu: { jurisdictions: ["EU"], clusters: { "demo-eu": "eu.demo-eu" } },
    global: { regions: ["*"], clusters: { "demo-eu": "global.demo-eu", "demo-us": "global.demo-us" } } },
  zone_source: { header: "x-warmpath-zone" },
};
const CHAT = JSON.stringify({ model: "demo", messages: [{ role: "user", content: "Hello?" }] });
const ANSWER = '{"id":"x","choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}';

/** A router's VM, and one request of it at a time. */
class Worker {
  static async start(change = {}) {
    const worker = new Worker();
    worker.vm = await Vm.start(module, new Shared(), { ...policy, ...change });
    worker.wasm = worker.vm.exports;
    worker.wasm.proxy_on_tick(1);
    worker.id = 2;
    return worker;
  }

  begin(zone, path = "/v1/chat/completions") {
    this.id += 1;
    this.vm.answered = undefined;
    const headers = [[":method", "POST"], [":path", path], [":authority", "x"], ["content-type", "application/json"]];
    if (zone) headers.push(["x-warmpath-zone", zone]);
    this.vm.maps.set(REQUEST, new Map(headers));
    this.vm.maps.set(RESPONSE, new Map([[":status", "200"], ["content-type", "application/json"]]));
    this.wasm.proxy_on_context_create(this.id, 1);
  }
  headers(end = 0) { return this.wasm.proxy_on_request_headers(this.id, 4, end); }
  body(text, end = 1) {
    this.vm.buffers.set(REQUEST_BODY, bytes(text));
    return this.wasm.proxy_on_request_body(this.id, bytes(text).length, end);
  }
  answer(text = ANSWER) {
    this.vm.properties.set("response\0code_details", bytes("via_upstream"));
    this.vm.buffers.set(RESPONSE_BODY, bytes(text));
    this.wasm.proxy_on_response_headers(this.id, 2, 0);
    this.wasm.proxy_on_response_body(this.id, bytes(text).length, 1);
  }
  end() {
    this.wasm.proxy_on_done(this.id);
    this.wasm.proxy_on_log(this.id);
    this.wasm.proxy_on_delete(this.id);
  }
  get cluster() { return this.vm.maps.get(REQUEST).get("x-warmpath-cluster"); }

  /** One whole request, whatever becomes of it. */
  whole(zone, text = CHAT) {
    this.begin(zone);
    this.action = this.headers();
    if (this.action === PAUSE && this.vm.answered === undefined) this.action = this.body(text);
    const { cluster } = this, { answered } = this.vm;
    if (answered === undefined) this.answer();
    this.end();
    return { cluster, answered };
  }
}

test("a body is awaited, and then the request goes on with its zone's cluster", async () => {
  const worker = await Worker.start();
  worker.begin("eu");
  assert.equal(worker.headers(), PAUSE);
  assert.equal(worker.body(CHAT.slice(0, 20), 0), PAUSE);
  assert.equal(worker.cluster, undefined);
  assert.equal(worker.body(CHAT), CONTINUE);
  assert.equal(worker.cluster, "eu.demo-eu");
  worker.answer();
  worker.end();
});

test("a request without a zone is refused before its body comes", async () => {
  const worker = await Worker.start();
  for (const [zone, code] of [[undefined, "zone_missing"], ["mars", "zone_unknown"]]) {
    worker.begin(zone);
    assert.equal(worker.headers(), PAUSE);
    assert.equal(worker.vm.answered, 403);
    assert.match(worker.vm.answer, new RegExp(code));
    worker.end();
  }
});

test("an unknown model is refused, and one without a body goes on", async () => {
  const worker = await Worker.start({ models: { demo: { served_names: ["demo"] } } });
  worker.begin("eu");
  worker.headers();
  worker.body(JSON.stringify({ model: "other", prompt: "x" }));
  assert.ok([404, 503].includes(worker.vm.answered), `${worker.vm.answered}`);
  worker.end();
  worker.begin("global", "/v1/whatever");
  assert.equal(worker.headers(1), CONTINUE);
  assert.match(worker.cluster, /^global\./);
  worker.end();
});

test("trailers end a body, and so does nothing but the end", async () => {
  const worker = await Worker.start();
  worker.begin("eu");
  worker.headers();
  worker.body(CHAT, 0);
  assert.equal(worker.wasm.proxy_on_request_trailers(worker.id, 1), CONTINUE);
  assert.equal(worker.cluster, "eu.demo-eu");
  worker.end();
  // A client that goes away before its body has ended.
  worker.begin("eu");
  worker.headers();
  worker.body(CHAT.slice(0, 9), 0);
  worker.end();
  assert.deepEqual(worker.whole("eu"), { cluster: "eu.demo-eu", answered: undefined });
});

test("callbacks in an order that Envoy doesn't have do no harm", async () => {
  const worker = await Worker.start();
  const calls = [
    (w) => w.headers(), (w) => w.headers(1), (w) => w.body(CHAT), (w) => w.body("{", 0), (w) => w.body("", 1),
    (w) => w.wasm.proxy_on_request_trailers(w.id, 1), (w) => w.answer(), (w) => w.answer(""),
    (w) => w.wasm.proxy_on_response_trailers(w.id, 1), (w) => w.wasm.proxy_on_log(w.id), (w) => w.wasm.proxy_on_tick(1),
  ];
  let seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let round = 0; round < 300; round += 1) {
    worker.begin(["eu", "global", "mars", undefined][random(4)]);
    for (let step = random(8); step >= 0; step -= 1) calls[random(calls.length)](worker);
    assert.ok(!worker.cluster || worker.vm.maps.get(REQUEST).get("x-warmpath-zone") !== "eu" || worker.cluster === "eu.demo-eu");
    worker.end();
  }
  assert.deepEqual(worker.whole("eu"), { cluster: "eu.demo-eu", answered: undefined });
});

test("whichever hostcall is refused, nothing traps and no request leaves its zone", async () => {
  const log = console.error;
  console.error = () => {};
  try {
    for (const zone of ["eu", "global"]) {
      const worker = await Worker.start();
      worker.whole(zone);
      let count = 0;
      worker.vm.fails = () => { count += 1; return false; };
      worker.whole(zone);
      assert.ok(count > 10, `${count} hostcalls`);
      for (let nth = 1; nth <= count; nth += 1) {
        let left = nth;
        worker.vm.fails = () => (left -= 1) === 0;
        const { cluster, answered } = worker.whole(zone);
        assert.ok(cluster === undefined || cluster.startsWith(`${zone}.`), `call ${nth}: ${cluster}`);
        // It goes on, was answered, or waits for its time to run out.
        assert.ok(answered === undefined || answered >= 400, `call ${nth}: ${answered}`);
        if (worker.action === CONTINUE) assert.ok(cluster, `call ${nth}: it goes on without a cluster`);
      }
      // All of them, for a while: shared data, properties, headers, time.
      worker.vm.fails = (name) => name !== "proxy_log";
      worker.whole(zone);
      worker.wasm.proxy_on_tick(1);
      worker.vm.fails = null;
      assert.deepEqual(worker.whole("eu"), { cluster: "eu.demo-eu", answered: undefined });
    }
  } finally {
    console.error = log;
  }
});

test("whatever lies in shared data, a request finds its zone", async () => {
  const worker = await Worker.start();
  for (const junk of ["", "x", "\0".repeat(40), "\xff".repeat(9_000)]) {
    for (const key of [...worker.vm.shared.values.keys(), "wp/s", "wp/r", "wp/l", "wp/m", "wp/a", "wp/t", "wp/d1"]) {
      worker.vm.shared.values.set(key, [bytes(junk), ++worker.vm.shared.versions]);
    }
    worker.wasm.proxy_on_tick(1);
    assert.deepEqual(worker.whole("eu"), { cluster: "eu.demo-eu", answered: undefined });
  }
});
