#!/usr/bin/env python3
"""Ground truth for tokenizer classes: what `transformers` makes of one file under each of them.

The file is that of a model kept here, with other rules than any class has, so that it shows whose
hold. Writes one JSON line per class: what is beside tokenizer.json, what is changed in it, special
tokens, ids of texts. Run by scripts/conformance; `--frozen` writes the small part kept here.
"""

import argparse
import json
import pathlib
import random
import tempfile

from generate import SNIPPETS
from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = {"demo": "models/demo", "metaspace": "conformance/models/metaspace"}

# Digits apart, nothing normalised.
DIGITS = {
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}


def token(text, **flags):
    base = {"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return base | flags


def around(bos):
    """A post-processor that puts a token in front."""
    single = [{"SpecialToken": {"id": bos[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos[0]: {"id": bos[0], "ids": [bos[1]], "tokens": [bos[0]]}},
    }


def variants(frozen):
    """(model, its type, tokenizer_config.json, changes of the file, further files)"""
    byte_level = [
        ("GPT2Tokenizer", "llama"),  # SmolLM2
        ("GPT2Tokenizer", "mistral"),
        (None, "gpt2"),
        ("CodeGenTokenizer", "phi"),
        ("GPTNeoXTokenizerFast", "gpt_neox"),
        ("Qwen2Tokenizer", "qwen2"),
        ("Qwen2Tokenizer", "qwen3_5"),
        ("CohereTokenizerFast", "cohere2"),
        ("LlamaTokenizerFast", "deepseek_v3"),
    ]
    if not frozen:
        byte_level += [
            ("GPT2TokenizerFast", "exaone4"),
            ("GPT2Tokenizer", "minimax_text_01"),
            ("GPT2Tokenizer", None),
            (None, "starcoder2"),
            (None, "phi"),
            ("GPTNeoXTokenizer", "olmoe"),
            ("PreTrainedTokenizerFast", "qwen2"),
            ("PreTrainedTokenizerFast", "qwen3"),
            ("Qwen2TokenizerFast", "qwen3_moe"),
            ("Qwen2Tokenizer", "qwen3_5_text"),
            (None, "qwen3_5"),
            ("CohereTokenizer", "command_x"),
            ("PreTrainedTokenizerFast", "llama"),
            ("PreTrainedTokenizer", "llama"),
            ("UnheardOfTokenizer", "llama"),
            ("LlamaTokenizerFast", "mistral"),
            ("BloomTokenizerFast", "bloom"),
        ]
    for name, kind in byte_level:
        config = {"tokenizer_class": name} if name else {}
        yield "demo", kind, config, DIGITS, {}
    for name, kind in [("GPT2Tokenizer", "llama"), ("PreTrainedTokenizerFast", "llama")]:
        # Tokens of several files, ids with gaps, a post-processor, words taken whole.
        config = {"tokenizer_class": name, "bos_token": "<|begin|>", "eos_token": "<|im_end|>", "add_bos_token": True}
        listed = {"5000": token("<|late|>"), "4990": token("<|begin|>", lstrip=True), "4992": token("two words", special=False, normalized=True)}
        bos = around(("<|im_start|>", 1))
        yield "demo", kind, config | {"added_tokens_decoder": listed}, DIGITS | {"post_processor": bos}, {}
        yield "demo", kind, config | {"image_token": "<img>", "extra_special_tokens": {"row": "<tool_call>"}}, DIGITS, {}
        yield "demo", kind, config | {"additional_special_tokens": ["<|one|>", "<|two|>"], "pad_token": None}, DIGITS, {}
        yield "demo", kind, config, DIGITS, {
            "special_tokens_map.json": {"bos_token": token("<|map|>"), "unk_token": "<|unk|>", "additional_special_tokens": ["<|a|>"]},
            "added_tokens.json": {"<|old|>": 4999, "older word": 4998, "<|map|>": 4997},
        }
    spaces = [
        ("LlamaTokenizer", "llama", {}),
        ("LlamaTokenizerFast", "foo", {"legacy": True}),
        ("LlamaTokenizer", "llama", {"add_prefix_space": False}),
        ("LlamaTokenizer", "mistral", {}),
        ("CodeLlamaTokenizer", "llama", {}),
        ("CodeLlamaTokenizerFast", "code_llama", {"legacy": True, "add_prefix_space": False}),
        ("GemmaTokenizer", "gemma2", {}),
        (None, "gemma3", {}),
        (None, "llama", {}),
        ("PreTrainedTokenizerFast", "llama", {}),
    ]
    for name, kind, more in spaces:
        yield "metaspace", kind, ({"tokenizer_class": name} if name else {}) | more, {}, {}


def texts(count):
    pick = random.Random(7)
    yield "in 1984, 12345 и 1_000"
    yield " two words<|late|> <|begin|> x<img><tool_call><|old|>older word<|map|><|a|><|one|><|endoftext|><s></s>"
    yield "<BOS_TOKEN>a<|padding|> ▁<PRE>b▁<MID>"
    yield from SNIPPETS[: 6 if count < 100 else None]
    for _ in range(count):
        parts = []
        for _ in range(pick.randrange(1, 6)):
            kind = pick.randrange(4)
            if kind == 0:
                parts.append(pick.choice(SNIPPETS))
            elif kind == 1:
                parts.append(str(pick.randrange(10 ** pick.randrange(1, 12))))
            elif kind == 2:
                base = pick.choice([0xC0, 0x300, 0x370, 0x900, 0x1100, 0x1E00, 0x3040])
                parts.append("".join(chr(base + pick.randrange(200)) for _ in range(pick.randrange(1, 12))))
            else:
                parts.append("".join(pick.choice(" \n\t'Aé.9<|") for _ in range(pick.randrange(1, 9))))
        yield pick.choice(["", " "]).join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--frozen", action="store_true")
    args = parser.parse_args()
    with args.out.open("w") as out:
        for model, kind, config, changes, further in variants(args.frozen):
            base = json.loads((ROOT / "tests/fixtures" / MODELS[model] / "tokenizer.json").read_text())
            files = {"tokenizer.json": base | changes, "tokenizer_config.json": config} | further
            if kind is not None:
                files["config.json"] = {"model_type": kind}
            with tempfile.TemporaryDirectory() as folder:
                for name, value in files.items():
                    pathlib.Path(folder, name).write_text(json.dumps(value))
                # As vLLM 0.32 calls it.
                tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side="left", mistral_format=False)
            del files["tokenizer.json"]
            case = {"model": model, "changes": changes, "files": files, "class": type(tokenizer).__name__}
            case["special"] = tokenizer.special_tokens_map
            case["texts"] = [[text, tokenizer.encode(text)] for text in texts(6 if args.frozen else args.count)]
            out.write(json.dumps(case, ensure_ascii=False) + "\n")


main()
