"""Relay and Envoy before the engines of one pool, from the quick start's own configuration."""
import http.client
import json
import re
import time

import yaml

from .engines import SERVED
from .processes import Failed, Process, free_ports, get

POOL = "tiny-here"


class Answer:
    """What came back through Envoy."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.explain = dict(re.findall(r'([\w-]+)="?([^",]*)"?', headers.get("x-warmpath-explain", "")))

    @property
    def expected(self):
        """Tokens that the filter expected to be cached; none where the map was not asked."""
        cached = self.explain.get("cached")
        return int(cached) if cached is not None else None

    def json(self):
        """The body; of a stream its events, and those of the Responses API unwrapped."""
        text = self.body.decode()
        if not text.startswith(("data:", "event:")):
            return json.loads(text)
        lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def actual(self):
        """Tokens that the engine says were cached; none where it says nothing."""
        events = self.json()
        found = None
        for event in events if isinstance(events, list) else [events]:
            for part in (event, event.get("response") or {}, event.get("message") or {}):
                usage = part.get("usage") or {}
                details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
                cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
                if cached is None and "prompt_tokens_details" in usage:
                    cached = 0
                if cached is not None:
                    found = max(found or 0, cached)
        return found


class Gateway:
    """A relay and an Envoy. Keep one per run: what it learned goes with it."""

    def __init__(self, tools, engines, model, out, model_settings=None, replica_settings=None):
        self.listen, self.admin, self.relay, self.relay_admin = free_ports(4)
        out.mkdir(parents=True, exist_ok=True)
        self.endpoints = [f"127.0.0.1:{engine.port}" for engine in engines]
        replicas = [{"endpoint": f"127.0.0.1:{engine.port}", "pool": POOL, "model": SERVED,
                     "events": {"connect": f"tcp://127.0.0.1:{engine.events}",
                                "replay": f"tcp://127.0.0.1:{engine.replay}"},
                     **(replica_settings or {})} for engine in engines]
        described = {"name": SERVED, "path": str(model), "version": "1", "served_names": [SERVED], "adapters": []}
        described.update(model_settings or {})
        relay = {"listen": f"127.0.0.1:{self.relay}", "admin": f"127.0.0.1:{self.relay_admin}",
                 "polling": {"rtt_ms": 0}, "models": [described], "replicas": replicas}
        relay_file, envoy_file = out / "relay.yaml", out / "envoy.yaml"
        relay_file.write_text(yaml.safe_dump(relay))
        quickstart = yaml.safe_load((tools.root / "envoy/quickstart.yaml").read_text())
        envoy_file.write_text(yaml.safe_dump(self.rewrite(quickstart, tools, [engine.port for engine in engines])))
        self.processes = []
        try:
            self.start("relay", [tools.warmpath, "relay", "--config", relay_file], out, self.relay_admin, "/healthz")
            self.start("Envoy", [tools.envoy, "-c", envoy_file, "--base-id", self.listen, "--concurrency", "2",
                                 "--log-level", "warning"], out, self.admin, "/ready")
            self.wait_until_warm()
        except BaseException:
            self.stop()
            raise

    def start(self, name, command, out, port, path):
        process = Process(name, command, out / f"{name.lower()}.log")
        self.processes.append(process)
        process.wait_for(f"http://127.0.0.1:{port}{path}", 60)

    def stop(self):
        for process in reversed(self.processes):
            process.stop()

    def rewrite(self, quickstart, tools, ports):
        """The quick start with one pool, whose engines are at `ports`; itself on free ports."""
        quickstart["admin"]["address"]["socket_address"]["port_value"] = self.admin
        listener = quickstart["static_resources"]["listeners"][0]
        listener["address"]["socket_address"]["port_value"] = self.listen
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        hosts = manager["route_config"]["virtual_hosts"]
        manager["route_config"]["virtual_hosts"] = [dict(hosts[0], domains=["*"])]
        service = quickstart["bootstrap_extensions"][0]["typed_config"]["config"]
        router = next(one for one in manager["http_filters"] if one["name"] == "warmpath")["typed_config"]["config"]
        for wasm in (service, router):
            wasm["vm_config"]["code"]["local"]["filename"] = str(tools.filter)
        policy = json.loads(router["configuration"]["value"])
        policy["pools"] = {POOL: {"region": "eu-west", "model": SERVED}}
        policy["zones"] = {"eu": {"jurisdictions": ["EU"], "clusters": {POOL: f"eu.{POOL}"}}}
        router["configuration"]["value"] = json.dumps(policy)
        clusters = quickstart["static_resources"]["clusters"]
        pool = next(one for one in clusters if one["name"] == "eu.demo-eu-west")
        relay = next(one for one in clusters if one["name"] == "warmpath-relay")
        pool["name"] = pool["load_assignment"]["cluster_name"] = f"eu.{POOL}"
        set_hosts(pool, ports)
        set_hosts(relay, [self.relay])
        quickstart["static_resources"]["clusters"] = [pool, relay]
        return quickstart

    def wait_until_warm(self):
        """Until the filter has a fresh map and the model's tokenizer, in each worker that answers."""
        end = time.monotonic() + 90
        good = 0
        while time.monotonic() < end:
            answer = self.post("/v1/completions", {"model": SERVED, "max_tokens": 1, "prompt": "up?"})
            fresh = answer.status == 200 and not {"degrade", "degraded"} & set(answer.explain)
            good = good + 1 if fresh and answer.explain.get("reason") in ("cold", "warm") else 0
            if good == 8:
                return
            time.sleep(0.2)
        warnings = [line for line in self.processes[0].log.read_text(errors="replace").splitlines() if " WARN " in line]
        raise Failed(f"the filter is not ready: last answer {answer.status} {answer.explain} {answer.body[:300]};"
                     f" the relay's last warning: {warnings[-1:]}")

    def post(self, path, body, headers=None):
        """Sends one request on a connection of its own, so that all workers get some."""
        connection = http.client.HTTPConnection("127.0.0.1", self.listen, timeout=300)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def stats(self, prefix="wasmcustom.warmpath.router."):
        """Envoy's counters and gauges of the filter, by name without the prefix."""
        text = (get(f"http://127.0.0.1:{self.admin}/stats?filter={prefix}") or b"").decode()
        pairs = (line.rsplit(": ", 1) for line in text.splitlines() if line.startswith(prefix))
        return {name[len(prefix):]: int(value) for name, value in pairs if value.isdigit()}

    def status(self):
        """The relay's /status."""
        return json.loads(get(f"http://127.0.0.1:{self.relay_admin}/status") or b"{}")

    def log(self):
        """What Envoy wrote to its log: the filter's messages, beside the access log."""
        return self.processes[1].log.read_text(errors="replace")


def set_hosts(cluster, ports):
    endpoint = cluster["load_assignment"]["endpoints"][0]
    endpoint["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports]
