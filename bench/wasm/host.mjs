// A host for the filter, as small as can be: what Envoy gives it, from memory, counted and timed.
// In V8 as in Envoy, but without Envoy: what is measured is the wasm and the crossings alone.
import { WASI } from "node:wasi";

const OK = 0, NOT_FOUND = 1, CAS_MISMATCH = 8, INTERNAL_FAILURE = 10;
const text = new TextDecoder(), utf8 = new TextEncoder();

/** Shared data of all VMs: key -> [bytes, version]. */
export class Shared {
  values = new Map();
  versions = 0;
}

/** One VM. `calls` counts hostcalls by name; `now` is the clock in nanoseconds (BigInt); a hostcall for whose
 * name `fails` says yes is refused. */
export class Vm {
  calls = new Map();
  trace = null;
  fails = null;
  now = 1_700_000_000_000_000_000n;
  buffers = new Map();
  maps = new Map();
  properties = new Map();
  metrics = [];
  sent = [];

  static async start(module, shared, configuration) {
    const vm = new Vm();
    vm.shared = shared;
    const wasi = new WASI({ version: "preview1" });
    const imports = { wasi_snapshot_preview1: wasi.wasiImport, env: {} };
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      if (from !== "env") continue;
      const call = vm[name]?.bind(vm) ?? (() => { throw new Error(`not in this host: ${name}`); });
      imports.env[name] = (...args) => {
        vm.calls.set(name, (vm.calls.get(name) ?? 0) + 1);
        if (vm.trace) vm.trace.push([name, name.includes("header_map_value") ? vm.read(args[1], args[2])
          : name.includes("shared_data") ? vm.read(args[0], args[1])
          : name.includes("property") ? vm.read(args[0], args[1]).replaceAll("\0", ".")
          : name.includes("metric") ? (vm.metrics[args[0]] ?? "") : ""]);
        return vm.fails?.(name) ? INTERNAL_FAILURE : call(...args);
      };
    }
    const instance = await WebAssembly.instantiate(module, imports);
    vm.exports = instance.exports;
    wasi.initialize(instance);
    vm.buffers.set(7, utf8.encode(JSON.stringify(configuration)));
    vm.exports.proxy_on_context_create(1, 0);
    vm.exports.proxy_on_vm_start(1, 0);
    if (!vm.exports.proxy_on_configure(1, vm.buffers.get(7).length)) throw new Error("refused");
    return vm;
  }

  get memory() { return this.exports.memory.buffer; }
  view() { return new DataView(this.memory); }
  slice(at, size) { return new Uint8Array(this.memory, at, size); }
  read(at, size) { return text.decode(this.slice(at, size)); }

  give(bytes, data, size) {
    const at = this.exports.proxy_on_memory_allocate(bytes.length);
    this.slice(at, bytes.length).set(bytes);
    const view = this.view();
    view.setUint32(data, at, true);
    view.setUint32(size, bytes.length, true);
    return OK;
  }

  proxy_log(level, at, size) {
    if (level > 2) console.error(this.read(at, size));
    return OK;
  }
  proxy_get_current_time_nanoseconds(at) { this.view().setBigUint64(at, this.now, true); return OK; }
  proxy_set_tick_period_milliseconds() { return OK; }
  proxy_set_effective_context() { return OK; }
  proxy_get_buffer_bytes(kind, start, most, data, size) {
    const bytes = this.buffers.get(kind);
    if (!bytes) return NOT_FOUND;
    return this.give(bytes.subarray(start, Math.min(bytes.length, start + (most >>> 0))), data, size);
  }
  proxy_get_header_map_value(map, key, length, data, size) {
    return this.give(utf8.encode(this.maps.get(map)?.get(this.read(key, length)) ?? ""), data, size);
  }
  proxy_get_header_map_pairs(map, data, size) {
    const pairs = [...this.maps.get(map)].map((pair) => pair.map((part) => utf8.encode(part)));
    const total = pairs.reduce((sum, [a, b]) => sum + a.length + b.length + 10, 4);
    const bytes = new Uint8Array(total), view = new DataView(bytes.buffer);
    view.setUint32(0, pairs.length, true);
    let at = 4 + 8 * pairs.length;
    pairs.forEach((pair, number) => pair.forEach((part, second) => {
      view.setUint32(4 + 8 * number + 4 * second, part.length, true);
      bytes.set(part, at);
      at += part.length + 1;
    }));
    return this.give(bytes, data, size);
  }
  proxy_replace_header_map_value(map, key, length, value, size) {
    this.maps.get(map)?.set(this.read(key, length), this.read(value, size));
    return OK;
  }
  proxy_remove_header_map_value(map, key, length) { this.maps.get(map)?.delete(this.read(key, length)); return OK; }
  proxy_get_property(path, length, data, size) {
    const value = this.properties.get(this.read(path, length));
    return value ? this.give(value, data, size) : NOT_FOUND;
  }
  proxy_set_property(path, length, value, size) {
    this.properties.set(this.read(path, length), this.slice(value, size).slice());
    return OK;
  }
  proxy_get_shared_data(key, length, data, size, cas) {
    const found = this.shared.values.get(text.decode(this.slice(key, length)));
    if (!found) return NOT_FOUND;
    this.view().setUint32(cas, found[1], true);
    return this.give(found[0], data, size);
  }
  proxy_set_shared_data(key, length, value, size, version) {
    const name = this.read(key, length), found = this.shared.values.get(name);
    if (version && found && found[1] !== version) return CAS_MISMATCH;
    this.shared.values.set(name, [this.slice(value, size).slice(), ++this.shared.versions]);
    return OK;
  }
  proxy_send_local_response(status, _, __, at, size) {
    this.answered = status;
    this.answer = this.read(at, size);
    return OK;
  }
  proxy_grpc_stream(...args) { this.view().setUint32(args.at(-1), 77, true); return OK; }
  proxy_grpc_send() { return OK; }
  proxy_grpc_cancel() { return OK; }
  proxy_define_metric(kind, name, size, id) {
    this.view().setUint32(id, this.metrics.push(this.read(name, size)) - 1, true);
    return OK;
  }
  proxy_record_metric() { return OK; }
  proxy_increment_metric() { return OK; }
  proxy_call_foreign_function() { return OK; }
}
