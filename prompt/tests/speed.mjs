// Runs speed.rs in V8, with artefacts that a native run left in a directory:
//   ARTEFACTS=DIR MODELS=… cargo test --release … (see speed.rs)
//   cargo test --release --no-run --target wasm32-wasip1 -p warmpath-prompt --features preprocess --test speed
//   node prompt/tests/speed.mjs target/wasm32-wasip1/release/deps/speed-*.wasm DIR NAME…
// Envoy's V8 has no baseline compiler: `node --no-liftoff --no-wasm-tier-up` is nearest to it.
import { WASI } from "node:wasi";
import { readFileSync } from "node:fs";

const [, , file, dir, ...names] = process.argv;
const wasi = new WASI({
  version: "preview1",
  args: ["speed", "--ignored", "--nocapture"],
  env: { MODELS: names.map((name) => `/artefacts/${name}.warmpath`).join(":"), RUST_TEST_THREADS: "1" },
  preopens: { "/artefacts": dir },
});
const module = await WebAssembly.compile(readFileSync(file));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
const status = wasi.start(instance);
console.log(`${instance.exports.memory.buffer.byteLength / 1e6} MB of memory at the end`);
process.exitCode = status;
