#!/usr/bin/env python3
"""Ground truth for prompts: what `transformers` makes of texts and chats, per model directory.

Writes one JSON line per case: the request's body, the rendered prompt, the token ids.
Run by scripts/conformance; `--frozen` writes the small part that is kept in the repository.

The chats below carry, beside the request, what vLLM passes to the template for it
(vllm/renderers/chat_utils.py, 0.32): tools with their nulls, arguments as objects, joined parts.
"""

import argparse
import gzip
import json
import pathlib
import random
import re
import shutil
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

SNIPPETS = [
    "Hello, world!", "I'm sure they'll've gone; it's John's. WE'RE DON'T 'S 'ſ",
    "The quick brown fox jumps over the lazy dog.", "naïve café smørrebrød Straße Žluťoučký kůň",
    "Привет, как дела? Всё хорошо.", "Καλημέρα κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "สวัสดีชาวโลก", "漢字かな交じり文、これはテストです。", "你好，世界！", "안녕하세요 세계", "ქართული ენა",
    "def f(x: int) -> str:\n    return f\"{x!r}\"\n\n\nclass A:\n\tpass\n",
    "#include <stdio.h>\r\nint main(void) {\r\n  printf(\"%d\\n\", 1 << 10);\r\n}\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_%';", "<div class=\"a\">&nbsp;</div>",
    "🙂🙃 👩‍👩‍👧‍👦 🇪🇺 ✈️ ☃", "e\u0301 o\u0308 A\u030a \u1112\u1161\u11ab \u0915\u093c \u2126 \ufb01",
    "1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ १२३", "  leading", "trailing  ", "a  b   c    d", "\t\ttabs\t",
    "line\nline\n\nline\n\n\n  line\n \n\t\n", "\r\n\r\n", "   \n   x", "a\u00a0b\u3000c\u2009d\u200be\u2028f\u0085g",
    "\x00\x01\x02\x1b[0m\x7f\x80", "https://example.org/a?b=c&d=%20#e", "foo_bar.baz::Qux<T>(a, b)...!!!???",
    "camelCaseWordsAndSNAKE_CASE_WORDS HTTPServer iPhone15Pro", "—–‘’“”«»¿¡§¶†", "\ufeffBOM \ufffd \ue000 \U0010ffff",
    "ǅ ǈ ʰ ˆ ª º ĳ ẞ İ ı Ǆ", "a\u0300\u0301\u0302\u0303b", "ﷺ ㎏ ①②③ ㍻",
]

SYSTEM = "You are the support assistant of a public library. Answer in plain words."

TOOL = {
    "type": "function",
    "function": {
        "name": "find_item",
        "description": "Find <an> item's \"place\"",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "year": {"type": "integer", "default": 1e3, "min": -1.5}},
            "required": ["title"],
        },
    },
}
BARE = {"type": "function", "function": {"name": "now"}}
BARE_DUMPED = {"type": "function", "function": {"name": "now", "description": None, "parameters": None}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def chats():
    """(request, what the template gets): messages and tools are the request's unless given."""
    system = {"role": "system", "content": SYSTEM}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find_item", "arguments": "{\"year\": 1999, \"title\": \"Café <1>\"}"}}
    called = {"id": "abcdefghi", "function": {"arguments": {"year": 1999, "title": "Café <1>"}, "name": "find_item"}, "type": "function"}
    yield {"messages": [user("Hi")]}, {}
    yield {"messages": [system, user("Hi")]}, {}
    yield {"messages": [system, user("How long?"), assistant("11 days."), user("And item 42?")]}, {}
    yield {"messages": [user("  spaces around \n"), assistant(" x "), user("\n")]}, {}
    yield {"messages": [user("Hi")], "add_generation_prompt": False}, {"add_generation_prompt": False}
    for snippet in SNIPPETS:
        yield {"messages": [system, user(snippet)]}, {}
    yield (
        {"messages": [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]},
        {"messages": [user("one\ntwo")]},
    )
    yield {"messages": [system, user("Where is it?")], "tools": [TOOL]}, {}
    yield {"messages": [user("When?")], "tools": [BARE, TOOL]}, {"tools": [BARE_DUMPED, TOOL]}
    turn = [system, user("Where?"), {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "abcdefghi", "content": "Shelf 7"}]
    seen = [system, user("Where?"), {"role": "assistant", "content": "", "tool_calls": [called]}, {"role": "tool", "content": "Shelf 7", "tool_call_id": "abcdefghi"}]
    yield {"messages": turn, "tools": [TOOL]}, {"messages": seen}
    yield {"messages": turn + [assistant("On shelf 7."), user("Thanks")], "tools": [TOOL]}, {"messages": seen + [assistant("On shelf 7."), user("Thanks")]}
    yield (
        {"messages": [user("2+2?"), assistant("<think>\nfour\n</think>\n\n4"), user("Sure?")]},
        {},
    )
    yield (
        {"messages": [user("2+2?"), {"role": "assistant", "content": "4", "reasoning_content": "easy"}]},
        {"messages": [user("2+2?"), {"role": "assistant", "content": "4", "reasoning": "easy", "reasoning_content": "easy"}]},
    )
    for thinking in (False, True):
        kwargs = {"enable_thinking": thinking}
        yield {"messages": [user("Hi")], "chat_template_kwargs": kwargs}, kwargs
    yield (
        {"messages": [user("Hi"), assistant("The answer is")], "continue_final_message": True, "add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
    )


def texts(tokenizer, pick, count):
    added = sorted(tokenizer.get_added_vocab())
    few = added[:6] + added[-6:]
    yield from SNIPPETS
    yield ""
    yield "a" * 100_000
    yield "ab" * 5_000 + " " * 3_000 + "\n" * 500 + "x"
    yield "漢" * 20_000
    yield " ".join(SNIPPETS) * 30
    yield "".join(few)
    for token in few:
        yield f"a {token} b"
        yield f"{token}{token[:-1]} x\n{token[1:]}"
    for _ in range(count):
        parts = []
        for _ in range(pick.randrange(1, 8)):
            kind = pick.randrange(8)
            if kind < 3:
                parts.append(pick.choice(SNIPPETS))
            elif kind == 3:
                parts.append(pick.choice(few) if few else "<x>")
            elif kind == 4:
                parts.append("".join(pick.choice(" \n\t\r\u00a0") for _ in range(pick.randrange(1, 6))))
            elif kind == 5:
                parts.append("".join(chr(pick.randrange(32, 127)) for _ in range(pick.randrange(1, 30))))
            elif kind == 6:
                base = pick.choice([0xC0, 0x300, 0x370, 0x900, 0x1100, 0x1E00, 0x2000, 0x3040, 0xAC00, 0x1F300])
                parts.append("".join(chr(base + pick.randrange(200)) for _ in range(pick.randrange(1, 12))))
            else:
                parts.append("'" + pick.choice(["s", "S", "ll", "Re", "ſ", "x", "d"]) + pick.choice(["", "a", " ", "1"]))
        yield pick.choice(["", " "]).join(parts)


def every_character():
    """All of Unicode, between a letter, a digit and a space, so that its kind shows."""
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for at in range(0, len(chars), 256):
        yield "a1 ".join(chars[at : at + 256])


def load(path):
    """The tokenizer that an engine loads. Without a config.json `transformers` goes by the class
    that tokenizer_config.json names, which is wrong for some models (DeepSeek V3: Llama's)."""
    kind = AutoTokenizer if (path / "config.json").exists() else PreTrainedTokenizerFast
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
            if (path / name).exists():
                shutil.copy(path / name, folder)
        packed = path / "tokenizer.json.gz"
        if packed.exists():
            pathlib.Path(folder, "tokenizer.json").write_bytes(gzip.decompress(packed.read_bytes()))
        return kind.from_pretrained(folder)


def takes_parts(template):
    """Whether the template goes over the parts of a content: vLLM then passes it as a list."""
    return bool(re.search(r"for \w+ in (message|m)(\.content|\[.content.\])", template or ""))


def with_parts(message, sent):
    content = sent["content"]
    if message["role"] == "tool":
        return message
    if not isinstance(content, list):
        content = [] if content is None else [{"type": "text", "text": content}]
    return message | {"content": content}


def cases(tokenizer, count, everything):
    pick = random.Random(11)
    for text in texts(tokenizer, pick, count):
        yield {"body": {"prompt": text}, "text": text, "ids": tokenizer.encode(text)}
    if everything:
        for text in every_character():
            yield {"body": {"prompt": text}, "text": text, "ids": tokenizer.encode(text)}
    parts = takes_parts(tokenizer.chat_template)
    for body, given in chats():
        options = {"messages": body["messages"], "tools": body.get("tools"), "add_generation_prompt": True} | given
        messages = options.pop("messages")
        if parts:
            messages = [with_parts(*pair) for pair in zip(messages, body["messages"])]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except Exception:  # The template refuses, and so must we.
            yield {"body": body, "refused": True}
            continue
        yield {"body": body, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=pathlib.Path, help="model directories")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--count", type=int, default=3000, help="random texts per model")
    parser.add_argument("--frozen", action="store_true", help="the small part only")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.models:
        tokenizer = load(path)
        out = args.out / f"{path.name}.jsonl"
        written = 0
        with out.open("w") as file:
            for case in cases(tokenizer, 60 if args.frozen else args.count, not args.frozen):
                if args.frozen and len(case.get("ids", ())) > 800:
                    continue
                file.write(json.dumps(case, ensure_ascii=False) + "\n")
                written += 1
        print(f"{out}: {written} cases")


if __name__ == "__main__":
    main()
