from types import SimpleNamespace

import pytest

from backend.engines.vllm.collected_outputs import Collected

MESSAGE = {"stop_strings": [], "stop": [], "structured": None}


def output(tokens, *, reason=None, reused=0, of_prompt=None):
    logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in tokens]
    completion = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=reason)
    return SimpleNamespace(
        outputs=[completion],
        prompt_logprobs=of_prompt,
        num_cached_tokens=reused,
        finished=reason is not None,
    )


def collected(*outputs, **message):
    found = Collected(MESSAGE | {"logprobs": 0, "prompt_logprobs": None, "top_logprobs": 0} | message, None)
    for one in outputs:
        found.take(one)
    return found


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_raises_on_an_unknown_end_instead_of_answering(reason):
    found = collected(output([1], reason=reason))
    assert found.complete
    assert set(found.answer()) == {"error"}


def test_reports_structure_without_a_grammar_as_such():
    assert set(collected(output([], reason="error"), structured="x").answer()) == {"invalid"}


def test_completes_no_answer_before_its_last_output():
    assert not collected(output([1, 2])).complete


def test_makes_parts_with_the_tokens_since_the_last():
    found = collected(stream=True)
    assert found.part() is None
    found.take(output([5]))
    assert found.part() == {"start": 0, "tokens": [5], "logprobs": [-1.0]}
    found.take(output([6]))
    assert found.part() is None  # too soon after the first
    found.take(output([7], reason="stop"))
    assert found.part() is None  # the completion has them
    assert found.answer()["tokens"] == [5, 6, 7]


@pytest.mark.parametrize("stream", [False, True])
def test_has_scores_of_the_prompt_once(stream):
    of_prompt = [None, {8: SimpleNamespace(logprob=-0.5, rank=1)}]
    found = collected(output([5], of_prompt=of_prompt), prompt=[7, 8], prompt_logprobs=1)
    part = found.part() if stream else {}
    found.take(output([6], reason="stop"))
    scores = {
        "prompt_logprobs": [None, -0.5],
        "prompt_ranks": [None, 1],
        "top_prompt_logprobs": [None, [(8, -0.5)]],
    }
    have = [{name: one[name] for name in scores if name in one} for one in (part, found.answer())]
    assert have == ([scores, {}] if stream else [{}, scores])
