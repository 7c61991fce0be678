"""However a policy is asked, it reads the token ids that it would have read in training."""

import json

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.matches import Match, Player, play_matches
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
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


@pytest.fixture(
    params=[
        Countdown,
        pytest.param(lake, marks=pytest.mark.full("words of its own, as those of `Countdown`")),
        with_tools,
        "prompts/Registered-v0",
    ]
)
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
    env, chat = make(environment), policy.chat()
    for seed in SEEDS:
        observation, _ = env.reset(seed=seed)
        chat.reset()
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(chat.act(observation))
            over = terminated or truncated


def test_reads_in_act_and_evaluate_what_training_read(trained, environment):
    client, job, prompts, in_training = trained
    played_by_hand(job.policy(), environment)
    assert prompts.new() == in_training
    job.policy().evaluate(environment, episodes=len(SEEDS), seed=SEEDS[0])
    assert prompts.new() == in_training
    played_by_hand(client.job(job.id).policy(), environment)  # of a job that another script started
    assert prompts.new() == in_training


def test_reads_by_informed_model_what_training_read(trained, environment):
    client, _, prompts, in_training = trained
    model = client.policy("nano", env=environment, max_turn_tokens=8)
    played_by_hand(model, environment)
    assert prompts.new() == in_training
    model.evaluate(environment, episodes=len(SEEDS), seed=SEEDS[0])
    assert prompts.new() == in_training


def test_reads_on_command_line_what_training_read(trained, environment):
    _, job, prompts, in_training = trained
    name = environment if isinstance(environment, str) else f"{__name__}:{environment.__name__}"
    asked = {
        "eval": ["--tasks", "3"],
        "play": ["--episodes", "3", "--watch"],
    }
    for command, rest in asked.items():
        done = CliRunner().invoke(app, [command, name, "--policy", job.id, "--seed", "1000", *rest])
        assert (done.exit_code, prompts.new()) == (0, in_training), done.output


def test_reads_in_own_loop_what_act_reads_later(start_service):
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


def test_says_in_export_with_which_prompt_it_was_trained(start_service, tmp_path):
    service = start_service(lambda prompt: "l")
    manifest = json.dumps({"files": {}}).encode()
    service.jobs.files = {"manifest.json": manifest}
    one_group = tg.GRPO(group_size=2, groups_per_step=1)
    with tg.Client() as client:
        for number, (own, expected) in enumerate([(None, "Count down."), ("Mine.", "Mine."), ("", "")]):
            job = client.train(Countdown, steps=1, algorithm=one_group, system_prompt=own)
            job.wait()
            job.export(tmp_path / str(number))
            written = json.loads((tmp_path / str(number) / "tinkergym.json").read_text())
            assert written["system_prompt"] == expected


def test_reads_by_exported_model_what_training_read_unless_told_otherwise(start_service):
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


def test_does_not_take_environments_own_prompt_as_setting(client):
    with pytest.raises(InvalidRequestError) as refused:
        client.train(Countdown, steps=1, environment_prompt="mine")
    assert refused.value.field == "environment_prompt"


GAME = "games/Nim-v0"
TOOL = "tests.tinkergym.rollout.tools_of_seats:double"
CALL = '<tool_call>{"name": "double", "arguments": {"number": 4}}</tool_call>'
SEATS = ("player_0", "player_1")


def calls_first(prompt):
    """Call the tool before each move, where there is one."""
    waits = "</tool_response>" not in prompt.rpartition("<|im_start|>user")[2]
    return CALL if "# Tools" in prompt and waits else "1"


@pytest.fixture
def with_seat_tools(start_service):
    """A job whose first player has a tool, its service, and the prompts of its episodes."""
    service = start_service(calls_first, context_length=16_384)
    service.jobs.files = {"manifest.json": json.dumps({"files": {}}).encode()}
    prompts = Prompts(service)
    with tg.Client() as client:
        job = client.train(
            GAME,
            steps=1,
            rollout="client",
            agents={"player_0": tg.Train(tools=[TOOL]), "player_1": tg.Train()},
            algorithm=tg.GRPO(group_size=2, groups_per_step=2),
            sampling=Sampling(max_turn_tokens=200),
        )
        job.wait()
        yield job, service, prompts, prompts.new()


def test_reads_same_by_policy_trained_with_tools_wherever_it_acts(with_seat_tools):
    job, _, prompts, in_training = with_seat_tools
    renderer = job.policy(agent="player_0").renderer
    assert any("</tool_response>" in renderer.decode(one) for one in in_training)
    policies = {agent: job.policy(agent=agent) for agent in SEATS}
    chats = {agent: policy.chat() for agent, policy in policies.items()}
    game = tg.make_game(GAME)
    for seed in (1000, 1001):
        game.reset(seed=seed)
        for chat in chats.values():
            chat.reset()
        for agent in game.agent_iter():
            observation, _, terminated, truncated, _ = game.last()
            game.step(None if terminated or truncated else chats[agent].act(observation))
    assert prompts.new() == in_training
    players = {agent: Player(name=agent, plays=policy, temperature=0.0) for agent, policy in policies.items()}
    play_matches([Match(seats=players, seed=seed) for seed in (1000, 1001)], EnvironmentRef(id=GAME))
    assert prompts.new() == in_training


@pytest.mark.parametrize("way", ["evaluate", "play"])
def test_offers_policy_its_tools_where_another_plays_its_opponent(with_seat_tools, way):
    job, _, prompts, in_training = with_seat_tools
    policy = job.policy(agent="player_0")
    if way == "evaluate":
        result = policy.evaluate("games/NimVs-v0", episodes=2, seed=1000)
        assert [one.turns[0].action for one in result.completed] == [CALL, CALL]
    else:
        watched = ["play", "games/NimVs-v0", "--policy", f"{job.id}/player_0", "--watch"]
        done = CliRunner().invoke(app, watched)
        assert (done.exit_code, "# Tools" in done.output) == (0, True), done.output
    offers = {policy.renderer.decode(one).partition("<|im_end|>")[0] for one in in_training}
    (offer,) = [one for one in offers if "# Tools" in one]
    asked = [policy.renderer.decode(one) for one in prompts.new()]
    assert asked
    assert all(one.startswith(offer) for one in asked)


def test_offers_an_export_the_tools_of_its_policy(with_seat_tools, tmp_path):
    job, service, prompts, in_training = with_seat_tools
    job.export(tmp_path / "there", agent="player_0")
    written = json.loads((tmp_path / "there" / "tinkergym.json").read_text())
    kept = {name: written[name] for name in TrainedWith.model_fields}
    service.bundle = service.bundle.model_copy(update={"trained_with": TrainedWith.model_validate(kept)})
    with tg.Client() as client:
        policy = client.policy("/exported", max_turn_tokens=200)
        game = tg.make_game(GAME)
        game.reset(seed=1000)
        assert policy.act(game.last()[0]) == "1"
    assert prompts.new() <= in_training
