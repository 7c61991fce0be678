"""Small models, and what a learner makes of them."""

import torch

from backend.learner.token_loss import policy_loss


def trained(learner, adapter, batch, *, seed=3, steps=1, policy_id="p"):
    """A policy that is no longer equal to the base model."""
    learner.create_policy(policy_id, adapter, seed=seed)
    for _ in range(steps):
        learner.forward_backward(policy_id, batch, policy_loss())
        learner.optim_step(policy_id, learning_rate=2e-2)


def assert_close(left, right, tolerance=1e-6):
    assert left.keys() == right.keys()
    scale = max(float(g.abs().max()) for g in right.values())
    assert scale > 0
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=tolerance * max(scale, 1.0), rtol=1e-4)


def _tiny(family):
    import transformers as t

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    }
    match family:
        case "gpt2":
            config = t.GPT2Config(
                vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
            )
            return t.GPT2LMHeadModel(config)
        case "llama_tied":
            return t.LlamaForCausalLM(t.LlamaConfig(**sizes, tie_word_embeddings=True))
        case "gemma2_softcap":
            config = t.Gemma2Config(
                **sizes, head_dim=8, sliding_window=4, final_logit_softcapping=2.0, attn_logit_softcapping=0.5
            )
            return t.Gemma2ForCausalLM(config)
        case "granite_scaled":
            return t.GraniteForCausalLM(t.GraniteConfig(**sizes, logits_scaling=3.0))
        case "mistral_window":
            return t.MistralForCausalLM(t.MistralConfig(**sizes, sliding_window=4))
        case "phi_bias":
            return t.PhiForCausalLM(t.PhiConfig(**sizes, resid_pdrop=0.3))
