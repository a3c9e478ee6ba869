#!/usr/bin/env python3
"""Trains small tokenizers of SentencePiece's kind into tests/fixtures/conformance/models.

One vocabulary under the rules for spaces that model families use: `prepend` as older files have
them, `metaspace` as LlamaTokenizer sets them, `gemma` as GemmaTokenizer does. For tests only; the
text is this project's own and its licence. Needs `tokenizers` from PyPI.
"""

import json
import pathlib

from tokenizers import Tokenizer, models, normalizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests/fixtures/conformance/models"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
MORE = "Žluťoučký kůň, naïve café, Straße. Привет, как дела? 漢字かな交じり文、これはテスト。 it's 'twas \t\t    x = [1, 2]\n\n\n"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}"
    "<<{{ m.role }}>> {{ m.content }}\n{% endif %}{% endfor %}"
)


def main():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    words = (ROOT / "LICENSE").read_text().split(" ") * 2 + (MORE * 3).split(" ")
    # Words with their space in front, and runs of white space, as SentencePiece learns them.
    text = [" " + word for word in words] + ["  ", "    ", "\n\n", "\t\t"] * 5
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=SPECIAL + BYTES, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    base = json.loads(tokenizer.to_str())
    base["added_tokens"] = [token for token in base["added_tokens"] if token["content"] in SPECIAL]
    mark = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    base["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [mark, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [mark, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    common = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE}
    for name, normalizer, config in [
        ("prepend", prepend, {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}),
        ("metaspace", prepend, {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        ("gemma", replace, {"tokenizer_class": "GemmaTokenizer", "pad_token": "<unk>", "mask_token": "<unk>"}),
    ]:
        file = base | {"normalizer": normalizer}
        if name == "prepend":
            # Older files look for them in normalised text.
            file["added_tokens"] = [token | {"normalized": True} for token in file["added_tokens"]]
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        write = lambda path, value: path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n")
        write(folder / "tokenizer.json", file)
        write(folder / "tokenizer_config.json", common | config)
        write(folder / "config.json", {"model_type": "gemma2" if name == "gemma" else "llama"})


main()
