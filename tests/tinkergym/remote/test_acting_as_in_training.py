"""However a policy is asked, it reads the token ids that it would have read in training."""

import json

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.job_spec import Sampling
from tinkergym.schema.views import TrainedWith
from tinkergym.wrappers import SystemPrompt, ToolCalling, TrainRemotely, Verbalize


class Countdown(tg.TextEnv):
    system_prompt = "Count down."

    def start(self, options):
        self.turns = 0
        return f"Start at {self.np_random.integers(1000)}."

    def reply(self, action):
        self.turns += 1
        return "Go on.", 0.0, self.turns == 2


class Asking(tg.SingleTurnEnv):
    def ask(self, options):
        return f"{self.np_random.integers(1000)}?"

    def score(self, answer):
        return 0.0


def lake():
    return Verbalize(gym.make("FrozenLake-v1", max_episode_steps=2), action_names=["l", "d", "r", "u"])


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def with_tools():
    return ToolCalling(Asking(), [double])


def registered():
    return SystemPrompt(Asking(), "Short, please.")


@pytest.fixture(params=[Countdown, lake, with_tools, "prompts/Registered-v0"])
def environment(request, register_environment):
    if isinstance(request.param, str):
        register_environment(request.param, registered)
    return request.param


def make(environment):
    return tg.make(environment) if isinstance(environment, str) else environment()


class Prompts:
    """What the service was asked, by the first prompt of the episode: the prompts of its turns."""

    def __init__(self, service):
        self._service = service
        self._seen = 0

    def new(self):
        batches, self._seen = self._service.sampled[self._seen :], len(self._service.sampled)
        return {tuple(request.prompt_ids) for batch in batches for request in batch}


@pytest.fixture
def trained(start_service, environment):
    """A job that was played in this process, and the prompts of its first three seeds, turn by turn."""
    service = start_service(lambda prompt: "l")
    prompts = Prompts(service)
    with tg.Client() as client:
        job = client.train(
            environment,
            steps=1,
            rollout="client",
            algorithm=tg.GRPO(group_size=2, groups_per_step=3),
            sampling=Sampling(max_turn_tokens=8),
        )
        job.wait()
        yield client, job, prompts, prompts.new()


SEEDS = (1000, 1001, 1002)


def played_by_hand(policy, environment):
    env = make(environment)
    for seed in SEEDS:
        observation, _ = env.reset(seed=seed)
        policy.reset()
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(policy.act(observation))
            over = terminated or truncated


def test_act_and_evaluate_read_what_training_read(trained, environment):
    client, job, prompts, in_training = trained
    played_by_hand(job.policy(), environment)
    assert prompts.new() == in_training
    job.policy().evaluate(environment, episodes=len(SEEDS), seed=SEEDS[0])
    assert prompts.new() == in_training
    played_by_hand(client.job(job.id).policy().copy(), environment)  # of a job that another script started
    assert prompts.new() == in_training


def test_a_model_that_is_told_the_environment_reads_what_training_read(trained, environment):
    client, _, prompts, in_training = trained
    model = client.policy("nano", env=environment, max_turn_tokens=8)
    played_by_hand(model, environment)
    assert prompts.new() == in_training
    model.evaluate(environment, episodes=len(SEEDS), seed=SEEDS[0])
    assert prompts.new() == in_training


def test_the_command_line_reads_what_training_read(trained, environment):
    _, job, prompts, in_training = trained
    name = environment if isinstance(environment, str) else f"{__name__}:{environment.__name__}"
    asked = {
        "eval": ["--tasks", "3"],
        "play": ["--episodes", "3", "--watch"],
    }
    for command, rest in asked.items():
        done = CliRunner().invoke(app, [command, name, "--policy", job.id, "--seed", "1000", *rest])
        assert (done.exit_code, prompts.new()) == (0, in_training), done.output


def test_a_loop_of_ones_own_reads_what_act_reads_later(start_service):
    prompts = Prompts(start_service(lambda prompt: "l"))
    env = TrainRemotely(Countdown(), steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=3))
    while env.training:
        observation, _ = env.reset()
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(env.policy.act(observation))
            over = terminated or truncated
    in_training = prompts.new()
    played_by_hand(env.job.policy(), Countdown)
    assert prompts.new() == in_training
    env.close()


def test_an_export_says_which_prompt_the_policy_was_trained_with(start_service, tmp_path):
    service = start_service(lambda prompt: "l")
    manifest = json.dumps({"files": {}}).encode()
    service.files = {"manifest.json": manifest}
    with tg.Client() as client:
        for number, (own, expected) in enumerate([(None, "Count down."), ("Mine.", "Mine."), ("", "")]):
            job = client.train(Countdown, steps=1, system_prompt=own)
            job.wait()
            view = CheckpointView(
                step=1, policy_version=1, path="/there", sha256="", files={"manifest.json": len(manifest)}
            )
            service.jobs.get(job.id).checkpoints.append(view)
            job.export(tmp_path / str(number))
            written = json.loads((tmp_path / str(number) / "tinkergym.json").read_text())
            assert written["system_prompt"] == expected


def test_an_exported_model_reads_what_training_read_unless_it_is_told_otherwise(start_service):
    service = start_service(lambda prompt: "l")
    prompts = Prompts(service)
    with tg.Client() as client:
        sampling = Sampling(max_turn_tokens=8)
        algorithm = tg.GRPO(group_size=2, groups_per_step=3)
        job = client.train(Countdown, steps=1, system_prompt="Mine.", algorithm=algorithm, sampling=sampling)
        job.wait()
        in_training = prompts.new()
        # As the service reads the folder of `job.export(..., merge=True)`.
        service.bundle = service.bundle.model_copy(
            update={"trained_with": TrainedWith(system_prompt="Mine.")}
        )
        policy = client.policy("/exported")
        played_by_hand(policy, Countdown)
        assert prompts.new() == in_training
        policy.evaluate(Countdown, episodes=len(SEEDS), seed=SEEDS[0])
        assert prompts.new() == in_training
        played_by_hand(client.policy("/exported", system_prompt=""), Countdown)
        assert not prompts.new() & in_training


def test_the_environments_own_prompt_is_no_setting(client):
    with pytest.raises(InvalidRequestError) as refused:
        client.train(Countdown, steps=1, environment_prompt="mine")
    assert refused.value.field == "environment_prompt"
