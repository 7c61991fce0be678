"""Environments that would break a job at its first step, brought along by a pack that is really installed."""

import pytest

from backend.admission.facts import Checked
from backend.admission.preflight import Preflight
from backend.settings.gateway_limits import GatewayLimits
from tests.backend.admission.packs import Catalog, spec
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    PromptTooLongError,
    ServiceUnavailableError,
    UnknownEnvironmentError,
    UnknownModelError,
)
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.tasks import SequenceTasks

pytestmark = pytest.mark.service


@pytest.fixture
def preflight():
    return Preflight(Catalog(), GatewayLimits(job_check_seconds=120))


@pytest.fixture(scope="module")
def of_games():
    """Tries each game once, whatever the seats are: a child process for each takes a second."""
    return Preflight(Catalog(), GatewayLimits(job_check_seconds=120))


def test_knows_packs_version_and_system_prompt_of_sound_environment(pack, preflight):
    assert preflight.check(spec()) == Checked(packs={"odd": "0.3"}, environment_prompt="s" * 10)


def test_hashes_the_tasks_of_each_environment(pack, preflight):
    data = preflight.check(spec(how="quiz")).data
    assert data == {"odd/Odd-v0": SequenceTasks([{"question": "?????"}]).fingerprint}
    parts = [{"id": "odd/Odd-v0", "kwargs": {"how": "quiz", "length": n}, "weight": 1} for n in (5, 6)]
    both = RLSpec(environments=parts, model="bytes", steps=1, sampling=Sampling(max_turn_tokens=4))
    several = preflight.check(both).data
    assert several.keys() == {f"odd/Odd-v0[how=quiz,length={n}]" for n in (5, 6)}
    assert len(set(several.values())) == 2


def test_rejects_unknown_environment_with_suggestion_and_next_step(pack, preflight):
    with pytest.raises(UnknownEnvironmentError) as caught:
        preflight.check(spec("odd/Od-v0"))
    assert caught.value.field == "environment.id"


def test_rejects_unknown_evaluation_environment_without_advice_about_training(pack, preflight):
    wanted = spec().model_copy(update={"evaluate": [EvaluateEvery(1, "odd/Od-v0")]})
    with pytest.raises(UnknownEnvironmentError) as caught:
        preflight.check(wanted)
    assert caught.value.field == "evaluate"
    assert "rollout" not in caught.value.hint


def test_rejects_unknown_environment_before_any_process_is_started(pack, preflight, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(UnknownEnvironmentError):
        preflight.check(spec("odd/Od-v0"))


def too_short(*, waited):
    """A check that ends before it has begun; of that time, a fraction was spent waiting for a core."""
    limits = GatewayLimits(job_check_seconds=0.001)
    return Preflight(Catalog(), limits, waited=lambda pid: waited * limits.job_check_seconds)


def test_names_setting_that_bounds_a_check_that_takes_too_long(pack):
    with pytest.raises(InvalidEnvironmentError) as caught:
        too_short(waited=0.4).check(spec(how="hangs"))
    assert caught.value.code == "too_slow"


def test_suggests_retry_of_a_check_without_a_core(pack):
    with pytest.raises(ServiceUnavailableError) as caught:
        too_short(waited=0.6).check(spec(how="hangs"))
    assert caught.value.http_status == 503


def test_rejects_prompt_that_leaves_no_room_for_a_completion(pack, preflight):
    with pytest.raises(PromptTooLongError) as caught:
        preflight.check(spec(length=180))
    assert caught.value.field == "sampling.max_turn_tokens"
    assert preflight.check(spec(length=50)).packs == {"odd": "0.3"}


def test_takes_environment_that_lives_in_the_client_by_name_only(preflight):
    assert preflight.check(spec("never/Heard-v0", rollout="client")).packs == {}
    assert preflight.check(spec("never/Heard-v0", rollout="script")).packs == {}


@pytest.mark.parametrize("rollout", ["client", "server"])
def test_rejects_completion_longer_than_the_context_wherever_environment_is(pack, preflight, rollout):
    with pytest.raises(PromptTooLongError):
        preflight.check(spec(rollout=rollout, max_turn_tokens=200))


def test_rejects_longer_context_than_the_model_has_by_name(preflight):
    there = spec(rollout="client")
    assert preflight.check(there.model_copy(update={"limits": Limits(max_context_tokens=200)})).packs == {}
    with pytest.raises(InvalidRequestError) as caught:
        preflight.check(there.model_copy(update={"limits": Limits(max_context_tokens=201)}))
    assert caught.value.field == "limits.max_context_tokens"


@pytest.mark.parametrize("rollout", ["client", "server"])
@pytest.mark.parametrize(
    ("limits", "max_turn_tokens"), [(Limits(max_context_tokens=150), 10), (Limits(), 150)]
)
def test_fits_each_seat_into_the_context_of_its_own_model(of_games, rollout, limits, max_turn_tokens):
    job = of_game(["x", "o"]).model_copy(
        update={
            "rollout": rollout,
            "limits": limits,
            "sampling": Sampling(max_turn_tokens=max_turn_tokens),
            "agents": {"x": Train(), "o": Train(model="short")},
        }
    )
    with pytest.raises(InvalidRequestError) as caught:
        of_games.check(job)
    assert caught.value.field == "agents.o"


def test_rejects_unknown_model_before_any_environment_is_made(preflight):
    with pytest.raises(UnknownModelError):
        preflight.check(spec(model="gpt-9"))


def test_does_not_repeat_passed_check_for_other_settings(pack, preflight):
    preflight.check(spec())
    (pack / "odd_pack.py").write_text("raise RuntimeError('must not be imported again')")
    assert preflight.check(spec(max_turn_tokens=11)).packs == {"odd": "0.3"}
    with pytest.raises(InvalidEnvironmentError):
        preflight.check(spec(length=6))


def of_game(agents):
    agents = {agent: Train() for agent in agents}
    game = EnvironmentRef(id="board/TicTacToe-v0")
    return RLSpec(
        environment=game, model="bytes", steps=1, agents=agents, sampling=Sampling(max_turn_tokens=10)
    )


@pytest.mark.parametrize(
    ("agents", "field"), [(["x", "o", "black"], "agents.black"), (["x"], "agents"), ([], "environment.id")]
)
def test_rejects_seats_that_are_not_the_games(of_games, agents, field):
    with pytest.raises(InvalidRequestError) as caught:
        of_games.check(of_game(agents))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "seat", [Train(system_prompt="s" * 100_000), Train(sampling=Sampling(max_turn_tokens=100_000))]
)
def test_rejects_seat_whose_prompt_and_completion_do_not_fit(of_games, seat):
    job = of_game(["x", "o"])
    job = job.model_copy(update={"agents": {**job.agents, "o": seat}})
    with pytest.raises(PromptTooLongError) as caught:
        of_games.check(job)
    assert caught.value.field == "agents.o"


def test_accepts_game_with_a_seat_per_agent_and_knows_pack(of_games):
    job = of_game(["o", "x"])
    assert of_games.check(job).packs.keys() == {"board"}
    # Its own evaluation may name it.
    named = job.model_copy(update={"evaluate": [EvaluateEvery(1, job.environment.id)]})
    assert of_games.check(named).packs.keys() == {"board"}


def test_tries_each_of_several_environments(preflight, pack):
    def mixed(second):
        parts = ({"id": "odd/Odd-v0", "weight": 1}, {"id": "odd/Odd-v0", "kwargs": second, "weight": 1})
        return RLSpec(environments=parts, model="bytes", steps=1, sampling=Sampling(max_turn_tokens=4))

    assert preflight.check(mixed({"length": 6})) == Checked(packs={"odd": "0.3"}, environment_prompt="s" * 10)
    with pytest.raises(InvalidEnvironmentError):
        preflight.check(mixed({"how": "raises"}))
