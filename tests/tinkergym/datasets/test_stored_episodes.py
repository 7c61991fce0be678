from dataclasses import replace

import pytest

from tinkergym.algorithms import GRPO
from tinkergym.datasets.conversations import comparison, conversation
from tinkergym.datasets.stored_episodes import StoredEpisodes, stored_episodes
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.testing.made_up_episodes import stored_record
from tinkergym.trajectory.content_parts import TextPart, ToolCallPart, ToolResultPart

SPEC = RLSpec(
    environment=EnvironmentRef(id="own/Env-v0"),
    steps=2,
    algorithm=GRPO(group_size=2, groups_per_step=2),
    system_prompt="Be brief.",
)


def episodes(*rewards, turns=1):
    """Episodes of step 1 in order of their index; None is one that failed."""
    records = [stored_record(n, reward, turns=turns) for n, reward in enumerate(rewards)]
    return stored_episodes(SPEC, records, origin="job-1")


def test_reads_episode_as_a_conversation_that_knows_its_group():
    first, *_, last = episodes(1.0, 0.0, 0.5, None, turns=2)
    assert [message["role"] for message in first.messages] == ["system", *["user", "assistant"] * 2]
    assert [one["content"] for one in first.messages][-1] == first.answers[-1]
    assert (first.group_key, last.group_key) == ((1, 0, "agent_0"), (1, 1, "agent_0"))
    assert (first.reward, last.reward) == (1.0, None)


def test_filters_episodes():
    found = episodes(1.0, 0.0, 0.5, None)
    assert [one.index for one in found.filter(min_reward=0.5)] == [0, 2]
    assert [one.index for one in found.filter(completed=False)] == [3]
    assert [one.index for one in found.filter(lambda one: one.index > 1, completed=True)] == [2]


def test_turns_best_of_each_group_into_sft_data():
    rows = episodes(0.0, 1.0, 0.5, None).to_sft(best_of=2)
    assert [row["messages"][-1]["content"] for row in rows] == ["answer 1", "answer 2"]
    assert all(conversation(row) for row in rows)
    kept = episodes(0.0, 1.0, 0.5, 0.25).to_sft(best_of=2, min_reward=0.75)
    assert len(kept) == 1


def test_pairs_best_and_worst_of_group_when_anything_differs():
    rows = episodes(0.0, 1.0, 0.5, 0.5).to_preference()
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("answer 1", "answer 0")]
    assert all(comparison(row) for row in rows)


def test_says_when_nothing_is_left_or_episodes_cannot_pair():
    with pytest.raises(InvalidRequestError):
        episodes(0.0, 0.0).to_sft(min_reward=1.0)
    with pytest.raises(InvalidRequestError):
        episodes(0.5, 0.5).to_preference()
    with pytest.raises(InvalidRequestError) as caught:
        episodes(0.0, 1.0, turns=2).to_preference()
    assert caught.value.field == "to_preference"


def test_turns_template_calls_into_tool_calls_that_need_tools():
    (episode,) = episodes(1.0)
    call = ToolCallPart(id="call00000", name="add", arguments='{"a": 1}')
    (first,) = episode.trajectory.turns
    turns = [
        first.model_copy(update={"action": [TextPart(text="Let me see."), call]}),
        first.model_copy(update={"observation": [ToolResultPart(id="call00000", text="2")], "action": "2"}),
    ]
    trajectory = episode.trajectory.model_copy(update={"turns": turns})
    calling = StoredEpisodes([replace(episode, trajectory=trajectory)])
    with pytest.raises(InvalidRequestError) as caught:
        calling.to_sft()
    assert caught.value.field == "tools"
    offered = [{"type": "function", "function": {"name": "add"}}]
    (row,) = calling.to_sft(tools=offered)
    assert row["tools"] == offered
    *_, asked, spoken, result, answer = [*row["messages"]]
    assert spoken["content"] == "Let me see."
    assert spoken["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert result == {"role": "tool", "content": "2", "tool_call_id": "call00000"}
    assert (asked["role"], answer["content"]) == ("user", "2")


def test_tells_opponents_moves_from_the_policys_own():
    record = EpisodeResult.model_validate_json(stored_record(0, 1.0))
    own = record.trajectory.model_copy(update={"agent": "x"})
    past = own.model_copy(update={"agent": "o", "trained": False})
    record = record.model_copy(update={"trajectories": [own, past]})
    spec = SPEC.model_copy(update={"agents": {"x": Train(), "o": SharedWith("x")}})
    found = stored_episodes(spec, [record.model_dump_json().encode()], origin="job-1")
    assert [one.agent for one in found] == ["x"]


def test_leaves_out_agent_that_never_acted():
    first, unmoved = episodes(0.0, 1.0)
    record = unmoved.trajectory.model_copy(update={"turns": [], "segments": [], "early_reward": 1.0})
    played = StoredEpisodes([first, replace(unmoved, trajectory=record)])
    assert [one.reward for one in played] == [0.0, 1.0]
    assert len(played.to_sft()) == 1
    with pytest.raises(InvalidRequestError):
        played.to_preference()


def test_hands_template_variables_on_to_rows():
    found = [
        replace(one, trajectory=one.trajectory.model_copy(update={"template_variables": {"effort": effort}}))
        for one, effort in zip(episodes(0.0, 1.0, 0.0, 1.0), ["low", "low", "low", "high"], strict=True)
    ]
    kept = StoredEpisodes(found)
    assert [row["template_variables"]["effort"] for row in kept.to_sft()] == ["low", "low", "low", "high"]
    assert [row["template_variables"] for row in kept.to_preference()] == [{"effort": "low"}]
    assert "template_variables" not in episodes(1.0).to_sft()[0]


def test_shows_episodes_in_notebooks():
    some = episodes(0.0, None)
    assert some[0].episode_id in some._repr_html_()
    shown = some[0]._repr_html_()
    assert ("observation" in shown, "+0" in shown) == (True, True)
    assert "failed" in some[1]._repr_html_()
