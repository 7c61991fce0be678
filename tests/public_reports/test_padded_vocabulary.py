"""Models have more rows than their tokenizers have tokens, so that sampled ids have no text.

https://github.com/vllm-project/vllm/issues/340, https://github.com/pegainfer-project/pegainfer/issues/673,
https://github.com/Agent-RL/ReCall/issues/60
"""

import pytest

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.schema.sampling import Completion
from tinkergym.testing import FAMILIES, family_bundle, ledger_violations


@pytest.mark.parametrize("family", FAMILIES)
def test_keeps_sampled_ids_that_have_no_text(family):
    renderer = Renderer.from_bundle(family_bundle(family))
    padded = renderer.vocab_size + 7
    answer = renderer.encode_answer("it is b2")
    sampled = [padded, *answer[:-1], padded, padded, answer[-1]]
    loop = AgentLoop(renderer, EpisodePlan(episode_id="e", seed=0, policy="p"))
    requests = [loop.begin("Your turn.")]
    completions = [
        Completion(
            request_id=requests[0].request_id,
            token_ids=sampled,
            sampling_logprobs=[-1.0] * len(sampled),
            finish_reason="stop",
            policy_version=0,
        )
    ]
    assert loop.receive(completions[0]).strip() == "it is b2"
    requests.append(loop.stepped("Go on.", 0.0, False, False))
    assert requests[1].prompt_ids.count(padded) == 3
    completions.append(completions[0].model_copy(update={"request_id": requests[1].request_id}))
    loop.receive(completions[1])
    loop.stepped("", 1.0, True, False)
    assert ledger_violations(loop.trajectory(), completions, requests) == []


def test_finds_stop_string_across_an_id_without_text():
    renderer = Renderer.from_bundle(family_bundle("qwen"))
    matcher = renderer.stop_strings(["STOP"])
    ids = [*renderer._encode_text("say ST"), renderer.vocab_size + 1, *renderer._encode_text("OP now")]
    assert [matcher.completed_by(token) for token in ids].count(True) >= 1
    assert matcher.before(ids) == "say "
