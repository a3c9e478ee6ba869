// node --no-liftoff --no-wasm-tier-up bench/wasm/run.mjs DIR FILTER... (Envoy's V8 has no baseline
// compiler either.) Gives each build of the filter what `warmpath-bench script` wrote to DIR, then
// its requests, in turn; says what one request takes by phase, in microseconds of this host, which
// is JavaScript and dearer than Envoy's for each crossing. TRACE=1 lists one request's hostcalls.
import { readFileSync } from "node:fs";
import { Shared, Vm } from "./host.mjs";

const [, , dir, ...files] = process.argv;
const total = Number(process.env.REQUESTS ?? 8000), turn = 200;
const encoder = new TextEncoder(), decoder = new TextDecoder();
const phases = ["create", "headers", "body", "answer", "answer body", "done"];

function chunks(name) {
  const bytes = readFileSync(`${dir}/${name}`), all = [];
  for (let at = 0; at < bytes.length;) {
    const size = bytes.readUInt32LE(at);
    all.push(new Uint8Array(bytes.subarray(at + 4, at + 4 + size)));
    at += 4 + size;
  }
  return all;
}
const downs = chunks("downs.bin"), bodies = chunks("bodies.bin");

// COLD=1 sweeps the caches before each callback of a request's, as other work does in a proxy.
const other = process.env.COLD ? new Uint8Array(Number(process.env.COLD) << 20) : new Uint8Array(0);
let swept = 0;
function sweep() {
  for (let at = 0; at < other.length; at += 64) swept += other[at]++;
}

class Gateway {
  times = phases.map(() => []);
  next = 2;

  static async start(file) {
    const gateway = new Gateway(), module = new WebAssembly.Module(readFileSync(file));
    gateway.file = file;
    gateway.shared = new Shared();
    const service = await Vm.start(module, gateway.shared, { role: "sidestream", cluster: "relay" });
    service.exports.proxy_on_tick(1);
    for (const down of downs) {
      service.buffers.set(5, down);
      service.exports.proxy_on_grpc_receive(1, 77, down.length);
    }
    service.exports.proxy_on_tick(1);
    const configuration = JSON.parse(readFileSync(`${dir}/router.json`));
    gateway.vm = await Vm.start(module, gateway.shared, configuration);
    for (let tick = 0; tick < 4; tick++) gateway.vm.exports.proxy_on_tick(1);
    gateway.vm.calls.clear();
    return gateway;
  }

  time(phase, call) {
    sweep();
    const start = performance.now();
    call();
    this.times[phase].push((performance.now() - start) * 1e3);
  }

  request(body) {
    const { vm } = this, wasm = vm.exports, id = this.next++;
    // Questions end with a number: nobody asked this one before.
    for (let at = body.length - 5, rest = id; at >= body.length - 8; at--, rest /= 10) {
      body[at] = 48 + Math.trunc(rest) % 10;
    }
    vm.maps.set(0, new Map([
      [":method", "POST"], [":path", "/v1/chat/completions"], [":authority", "eu.demo.local"],
      [":scheme", "http"], ["content-type", "application/json"],
      ["content-length", String(body.length)], ["x-forwarded-for", "127.0.0.1"],
      ["x-forwarded-proto", "http"], ["x-request-id", "00000000-0000-0000-0000-000000000000"],
      ["x-warmpath-zone", "eu"],
    ]));
    vm.buffers.set(0, body);
    this.time(0, () => wasm.proxy_on_context_create(id, 1));
    this.time(1, () => wasm.proxy_on_request_headers(id, 10, 0));
    this.time(2, () => wasm.proxy_on_request_body(id, body.length, 1));
    // As foreseen, so that nothing drifts.
    const told = decoder.decode(vm.properties.get("warmpath_decision") ?? new Uint8Array());
    const answer = encoder.encode(`{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":${/ cached=(\d+)/.exec(told)?.[1] ?? 0}}}}`);
    vm.maps.set(2, new Map([
      [":status", "200"], ["content-type", "application/json"],
      ["content-length", String(answer.length)], ["date", "now"],
    ]));
    const endpoint = vm.maps.get(0).get("x-gateway-destination-endpoint")?.split(",")[0] ?? "";
    vm.properties.set("response\0code_details", encoder.encode("via_upstream"));
    vm.properties.set("upstream\0address", encoder.encode(endpoint));
    vm.properties.set("upstream\0request_attempt_count", new Uint8Array([1, 0, 0, 0, 0, 0, 0, 0]));
    vm.buffers.set(1, answer);
    this.time(3, () => wasm.proxy_on_response_headers(id, 4, 0));
    this.time(4, () => {
      wasm.proxy_on_response_body(id, answer.length, 0);
      wasm.proxy_on_response_body(id, 0, 1);
    });
    this.time(5, () => {
      wasm.proxy_on_done(id);
      wasm.proxy_on_log(id);
      wasm.proxy_on_delete(id);
    });
    vm.now += 500_000n;
  }

  tick() {
    // The beat that keeps the map fresh.
    const state = this.shared.values.get("wp/s")[0];
    new DataView(state.buffer, state.byteOffset).setBigUint64(16, this.vm.now / 1_000_000n, true);
    this.vm.exports.proxy_on_tick(1);
  }
}

const gateways = [];
for (const file of files) gateways.push(await Gateway.start(file));
for (let done = 0; done < total; done += turn) {
  for (const gateway of gateways) {
    for (let at = done; at < done + turn; at++) gateway.request(bodies[at % bodies.length]);
    gateway.tick();
  }
}
// The first half warms up.
const median = (all) => all.slice(all.length >> 1).sort((a, b) => a - b)[all.length >> 2];
for (const { file, times, vm } of gateways) {
  const medians = times.map(median), sum = medians.reduce((a, b) => a + b);
  const calls = [...vm.calls.values()].reduce((a, b) => a + b, 0);
  const reads = (vm.calls.get("proxy_get_shared_data") ?? 0) / total;
  console.log(file);
  console.log(`  ${phases.map((phase, at) => `${phase} ${medians[at].toFixed(1)}`).join(", ")}; all ${sum.toFixed(1)} µs`);
  console.log(`  ${(calls / total).toFixed(1)} hostcalls, ${reads.toFixed(1)} of them reads of shared data`);
}
if (process.env.TRACE) {
  for (const gateway of gateways) {
    gateway.vm.trace = [];
    gateway.request(bodies[0]);
    gateway.vm.trace.forEach(([name, what]) => console.log(name, what));
    console.log(decoder.decode(gateway.vm.properties.get("warmpath_decision")));
  }
}
