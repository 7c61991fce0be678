"""Tiny models of the Qwen-VL family with random weights, saved as real ones are, without torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SIDE, PATCH, HIDDEN = 64, 8, 64
_MARKERS = ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_qwen_vl(path: Path, kind: str = "qwen3_vl", seed: int = 0) -> Path:
    """Write a model, its tokenizer and its image processor; returns the folder."""
    tokenizer = _tokenizer()
    ids = tokenizer.convert_tokens_to_ids
    named = {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
    }
    ends = {"eos_token_id": ids("<|im_end|>"), "pad_token_id": ids("<|pad|>"), "bos_token_id": None}
    config = _config(kind, len(tokenizer), named, ends)
    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    model.generation_config.eos_token_id = ends["eos_token_id"]
    model.generation_config.pad_token_id = ends["pad_token_id"]
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 32 * 32, "longest_edge": SIDE * SIDE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    ).save_pretrained(path)
    if kind == "qwen3_vl":
        # vLLM loads the part for videos, too, although it may get none.
        video = {"video_processor_type": "Qwen3VLVideoProcessor"}
        (path / "video_preprocessor_config.json").write_text(json.dumps(video))
    return path


def _tokenizer() -> Any:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(characters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=_MARKERS,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _config(kind: str, vocabulary: int, named: dict[str, int], ends: dict[str, Any]) -> Any:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]}
    if kind == "qwen3_vl":
        rope["mrope_interleaved"] = True
    text = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        # The least that vLLM's attention on CPUs takes.
        "head_dim": 32,
        "initializer_range": 0.05,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rope_parameters": rope,
        **ends,
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 4,
        "patch_size": PATCH,
        "initializer_range": 0.05,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "out_hidden_size": HIDDEN,
    }
    if kind == "qwen3_vl":
        vision |= {"num_position_embeddings": (SIDE // PATCH) ** 2, "deepstack_visual_indexes": [0]}
        made = transformers.Qwen3VLConfig
    elif kind == "qwen2_5_vl":
        vision |= {"window_size": 4 * PATCH, "fullatt_block_indexes": [1]}
        made = transformers.Qwen2_5_VLConfig
    else:
        vision |= {"embed_dim": HIDDEN, "mlp_ratio": 2}
        made = transformers.Qwen2VLConfig
    return made(text_config=text, vision_config=vision, tie_word_embeddings=False, **named, **ends)
