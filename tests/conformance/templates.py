#!/usr/bin/env python3
"""Ground truth for templates: what Jinja2 in the environment of `transformers` makes of small ones.

Writes one JSON line per template: its source, and the text that came of it; none where it fails.
Run by scripts/conformance; `--frozen` writes the small part kept here.
"""

import argparse
import copy
import json
import pathlib
import random
import re

from transformers.utils.chat_template_utils import render_jinja_template

# What templates are given as `messages`.
MESSAGES = [
    {"role": "user", "content": "it's <b>\"x\"</b> & é\n"},
    {
        "role": "assistant",
        "content": " a,b,,c ",
        "n": {"f": 1e20, "g": 0.5, "i": 3, "t": True, "z": None, "s": "it's"},
        "l": [1, 2.0, "a'b", None, False, {"k": -1e-7}],
        "e": {},
        "w": "ﬁ Straße ǆ ŉ ΑΣΩ. ŒUVRE",
    },
]
# Views and marked texts printed as what they are in Python, which no template means.
KNOWN = re.compile(r" at 0x|dict_(items|keys|values)\(|Markup\(", re.IGNORECASE)
TEXTS = ["m.content", "a.content", "'<i>'", "''", "'it\\'s'", "a.n.s", "a.w", "'x-y z'", "\"a\\tb\""]
VALUES = ["a.n", "a.l", "a.e", "a.n.f", "a.n.g", "a.n.i", "a.n.t", "a.n.z", "1.0", "2", "-3", "true", "none",
          "[1.0, 'a']", "{'k': 1.5, 'é': none}", "('a', 1)", "a.l[5]", "[]", "a.n.items()|list", "a.n.keys()|list", "range(3)|list"]
FILTERS = ["upper", "lower", "trim", "title", "capitalize", "string", "safe", "e", "escape", "length", "list", "first", "last",
           "tojson", "tojson(indent=2)", "replace('a', 'bb')", "replace(1, 2)", "join(', ')", "join", "default('d')", "d(1.5, true)",
           "int", "float", "abs", "round", "round(1)", "reverse", "sort", "unique|list", "items|list", "dictsort", "sum", "min", "max",
           "indent", "indent(2, true)", "wordcount", "center(12)", "format(1)", "map('string')|list", "map('upper')|join('+')",
           "select('string')|list", "reject('none')|list", "batch(2)|list", "pprint", "striptags", "truncate(3)", "urlencode", "forceescape",
           "string|length", "safe|upper", "safe|string", "safe|trim", "tojson|safe", "lower|title", "select|list"]
METHODS = ["upper()", "lower()", "strip()", "lstrip()", "rstrip()", "split()", "split(',')", "split(',', 1)", "replace('a', 'b')",
           "startswith('a')", "endswith(('a', ' '))", "title()", "capitalize()", "find('b')", "count('a')", "swapcase()", "splitlines()",
           "isdigit()", "isalpha()", "isupper()", "rsplit(',', 1)", "partition(',')", "zfill(9)", "join(['a', 'b'])", "rfind('b')",
           "removeprefix('a')", "ljust(5)", "casefold()", "isspace()", "index('z')", "expandtabs()", "encode()", "format(1)", "center(9)"]
OPERATORS = ["+", "~", "*", "-", "/", "//", "%", "==", "!=", "<", "in", "and", "or", "**"]
TESTS = ["string", "number", "integer", "float", "boolean", "mapping", "iterable", "none", "defined", "true", "false",
         "undefined", "odd", "even", "lower", "upper", "callable", "sameas(true)", "eq(1)", "in([1, 2])"]
FIXED = [
    "{{ 'a' ~ a.n.f ~ a.n.g ~ a.n }}", "{{ a.l ~ '' }}", "{{ a.l|join('|') }}", "{{ [a.n.f, true, none, {'a': 1.0}]|join('-') }}",
    "{{ a.n.f|replace('1', '2') }}", "{{ a.n|upper }}", "{{ a.n|string }}", "{{ a.l|string|upper }}", "{{ '%s|%s'|format(a.n, 1e20) }}",
    "{{ '%s %d %.2f %r' % ('a', 3, 0.5, 'b') }}", "{{ '%s' % a.n.f }}", "{{ '<'|safe + '<' }}", "{{ '<' + '<'|safe + \"'\" }}",
    "{{ '<'|safe ~ '<' }}", "{{ ['<', '<'|safe]|join('>') }}", "{{ a.n|tojson + '<' }}", "{{ a.n|tojson|safe + m.content }}",
    "{% set x %}<b>{% endset %}{{ x + '<' }}", "{% macro f() %}<{% endmacro %}{{ f() + '<' }}", "{{ ('<'|safe).upper() + '<' }}",
    "{{ ('a,<'|safe).split(',')[0] + '<' }}", "{{ '<'|e + '<' }}", "{{ ('%s'|safe) % '<' }}",
    "{{ '<'|safe * 2 + '<' }}", "{{ m.content|e ~ '<' }}", "{{ ('<'|safe)|replace('<', '&') + '<' }}", "{{ ('a'|safe)|string + '<' }}",
    "{% set ns = namespace(x='') %}{% for v in a.l %}{% set ns.x = ns.x ~ v %}{% endfor %}{{ ns.x }}",
    "{% for k, v in a.n|items %}{{ k }}={{ v }};{% endfor %}", "{% for k in a.n %}{{ k ~ ':' ~ a.n[k] }}{% endfor %}",
]


def expression(pick, depth=0):
    kind = pick.randrange(9 if depth < 3 else 2)
    inner = lambda: expression(pick, depth + 1)
    if kind == 0:
        return pick.choice(TEXTS)
    if kind == 1:
        return pick.choice(VALUES)
    if kind in (2, 3):
        return f"({inner()})|{pick.choice(FILTERS)}"
    if kind == 4:
        return f"({inner()}).{pick.choice(METHODS)}"
    if kind in (5, 6):
        return f"({inner()} {pick.choice(OPERATORS)} {inner()})"
    if kind == 7:
        # A slice of none is undefined there and a list here.
        of = inner()
        return of if "none" in of or "a.n.z" in of else f"({of})[{pick.choice(['0', '-1', '1:', ':2', '::-1', ':-1'])}]"
    return f"(({inner()}) is {pick.choice(['', 'not '])}{pick.choice(TESTS)})"


def sources(count):
    yield from FIXED
    pick = random.Random(3)
    for text in VALUES:
        yield "{{ 'x' ~ " + text + " }}{{ " + text + " }}"
        for name in ("string", "upper", "replace('a', 'b')", "tojson", "join('-')", "trim", "title", "length"):
            yield "{{ " + text + "|" + name + " }}"
    for text in TEXTS:
        for name in METHODS:
            yield "{{ (" + text + ")." + name + " }}"
    for _ in range(count):
        yield "{{ " + expression(pick) + " }}" + pick.choice(["", "x"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--frozen", action="store_true")
    args = parser.parse_args()
    with args.out.open("w") as out:
        for source in dict.fromkeys(sources(150 if args.frozen else args.count)):
            source = "{% set m = messages[0] %}{% set a = messages[1] %}" + source
            try:
                text = render_jinja_template(conversations=[copy.deepcopy(MESSAGES)], chat_template=source)[0][0]
            except Exception:  # Whatever it is, the engine has no prompt.
                text = None
            if text is not None and KNOWN.search(text):
                continue
            out.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
