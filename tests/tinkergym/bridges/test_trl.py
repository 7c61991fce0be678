"""Our environments in TRL's own trainer: its prompts, tool loop and rewards; only the tokens are scripted."""

import inspect
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import backend
import tinkergym as tg
from tinkergym.bridges.trl import environment_factory, training_rows
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.registration.environments import make

# Not `importorskip`: its import takes a second, which processes that run other tests need not wait for.
pytestmark = pytest.mark.skipif(
    not find_spec("trl"), reason="pip install '.[bridges]' in a checkout of tinkergym"
)

NANO = Path(backend.__file__).parent / "models" / "nano"
BOARD = "board/TicTacToeVs-v0"


class Adds(tg.TextEnv):
    """Two sums in a row; the second action may break the world."""

    system_prompt = "Add."

    def start(self, options):
        self.left = 2
        return self.shown()

    def shown(self):
        self.a, self.b = (int(n) for n in self.np_random.integers(10, size=2))
        return f"{self.a}+{self.b}="

    def reply(self, action):
        if action == "fail":
            raise RuntimeError("broken on purpose")
        self.left -= 1
        right = action == str(self.a + self.b)
        return self.shown(), float(right), self.left == 0


@pytest.fixture
def adds():
    tg.register("tests/Adds-v0", Adds)
    return environment_factory("tests/Adds-v0", unplayed_reward=-1.0)


def solved(text):
    a, b = map(int, re.findall(r"(\d)\+(\d)=", text)[-1])
    return str(a + b)


def test_finds_one_tool_with_a_schema_trl_understands(adds):
    from transformers.utils import get_json_schema

    public = [name for name, _ in inspect.getmembers(adds, inspect.isfunction) if not name.startswith("_")]
    assert sorted(public) == ["get_reward", "reset", "step"]
    schema = get_json_schema(adds().step)["function"]
    assert (schema["name"], schema["parameters"]["required"]) == ("step", ["action"])
    assert schema["parameters"]["properties"]["action"]["type"] == "string"


def test_plays_the_environments_own_episode(adds):
    instance, env = adds(), make("tests/Adds-v0")
    shown = instance.reset(prompt=[], seed=3)
    observation, _ = env.reset(seed=3)
    assert shown == f"Add.\n\n{observation}"
    assert instance.step(solved(shown)) == env.step(solved(observation))[0]
    assert "The episode is over." in instance.step("0")
    assert instance.get_reward() == 1.0
    with pytest.raises(EpisodeProtocolError):
        instance.step("0")


def test_tells_an_unplayed_episode_from_a_broken_one(adds):
    instance = adds()
    instance.reset(seed=0)
    assert instance.get_reward() == -1.0
    with pytest.raises(RuntimeError):
        instance.step("fail")
    assert instance.get_reward() is None
    instance.reset(seed=0)
    assert instance.get_reward() == -1.0


def test_rejects_row_without_a_seed(adds):
    with pytest.raises(InvalidRequestError) as caught:
        adds().reset(prompt=[])
    assert caught.value.field == "seed"


def test_names_task_by_the_row():
    instance = environment_factory("math/Arithmetic-v0")()
    assert instance.reset(seed=0, task_index=5) == instance.reset(seed=1, task_index=5)


@pytest.mark.full("loads TRL and trains with it")
def test_trains_from_what_the_environment_pays(tmp_path, monkeypatch, adds):
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    # A template that TRL knows how to call tools in; nano's own has none.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    trainer = trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(NANO),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            num_generations=2,
            per_device_train_batch_size=4,
            max_completion_length=400,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list(training_rows(2)),
        environment_factory=adds,
        processing_class=tokenizer,
    )
    prompts = []

    def scripted(prompt_ids, *args, **kwargs):
        """Call the tool with the right sum; every other episode never does."""
        answers = []
        for place, ids in enumerate(prompt_ids):
            text = tokenizer.decode(ids)
            prompts.append(text)
            call = json.dumps({"name": "step", "arguments": {"action": solved(text)}})
            begun, over = "<tool_response>" in text, "The episode is over." in text
            wants = not over and (begun or place % 2 == 0)
            answers.append(f"<tool_call>\n{call}\n</tool_call>" if wants else "done")
        encoded = [tokenizer(answer, add_special_tokens=False).input_ids for answer in answers]
        return [[*ids, tokenizer.eos_token_id] for ids in encoded], None

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    trainer.train()
    logged = trainer.state.log_history[0]
    # Of each group of two, one episode solves both sums and one is never played.
    assert logged["rewards/Adds/mean"] == pytest.approx((2.0 - 1.0) / 2)
    assert logged["tools/failure_frequency"] == 0.0
    assert logged["grad_norm"] > 0
    assert prompts[0].count("Add.\n\n") == 1
    assert prompts[0].split("Add.")[1] == prompts[1].split("Add.")[1]
