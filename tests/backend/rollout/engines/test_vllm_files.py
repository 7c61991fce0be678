from backend.rollout.engines.vllm_files import lora_targets

LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    f"{LAYER}input_layernorm.weight": (32,),
    f"{LAYER}self_attn.q_proj.weight": (32, 32),
    f"{LAYER}mlp.down_proj.weight": (32, 48),
    "lm_head.weight": (64, 32),
}


def test_vllm_is_told_which_layers_adapters_change_where_there_are_experts():
    assert lora_targets(SHAPES) is None
    mixture = {
        "model.layers.1.mlp.experts.0.w1.weight": (16, 32),
        "model.layers.1.mlp.gate.weight": (4, 32),
        "model.layers.1.mlp.shared_expert_gate.weight": (1, 32),
        "model.layers.1.mlp.shared_expert.up_proj.weight": (16, 32),
    }
    assert lora_targets(SHAPES | mixture) == ["down_proj", "q_proj", "up_proj"]
    fused = {
        "model.layers.1.mlp.experts.gate_up_proj": (4, 32, 32),
        "model.layers.1.mlp.router.weight": (4, 32),
    }
    assert lora_targets(SHAPES | fused) == ["down_proj", "q_proj"]
