"""The engines: vLLM as its package has it, or Warmpath's simulated one to try this driver."""
import json
import sys

from .processes import Process, free_ports

SERVED = "tiny"


class Engine:
    """A running engine."""

    def __init__(self, process, port, events, replay):
        self.process, self.port, self.events, self.replay = process, port, events, replay

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.process.stop()


def healthy(process, seconds, port, events, replay):
    """The engine of a process, once it answers; a process that doesn't in time is ended."""
    try:
        process.wait_for(f"http://127.0.0.1:{port}/health", seconds)
    except BaseException:
        process.stop()
        raise
    return Engine(process, port, events, replay)


def vllm(model, log, flags=(), caching=True):
    """Starts vLLM and waits until it is healthy, which takes a tiny model one to three minutes."""
    port, events, replay = free_ports(3)
    publish = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv",
               "endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
    if not caching:
        publish = {"enable_kv_cache_events": False}
    environment = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "2", "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", SERVED, "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16",
        "--max-model-len", 8192, "--enforce-eager", "--max-num-seqs", 16,
        "--enable-prefix-caching" if caching else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(publish), *flags,
    ]
    return healthy(Process("vLLM", command, log, environment), 900, port, events, replay)


def simulated(binary, model, log, flags=(), caching=True):
    """Warmpath's own engine, which is SIMULATED: it shows that this driver works, nothing else."""
    port, events, replay = free_ports(3)
    command = [binary, "engine", "--model", model, "--served-model-name", SERVED, "--port", port,
               "--kv-events-endpoint", f"tcp://*:{events}",
               "--kv-events-replay-endpoint", f"tcp://*:{replay}", "--speedup", 20, *flags,
               *([] if caching else ["--no-enable-prefix-caching"])]
    return healthy(Process("the simulated engine", command, log), 30, port, events, replay)
