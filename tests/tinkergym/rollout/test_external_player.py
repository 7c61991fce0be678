"""Seats that a model behind a URL plays, asked over real sockets."""

from __future__ import annotations

import json

import pytest

from tests.tinkergym.chat_server import ChatServer
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.opponents import External
from tinkergym.registration.games import make_game
from tinkergym.rollout.external_player import ALLOWED_VARIABLE, KEY_VARIABLE
from tinkergym.rollout.play_list import play
from tinkergym.rollout.table_players import ScriptedPlayer
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan, TablePlayer
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.testing import RandomTokenSampler, byte_bundle
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle())
KEY = "sk-very-secret"


def of(server, **settings):
    model = External(url=server.url, model="small", **{"timeout_seconds": 60.0, **settings})
    return TablePlayer(kind="external", name=model.model, external=model)


def request(player, **changes):
    seat = SeatPlan(
        policy="p", policy_version=1, model="bytes", sampling_seed=1, sampling=Sampling(max_turn_tokens=2)
    )
    other = seat.model_copy(update={"table": player, "trained": False, "player": "external:small"})
    return EpisodeRequest(
        job_id="j",
        episode_id="j:1:0",
        step=1,
        index=0,
        group=0,
        environment=EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"}),
        seed=1,
        seats={"x": seat, "o": other},
        limits=Limits(),
        lease_id="l",
        lease_seconds=30,
        **changes,
    )


def played(player, **changes):
    (result,) = play(
        [request(player, **changes)],
        sampler=RandomTokenSampler(RENDERER.vocab_size),
        renderer=RENDERER,
        make_env=lambda ref: make_game(ref.id, **ref.kwargs),
    )
    return result


def test_shows_remote_model_at_seat_what_a_policy_would_see():
    with ChatServer(lambda messages: "5") as server:
        (record,) = played(
            of(server, api_key=KEY, system_prompt="Play to win.", temperature=0.5)
        ).trajectories
    assert (record.agent, record.stop_reason) == ("x", StopReason.TERMINATED)
    path, key, body = server.asked[0]
    assert (path, key, body["model"], body["temperature"]) == (
        "/v1/chat/completions",
        f"Bearer {KEY}",
        "small",
        0.5,
    )
    assert body["messages"][0] == {"role": "system", "content": "Play to win."}
    # Each request holds the conversation so far, its own answers included.
    for earlier, later in zip(server.asked, server.asked[1:], strict=False):
        before, after = earlier[2]["messages"], later[2]["messages"]
        assert after[: len(before) + 1] == [*before, {"role": "assistant", "content": "5"}]
        assert after[-1]["role"] == "user"


@pytest.mark.parametrize(
    ("says", "words", "settings"),
    [
        (lambda messages: None, "timed out", {"timeout_seconds": 0.3}),
        (lambda messages: "", "empty", {}),
        (lambda messages: " \n", "empty", {}),
        (lambda messages: 401, "401", {}),
    ],
    ids=["silent", "empty", "blank", "refused"],
)
def test_fails_game_and_names_seat_that_gives_no_answer(says, words, settings):
    with ChatServer(says) as server:
        result = played(of(server, api_key=KEY, **settings))
    (record,) = result.trajectories
    assert record.stop_reason is StopReason.OPPONENT_FAILED
    assert record.failed
    assert "agent 'o', played by 'small'" in record.error
    assert words in record.error
    assert KEY not in record.error
    assert all(turn.void for turn in record.turns[-1:])


def test_replays_game_whose_model_failed_where_job_says_so():
    failures = iter([""])

    def says(messages):
        return next(failures, "5")

    with ChatServer(says) as server:
        (record,) = played(of(server), retries=1).trajectories
    assert (record.stop_reason, record.retries) == (StopReason.TERMINATED, 1)


def test_asks_only_models_that_an_operator_lists(monkeypatch):
    with ChatServer(lambda messages: "5") as server:
        monkeypatch.setenv(ALLOWED_VARIABLE, "[]")
        (record,) = played(of(server)).trajectories
        assert record.stop_reason is StopReason.OPPONENT_FAILED
        assert "opponent_urls" in record.error
        assert server.asked == []
        monkeypatch.setenv(ALLOWED_VARIABLE, json.dumps([server.origin]))
        (record,) = played(of(server)).trajectories
        assert record.stop_reason is StopReason.TERMINATED


@pytest.mark.parametrize("in_service", [False, True])
def test_uses_processs_own_key_in_client_but_never_for_tenants(monkeypatch, in_service):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with ChatServer(lambda messages: "5") as server:
        if in_service:
            monkeypatch.setenv(ALLOWED_VARIABLE, json.dumps([server.origin]))
        played(of(server))
    assert {key for _, key, _ in server.asked} == {None if in_service else f"Bearer {KEY}"}


@pytest.mark.parametrize("url", ["ftp://host/v1", "host/v1", "https://me:secret@host/v1", "http://host:x/v1"])
def test_rejects_url_that_cannot_be_asked(url):
    with pytest.raises(InvalidRequestError) as caught:
        External(url=url, model="small")
    assert caught.value.field == "External.url"
    assert "secret" not in str(caught.value)


def test_hides_key_from_the_settings_repr():
    assert KEY not in repr(External(url="https://host/v1", model="small", api_key=KEY))


def test_names_scripted_player_that_raises_and_not_the_stepping_seat(monkeypatch):
    def crash(self, agent, observation):
        raise ZeroDivisionError("no move left")

    monkeypatch.setattr(ScriptedPlayer, "act", crash)
    (record,) = played(TablePlayer(kind="scripted", name="random")).trajectories
    assert (record.agent, record.stop_reason, record.failed) == ("x", StopReason.OPPONENT_FAILED, True)
    assert "agent 'o', played by 'random'" in record.error
    assert "ZeroDivisionError: no move left" in record.error
