"""Template variables, dates and native tools with a real model: training, acting, exports, certificates."""

import json

import pytest

import tinkergym as tg
from tinkergym.tasks import SequenceTasks
from tinkergym.wrappers import ToolCalling

DATED = (
    "{{ strftime_now('%Y') }} {{ effort | default('medium') }}|"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Brief(tg.SingleTurnEnv):
    template_variables = {"effort": "low"}  # noqa: RUF012 - as its users write it

    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        return float(len(answer))


class Sums(tg.SingleTurnEnv):
    def ask(self, options):
        return "2+2?"

    def score(self, answer):
        return float(len(answer))


@tg.tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def with_tools():
    return ToolCalling(Sums(), tools=[add], syntax="native")


def prompts(policy, trajectories):
    return {
        policy.renderer.decode(one.segments[0].token_ids[: one.turns[0].start]).partition("|")[0]
        for one in trajectories
    }


@pytest.mark.parametrize(("variables", "shown"), [({}, "2026 low"), ({"effort": "high"}, "2026 high")])
def test_renders_training_acting_and_export_alike(client, tmp_path, variables, shown):
    job = client.train(
        Brief,
        steps=1,
        algorithm=SMALL,
        evaluate=tg.EvaluateEvery(1, episodes=2),
        chat_template=DATED,
        template_variables=variables,
        template_date="2026-03-01",
    )
    job.wait(progress=False)
    policy = job.policy()
    assert prompts(policy, [one.trajectory for one in job.episodes()]) == {shown}
    asked = policy.evaluate(Brief, episodes=1).trajectories
    assert prompts(policy, asked) == {shown}
    job.export(tmp_path / "out")
    origin = json.loads((tmp_path / "out" / "tinkergym.json").read_text(encoding="utf-8"))
    assert origin["template_variables"] == {"effort": shown.split()[1]}
    (check,) = [one for one in job.certificate(tmp_path).checks if one.name == "template_pinned"]
    assert check.verdict == "holds"


@pytest.mark.full("loads another model")
def test_offers_native_tools_to_the_shipped_model(client):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    messages = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", **call}]},
    ]
    rows = SequenceTasks([{"messages": messages, "tools": [add.schema()]}] * 4)
    written = client.sft(rows, model="nano-instruct", steps=10, batch_size=4, learning_rate=5e-3)
    written.wait(progress=False)
    job = client.train(
        with_tools,
        model="nano-instruct",
        initial_policy=written.id,
        steps=1,
        algorithm=SMALL,
        sampling=tg.Sampling(max_turn_tokens=64),
        limits=tg.Limits(max_turns=2),
    )
    job.wait(progress=False)
    turns = [turn for one in job.episodes() for turn in one.trajectory.turns]
    assert all("tool_calls" in turn.metrics for turn in turns)
