"""Intact files of every kind that readers are tried with."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from inflight.bench import workload
from inflight.bench.report import OP_STATS
from inflight.checkpoint import weights
from inflight.triton import custom_batching, repository
from tests.checkpoint.fuzz_readers import READERS
from tests.engines import SMALL_VOCAB

TEMPLATE = """{%- macro said(message) -%}<|{{ message['role'] }}|>{{ message['content'] | trim }}{%- endmacro -%}
{% if messages[0].role != 'system' and tools is none %}{{ 'You help.' ~ ' ' * 2 }}{% endif %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if loop.index0 > 99 %}{% break %}{% endif %}
    {%- set ns.count = ns.count + message.content | length %}
    {{- said(message) + eos_token }}
{%- endfor %}
{% generation %}{{ {'count': ns.count} | tojson(indent=1) }}{% endgeneration %}
{% if add_generation_prompt %}{{ '%s' | format('assistant') | replace('a', 'b') }}{{ range(3) | join }}{% endif %}
"""


def tiny_llama(tokenizer_of, folder):
    """A Hugging Face folder with a Llama of one layer, and the same as a GGUF file."""
    hidden, heads, kv_heads, feed_forward = 64, 4, 2, 96
    keys = hidden // heads * kv_heads
    shapes = {
        "model.embed_tokens": (SMALL_VOCAB, hidden),
        "model.norm": (hidden,),
        "model.layers.0.input_layernorm": (hidden,),
        "model.layers.0.post_attention_layernorm": (hidden,),
        "model.layers.0.self_attn.q_proj": (hidden, hidden),
        "model.layers.0.self_attn.k_proj": (keys, hidden),
        "model.layers.0.self_attn.v_proj": (keys, hidden),
        "model.layers.0.self_attn.o_proj": (hidden, hidden),
        "model.layers.0.mlp.gate_proj": (feed_forward, hidden),
        "model.layers.0.mlp.up_proj": (feed_forward, hidden),
        "model.layers.0.mlp.down_proj": (hidden, feed_forward),
    }
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "vocab_size": SMALL_VOCAB,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
    }
    folder.mkdir(parents=True)
    tensors = {f"{name}.weight": np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_of / name, folder / name)


@pytest.fixture(scope="session")
def sources(small_engine, tmp_path_factory):
    """A folder with intact files for each reader."""
    root = tmp_path_factory.mktemp("sources")
    for name in READERS:
        if name not in ("huggingface", "engine"):
            (root / name).mkdir()
    tiny_llama(small_engine, root / "huggingface")
    weights.from_huggingface(root / "huggingface", root / "gguf" / "model.gguf", None)
    shutil.copytree(small_engine, root / "engine")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = json.loads((small_engine / name).read_text())
        if name == "tokenizer.json":
            replace = {"type": "Replace", "pattern": {"String": "\u00a0"}, "content": " "}
            content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, replace]}
            content["padding"] = {
                "strategy": {"Fixed": 2},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        (root / "tokenizer" / name).write_text(json.dumps(content))
    (root / "template" / "chat_template.jinja").write_text(TEMPLATE)
    repository.assemble(root / "repository", small_engine)
    records = json.loads(workload.MINI_CNN_EVAL.read_text())[:5]
    (root / "dataset" / "dataset.json").write_text(json.dumps(records))
    (root / "recording" / "run.csv").write_text("sent_s,input_len,output_len\n0,5,5\n0.5,7,1\n1e1,9,0\n2,30,12\n")
    (root / "statistics" / "statistics.csv").write_text(
        ",".join(OP_STATS) + "\n" + ",".join("1" * len(OP_STATS)) + "\n"
    )
    custom_batching.build(custom_batching.SOURCES / "volume.c", root / "library" / "library.so")
    return root
