"""Seats whose policies call tools before they move."""

from __future__ import annotations

import pytest

from tests.tinkergym.rollout import tools_of_seats
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, InvalidToolError
from tinkergym.registration.games import make_game
from tinkergym.rollout.game_table import TOOLS, GameTable
from tinkergym.rollout.play_list import play
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle(context_length=16_384))
NAMES = "tests.tinkergym.rollout.tools_of_seats"
CALL = '<tool_call>{"name": "double", "arguments": {"number": 4}}</tool_call>'
TOOLS_OF_X = SeatTools(**SeatTools.read([f"{NAMES}:double"]))


def request(tools, limits=None):
    seat = SeatPlan(
        policy="p", policy_version=1, model="bytes", sampling_seed=1, sampling=Sampling(max_turn_tokens=200)
    )
    return EpisodeRequest(
        job_id="j",
        episode_id="j:1:0",
        step=1,
        index=0,
        group=0,
        environment=EnvironmentRef(id="board/TicTacToe-v0"),
        seed=1,
        seats={"x": seat.model_copy(update={"tools": tools}), "o": seat.model_copy(update={"policy": "q"})},
        limits=limits or Limits(),
        lease_id="l",
        lease_seconds=30,
    )


def played(tools, answer, limits=None):
    (result,) = play(
        [request(tools, limits)],
        sampler=ScriptedSampler(RENDERER, answer),
        renderer=RENDERER,
        make_env=lambda ref: make_game(ref.id, **ref.kwargs),
    )
    return {one.agent: one for one in result.trajectories}


def calls_first(prompt):
    """Call the tool before each move of x, and play the first free cell of the board that was shown last."""
    if "# Tools" in prompt and not prompt.rstrip().endswith(
        "</tool_response><|im_end|>\n<|im_start|>assistant"
    ):
        return CALL
    board = [word for word in prompt.split() if len(word) == 2 and word[0] in "abc" and word[1] in "123"]
    return board[-1]


def test_takes_calls_as_turns_of_their_seat_unseen_by_game():
    tools_of_seats.CALLED.clear()
    records = played(TOOLS_OF_X, calls_first)
    assert {one.stop_reason for one in records.values()} == {StopReason.TERMINATED}
    actions = [turn.action for turn in records["x"].turns]
    assert actions[::2] == [CALL] * (len(actions) // 2)
    assert "8" in records["x"].turns[1].observation
    assert records["x"].turns[0].metrics["tool_calls"] == 1.0
    assert records["x"].turns[0].reward == 0.0
    assert len(tools_of_seats.CALLED) == len(actions) // 2
    # The other seat knows nothing of it: neither of the tools nor of what they said.
    shown = "".join(turn.observation for turn in records["o"].turns)
    assert "tool" not in shown
    assert len(records["o"].turns) in (len(actions) // 2, len(actions) // 2 - 1)


def test_rejects_calls_beyond_the_most_and_says_so():
    tools = TOOLS_OF_X.model_copy(update={"max_calls": 1})
    records = played(tools, lambda prompt: CALL if "# Tools" in prompt else "a1", Limits(max_turns=3))
    assert records["x"].stop_reason is StopReason.TURN_LIMIT
    assert "used up" in records["x"].turns[2].observation


def test_runs_only_what_is_marked_as_a_tool_in_service():
    table = GameTable(make_game("board/TicTacToe-v0"))
    table.only_marked_tools = True
    for name in ("unmarked", "CALLED"):
        with pytest.raises(InvalidToolError):
            table.reset(seed=1, options={TOOLS: {"x": SeatTools(**SeatTools.read([f"{NAMES}:{name}"]))}})
    position = table.reset(seed=1, options={TOOLS: {"x": TOOLS_OF_X}})
    assert "double" in position.prompts["x"]
    assert "o" not in position.prompts


@pytest.mark.parametrize(
    ("tools", "more"),
    [
        ([], {}),
        (["no name"], {}),
        ({"tools": ["a:b"], "calls": 3}, {}),
        (["a:b"], {"rollout": "script"}),
        (["a:b"], {"environment": {"id": "ws://host:1/board/TicTacToe-v0"}}),
    ],
)
def test_rejects_tools_that_cannot_be_offered(tools, more):
    agents = {"x": {"kind": "train", "tools": tools}, "o": {"kind": "train"}}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"environment": {"id": "board/TicTacToe-v0"}, "steps": 1, "agents": agents, **more})
    assert caught.value.field.partition(".")[0] == "agents"


def test_takes_list_of_names_as_short_settings():
    assert Train(tools=[f"{NAMES}:double"]).tools == TOOLS_OF_X
