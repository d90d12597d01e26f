# SPDX-License-Identifier: MIT
"""A random Llama-style model with grouped heads, token by token on a long cache.

Prints how long a step takes and what share of it attention has, for weights of float32 and, stored
in 16 bits, of bfloat16; with --compare also whether the tokens are those of Hugging Face's model
with eager attention (needs torch and transformers).

    python bench/bench_llama.py --context 4096 --tokens 256 --compare
"""

import argparse
import statistics
import time

import ml_dtypes
import numpy as np
from arguments import at_least

import fastattn
from fastattn import layers
from fastattn.models import Llama

HEAD_DEPTH, VOCABULARY = 64, 8000


def random_model(width, depth):
    """Return a Llama of `depth` layers whose kv heads serve four query heads each."""
    rng = np.random.default_rng(0)
    heads, hidden = width // HEAD_DEPTH, width * 11 // 4

    def matrix(rows, columns):  # transposed views, as files hold them
        return (rng.standard_normal((columns, rows), dtype=np.float32) / rows**0.5).T

    def norm():
        return layers.RMSNorm(np.ones(width, np.float32))

    def layer():
        attention = layers.MultiHeadAttention(
            matrix(width, width), matrix(width, width // 4), matrix(width, width // 4),
            matrix(width, width), heads, heads // 4, rotary=rotary, causal=True,
        )  # fmt: skip
        inner = layers.FeedForward(
            matrix(width, hidden), matrix(hidden, width), w_gate=matrix(width, hidden),
            activation="silu",
        )  # fmt: skip
        return layers.DecoderLayer(
            attention, inner, self_norm=norm(), feed_forward_norm=norm(), norm_first=True
        )

    rotary = layers.Rotary()
    table = rng.standard_normal((VOCABULARY, width), dtype=np.float32)
    decoder = layers.Decoder([layer() for _ in range(depth)], norm())
    return Llama(layers.Embedding(table), decoder, matrix(width, VOCABULARY))


def narrowed(part, dtype):
    """Return a model, or a part of one, with every matrix stored as `dtype`."""
    import dataclasses

    if isinstance(part, np.ndarray) and part.ndim == 2:
        return part.T.astype(dtype).T
    if isinstance(part, list):
        return [narrowed(each, dtype) for each in part]
    if dataclasses.is_dataclass(part) and not isinstance(part, layers.Rotary):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        changed = {name: narrowed(value, dtype) for name, value in fields.items()}
        return dataclasses.replace(part, **changed)
    return part


class TimedCache(fastattn.KVCache):
    """A cache that adds up the seconds spent in its attention."""

    seconds = 0.0

    def attend(self, q, **options):
        begin = time.perf_counter()
        out = super().attend(q, **options)
        TimedCache.seconds += time.perf_counter() - begin
        return out


def measure(model, prompt, tokens):
    """Return the tokens, the seconds of each step and those of its attention; prefill is first."""
    caches = []
    for layer in model.decoder.layers:
        kv_heads = layer.self_attention.kv_heads
        caches.append(TimedCache(1, kv_heads, HEAD_DEPTH, capacity=len(prompt) + tokens))
    found, steps, attention = [], [], []
    TimedCache.seconds, begin = 0.0, time.perf_counter()
    for each in model.stream(prompt, max_new_tokens=tokens, caches=caches):
        end = time.perf_counter()
        found.append(int(each[0]))
        steps.append(end - begin)
        attention.append(TimedCache.seconds)
        TimedCache.seconds, begin = 0.0, time.perf_counter()
    return found, steps, attention


def report(name, steps, attention):
    """Print prefill and the median step, in milliseconds."""
    step, share = statistics.median(steps[1:]), sum(attention[1:]) / sum(steps[1:])
    print(
        f"  {name:9} prefill {steps[0] * 1e3:8.1f} ms ({attention[0] / steps[0]:5.1%} attention)"
        f"   step {step * 1e3:7.2f} ms ({share:5.1%} attention)"
    )


def tokens_of_transformers(model, prompt, tokens):
    """Return what Hugging Face's model with these weights generates, eager attention inside."""
    import torch
    import transformers

    torch.set_num_threads(fastattn.get_num_threads())
    first, width = model.decoder.layers[0], model.embedding.table.shape[1]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=len(model.decoder.layers),
        num_attention_heads=first.self_attention.heads,
        num_key_value_heads=first.self_attention.kv_heads,
        intermediate_size=first.feed_forward.w_in.shape[1], rms_norm_eps=1e-6,
        max_position_embeddings=len(prompt) + tokens, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(_state(model, torch))
    ids = torch.from_numpy(prompt)[None]
    with torch.inference_mode():
        found = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def _state(model, torch):
    arrays = {
        "model.embed_tokens.weight": model.embedding.table,
        "model.norm.weight": model.decoder.norm.weight,
        "lm_head.weight": model.w_head.T,
    }
    for index, layer in enumerate(model.decoder.layers):
        own, inner = layer.self_attention, layer.feed_forward
        parts = {
            "self_attn.q_proj": own.w_q.T, "self_attn.k_proj": own.w_k.T,
            "self_attn.v_proj": own.w_v.T, "self_attn.o_proj": own.w_o.T,
            "mlp.gate_proj": inner.w_gate.T, "mlp.up_proj": inner.w_in.T,
            "mlp.down_proj": inner.w_out.T, "input_layernorm": layer.self_norm.weight,
            "post_attention_layernorm": layer.feed_forward_norm.weight,
        }  # fmt: skip
        arrays |= {f"model.layers.{index}.{name}.weight": value for name, value in parts.items()}
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=at_least(1), default=1024)
    parser.add_argument("--layers", type=at_least(1), default=4)
    parser.add_argument("--context", type=at_least(1), default=4096, help="tokens of the prompt")
    parser.add_argument(
        "--tokens", type=at_least(2), default=256, help="to generate; the first one is of prefill"
    )
    parser.add_argument("--compare", action="store_true", help="with Hugging Face's tokens")
    options = parser.parse_args(arguments)
    if options.width % (4 * HEAD_DEPTH):
        parser.error(f"--width: expected a multiple of {4 * HEAD_DEPTH}, got {options.width}")
    model = random_model(options.width, options.layers)
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, options.context)
    print(
        f"{options.layers} layers of width {options.width}, {options.context} tokens of context"
        f" · isa {fastattn.isa()} · threads {fastattn.get_num_threads()}"
    )
    found, steps, attention = measure(model, prompt, options.tokens)
    report("float32", steps, attention)
    _, steps, attention = measure(narrowed(model, ml_dtypes.bfloat16), prompt, options.tokens)
    report("bfloat16", steps, attention)
    if options.compare:
        same = found == tokens_of_transformers(model, prompt, options.tokens)
        print(f"  tokens {'equal' if same else 'DIFFER FROM'} those of Hugging Face, eager")


if __name__ == "__main__":
    main()
