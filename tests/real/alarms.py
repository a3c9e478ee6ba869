"""Each cause that the drift alarm names, caused; and how many requests it took to be named."""
import itertools
import json
import random
import re
import shutil
import threading
import time

from . import traffic
from .engines import SERVED
from .gateway import Gateway
from .processes import free_ports
from .tiny_models import copy_tokenizer

# Requests within which the alarm must sound.
WITHIN = 25
KIND = "llama"


def changed_model(source, out, change):
    """A copy of a model directory's text files, with something that the engine doesn't have."""
    shutil.rmtree(out, ignore_errors=True)
    copy_tokenizer(source, out)
    if (source / "config.json").exists():
        shutil.copy(source / "config.json", out / "config.json")
    change(out)
    return out


def other_tokenizer(directory):
    """Few merges are left: words come to more tokens."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    merges = tokenizer["model"]["merges"]
    # Words that are tokens are else taken whole.
    tokenizer["model"].update(merges=merges[:len(merges) // 50], ignore_merges=False)
    path.write_text(json.dumps(tokenizer))


def longer_template(directory):
    """A newline more at the start of what the template writes."""
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = "{{ '\\n' }}" + config["chat_template"]
    path.write_text(json.dumps(config))


def chats(seed, systems):
    """Questions after one of so many system prompts in turn, without end."""
    chance = random.Random(seed)
    prompts = [traffic.say("system", traffic.text(chance, 60)) for _ in range(systems)]
    while True:
        for system in prompts:
            question = traffic.say("user", traffic.text(chance, 2))
            yield traffic.Request("chat", traffic.CHAT, {"messages": [system, question], "max_tokens": 3})


def one_by_one(gateway, seed, done, systems=1, at=None):
    """Asks until `done` or too late; the number of requests, of those that went to the replica `at` if one is given."""
    count = 0
    for request in itertools.islice(chats(seed, systems), 4 * WITHIN):
        answer = gateway.post(request.path, request.body)
        count += at in (None, answer.explain.get("replica"))
        time.sleep(0.25)
        if done():
            return count
        if count >= 2 * WITHIN:
            break
    return None


def at_the_last(gateway, seed, done):
    """Asks after several system prompts, as each goes to one replica; counts what the last engine gets."""
    return one_by_one(gateway, seed, done, systems=6, at=gateway.endpoints[-1])


def all_at_once(gateway, seed, done):
    """Eight conversations that go on at once, each with texts of its own: together more than 330 blocks of 32."""
    counted, lock = [0], threading.Lock()

    def converse(number):
        chance = random.Random(seed * 100 + number)
        history = traffic.text(chance, 150)
        while counted[0] < 8 * WITHIN and not done():
            gateway.post(traffic.COMPLETIONS, {"model": SERVED, "prompt": history, "max_tokens": 8})
            history += " " + traffic.text(chance, 20)
            if len(history) > 16_000:
                history = traffic.text(chance, 150)
            with lock:
                counted[0] += 1

    threads = [threading.Thread(target=converse, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counted[0] if done() else None


def suspects(gateway):
    """The suspects named so far, in the log of Envoy and of the relay."""
    log = gateway.log()
    # A cache that is too short for what is in flight is told of, and no drift.
    short = ["evictions"] if re.search(r"leave the cache of .*evictions:", log) else []
    return re.findall(r"suspect (\w+):", log) + short


class Cause:
    """One way to go wrong."""

    def __init__(self, name, wanted, drive=one_by_one, change=None, model_settings=None, replica_settings=None):
        self.name, self.wanted, self.drive, self.change = name, wanted, drive, change
        self.model_settings, self.replica_settings = model_settings, replica_settings

    def run(self, tools, engines, model, out, seed):
        """Causes it before a gateway of its own. Whether the alarm named it in time."""
        served = changed_model(model, out / "model", self.change) if self.change else model
        gateway = Gateway(tools, engines, served, out, self.model_settings, self.replica_settings)
        try:
            # An engine's cache knows nothing of the texts of other causes.
            count = self.drive(gateway, seed, lambda: bool(suspects(gateway)))
            named = suspects(gateway)
        finally:
            gateway.stop()
        good = count is not None and count <= WITHIN and named[0] in self.wanted
        print(f"  {self.name:<34} {', '.join(self.wanted):<22} {(named or ['nothing'])[0]:<18} "
              f"{count if count is not None else 'never':>8}  {'ok' if good else 'NOT ok'}", flush=True)
        return good


def all_causes(options, tools, start):
    from .__main__ import model_directory, tokenizers
    from .tiny_models import KINDS

    model = model_directory(KIND, tokenizers()[KIND], options.simulated)
    nobody = free_ports(2)
    silent = {"events": {"connect": f"tcp://127.0.0.1:{nobody[0]}", "replay": f"tcp://127.0.0.1:{nobody[1]}"}}
    # As after an update that one engine didn't get.
    other_version = options.out / "other-version"
    shutil.copytree(model, other_version)
    longer_template(other_version)
    runs = [
        ("with an engine as it should be", [model], [], True, [
            Cause("another tokenizer", ["tokenizer"], change=other_tokenizer),
            Cause("a template with a newline more", ["template"], change=longer_template),
            Cause("events that nobody hears", ["events"], replica_settings=silent),
        ]),
        ("with two engines, one with another template", [model, other_version], [], True, [
            Cause("another version", ["version"], drive=at_the_last),
        ]),
        ("with a cache of 330 blocks", [model], ["--num-gpu-blocks-override", "330"], True, [
            Cause("more in flight than is cached", ["evictions"], drive=all_at_once),
        ]),
        ("without prefix caching", [model], [], False, [Cause("prefix caching off", ["prefix_caching"])]),
    ]
    good = True
    print(f"\n  {'cause':<34} {'suspect wanted':<22} {'named':<18} {'requests':>8}")
    seed = options.seed
    for title, models, flags, caching, causes in runs:
        print(f"real: starting vLLM {title}" if not options.simulated else f"real: starting {title}, SIMULATED", flush=True)
        engines = []
        try:
            for number, directory in enumerate(models):
                log = options.out / f"alarms-{title.replace(' ', '-')}-{number}.log"
                engines.append(start(directory, log, [*KINDS[KIND], *flags], caching))
            for cause in causes:
                seed += 1
                good &= cause.run(tools, engines, model, options.out / cause.name.replace(" ", "-"), seed)
        finally:
            for engine in engines:
                engine.stop()
    print(f"\n{'All causes were named' if good else 'NOT all causes were named'} within {WITHIN} requests.")
    return good
