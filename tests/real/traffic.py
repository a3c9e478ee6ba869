"""Requests as clients send them: each API, each way that has a bearing on prompt or cache, in classes."""
import random

from .engines import SERVED

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

WORDS = """library desk item loan reader city branch shelf book tool window rule open close answer question
    week month fee late return card number paper letter street river garden winter summer teacher student""".split()

TOOLS = [{"type": "function", "function": {
    "name": "find_item", "description": "Find an item by its \"title\" <or> year",
    "parameters": {"type": "object", "required": ["title"], "properties": {
        "title": {"type": "string"}, "year": {"type": "integer", "minimum": -3000, "maximum": 1e20}}}}}]


class Request:
    """A request, with the class in which it is counted."""

    def __init__(self, kind, path, body, predicted=True, headers=None):
        self.kind, self.path, self.headers = kind, path, headers
        self.body = {"model": SERVED, **body}
        # Whether usage tells what the engine had cached of this prompt (see CacheUse in the code).
        self.predicted = predicted


def text(chance, sentences):
    """Some plain text: about 10 tokens a sentence."""
    words = lambda: " ".join(chance.choices(WORDS, k=chance.randint(5, 11)))  # noqa: E731
    return " ".join(f"{words().capitalize()} {chance.randint(1, 2026)}." for _ in range(sentences))


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def chats(chance, sentences):
    """A system prompt with its questions, in all ways of the chat API."""
    system = say("system", text(chance, sentences))
    usage = {"include_usage": True}

    def ask(kind, more=(), body=None, **rest):
        question = say("user", text(chance, 2))
        messages = [system, *more, question]
        return Request(kind, CHAT, {"messages": messages, "max_tokens": 3, **(body or {})}, **rest)

    turns = [say("user", text(chance, 3)), say("assistant", text(chance, 12))]
    call = say("assistant", None, tool_calls=[{"id": "call_123456", "type": "function", "function": {
        "name": "find_item", "arguments": "{\"title\": \"Emma\", \"year\": 1815}"}}])
    yield ask("chat")
    yield ask("chat")
    yield ask("chat")
    yield ask("chat, streamed", body={"stream": True, "stream_options": usage})
    yield ask("chat, streamed", body={"stream": True, "stream_options": usage})
    yield ask("chat, further turns", more=turns)
    yield ask("chat, further turns", more=[*turns, say("user", "And then?"), say("assistant", text(chance, 8))])
    parts = [{"type": "text", "text": text(chance, 1)}, {"type": "text", "text": text(chance, 1)}]
    yield ask("chat, parts", more=[say("user", parts), say("assistant", "Yes.")])
    yield ask("chat, parts", more=[say("user", parts), say("assistant", "No.")])
    for _ in range(3):
        yield ask("chat, tools", body={"tools": TOOLS})
    yield ask("chat, tools", body={"tools": TOOLS, "tool_choice": "none"})
    found = say("tool", "{\"found\": true}", tool_call_id="call_123456")
    for _ in range(2):
        yield ask("chat, tool calls", more=[say("user", "Find Emma."), call, found, say("assistant", "Found.")],
                  body={"tools": TOOLS})
    for _ in range(2):
        yield ask("chat, salted", body={"cache_salt": f"tenant{chance.randint(1, 2)}"})
    for _ in range(2):
        yield ask("chat, template arguments", body={"chat_template_kwargs": {"enable_thinking": False}})
    yield ask("chat, log probabilities", body={"logprobs": True, "top_logprobs": 2})
    yield ask("chat, prompt log probabilities", body={"prompt_logprobs": 1})
    yield ask("chat, several answers", body={"n": 2}, predicted=False)


def completions(chance, sentences):
    """A text with its continuations, in all ways of the completions API."""
    start = text(chance, sentences)

    def ask(kind, body=None, **rest):
        return Request(kind, COMPLETIONS, {"prompt": f"{start} {text(chance, 2)}", "max_tokens": 3, **(body or {})}, **rest)

    for _ in range(4):
        yield ask("completions")
    for _ in range(2):
        yield ask("completions, streamed", {"stream": True, "stream_options": {"include_usage": True}})
    yield ask("completions, echo", {"echo": True})
    yield ask("completions, echo", {"echo": True})
    yield ask("completions, echo with log probabilities", {"echo": True, "logprobs": 1, "max_tokens": 1})
    yield ask("completions, no special tokens", {"add_special_tokens": False})
    yield ask("completions, no special tokens", {"add_special_tokens": False})
    yield ask("completions, salted", {"cache_salt": "tenant9"})
    yield ask("completions, salted", {"cache_salt": "tenant9"})
    yield Request("completions, two prompts", COMPLETIONS, {"prompt": [start, start + " a"], "max_tokens": 2}, predicted=False)
    ids = [chance.randint(300, 900) for _ in range(sentences * 10)]
    for _ in range(3):
        more = [chance.randint(300, 900) for _ in range(40)]
        yield Request("completions, token ids", COMPLETIONS, {"prompt": [*ids, *more], "max_tokens": 2})
    yield Request("completions, a whole prompt again", COMPLETIONS, {"prompt": ids, "max_tokens": 2})
    yield Request("completions, a whole prompt again", COMPLETIONS, {"prompt": ids, "max_tokens": 2})


def responses(chance, sentences):
    """Instructions with their questions, in the Responses API."""
    instructions = text(chance, sentences)
    for stream in (False, False, True, True):
        yield Request("responses, streamed" if stream else "responses", RESPONSES, {
            "instructions": instructions, "input": text(chance, 2), "max_output_tokens": 3, "stream": stream,
            "store": False, "metadata": {"usage": "{\"input_tokens\": 1}"}})
    turns = [say("user", text(chance, 2)), say("assistant", text(chance, 4))]
    for _ in range(2):
        yield Request("responses, items", RESPONSES, {
            "instructions": instructions, "input": [*turns, say("user", text(chance, 1))],
            "max_output_tokens": 3, "store": False})


def messages(chance, sentences):
    """A system prompt with its questions, in Anthropic's API."""
    system = text(chance, sentences)
    for stream in (False, False, True, True):
        yield Request("messages, streamed" if stream else "messages", MESSAGES, {
            "system": system, "messages": [say("user", text(chance, 2))], "max_tokens": 3, "stream": stream})
    turns = [say("user", text(chance, 2)), say("assistant", [{"type": "text", "text": text(chance, 6)}])]
    for _ in range(2):
        yield Request("messages, further turns", MESSAGES, {
            "system": [{"type": "text", "text": system}], "messages": [*turns, say("user", text(chance, 1))],
            "max_tokens": 3})


FAMILIES = {"chat": chats, "completions": completions, "responses": responses, "messages": messages}


def mixed(seed, rounds, families, most_sentences=60):
    """`rounds` times all families with texts of their own, dealt out one by one so that they mingle."""
    chance = random.Random(seed)
    for _ in range(rounds):
        decks = [list(FAMILIES[name](chance, chance.randint(12, most_sentences))) for name in families]
        while any(decks):
            deck = chance.choice([deck for deck in decks if deck])
            yield deck.pop(0)


def revisits(seed, count, prefixes, sentences=60):
    """Questions after one of so many texts, more than a small cache holds: blocks go and come."""
    chance = random.Random(seed)
    texts = [text(chance, sentences) for _ in range(prefixes)]
    for _ in range(count):
        # Some are asked for more often than others, as everywhere.
        start = texts[min(int(chance.expovariate(3 / prefixes)), prefixes - 1)]
        yield Request("completions, small cache", COMPLETIONS,
                      {"prompt": f"{start} {text(chance, 3)}", "max_tokens": 4})
