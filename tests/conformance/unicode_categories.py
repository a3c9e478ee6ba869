#!/usr/bin/env python3
"""Writes prompt/src/tokenizer/categories.rs: Unicode general categories as the engines see them.

Engines split text with Oniguruma inside `tokenizers`, and Oniguruma has its own copy of Unicode.
This asks that copy, character by character, so that the table agrees with the engine and not with
whatever Unicode version a Rust crate was built from.

    pip install tokenizers && tests/conformance/unicode_categories.py > prompt/src/tokenizer/categories.rs
"""

import tokenizers
from tokenizers import Regex, pre_tokenizers

CATEGORIES = (
    "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
)

TEXT = "".join(map(chr, [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]))


def members(pattern: str) -> set[str]:
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found: set[str] = set()
    for piece, _ in split.pre_tokenize_str(TEXT):
        found.update(piece)
    return found


def main() -> None:
    category = {}
    for number, name in enumerate(CATEGORIES):
        for char in members(rf"\p{{{name}}}+"):
            category[char] = number
    assert len(category) == len(TEXT), "every character has a category"
    runs = []
    for char in TEXT:
        if not runs or runs[-1][1] != category[char]:
            runs.append((ord(char), category[char]))
    spaces = sorted(map(ord, members(r"\s+")))
    print("//! Unicode general categories and white space, as Oniguruma has them.")
    print("//!")
    print(f"//! Written by tests/conformance/unicode_categories.py with tokenizers {tokenizers.__version__}.")
    print()
    print("/// The names, in the order of the numbers below.")
    print(f"pub(super) const NAMES: [&str; {len(CATEGORIES)}] = [")
    for name in CATEGORIES:
        print(f'    "{name}",')
    print("];")
    print()
    print("/// Characters that `\\s` matches.")
    print(f"pub(super) const SPACES: [u32; {len(spaces)}] = [")
    for space in spaces:
        print(f"    0x{space:x},")
    print("];")
    print()
    print("/// Runs of one category: first character << 8 | category, up to the next run.")
    print("#[rustfmt::skip]")
    print("#[allow(clippy::unreadable_literal)]")
    print(f"pub(super) static RUNS: [u32; {len(runs)}] = [")
    for at in range(0, len(runs), 10):
        print("    " + ", ".join(f"0x{start << 8 | number:x}" for start, number in runs[at : at + 10]) + ",")
    print("];")


main()
