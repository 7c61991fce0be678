import json
import threading

import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    InvalidToolError,
    ToolError,
)
from tinkergym.images.stored_images import image_file
from tinkergym.messages import observation_messages
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.serving.wire_values import pack, unpack
from tinkergym.spaces import Chat, Image, Text
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import Tool, render_calls
from tinkergym.trajectory.content_parts import ImagePart
from tinkergym.trajectory.trajectory import StopReason
from tinkergym.wrappers import ToolCalling


@tg.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tg.tool
def fail(how: str) -> str:
    """Fail."""
    match how:
        case "infrastructure":
            raise EnvironmentInfrastructureError("the sandbox is gone")
        case "exit":
            raise SystemExit(3)
        case "tool":
            raise ToolError("try again with less")
        case "surrogate":
            return "\ud800"
        case "long":
            return "a" * 10_000 + "b" * 10_000
    raise ValueError(how)


class Shop(tg.TextEnv):
    """Buy for a price that only a tool tells."""

    system_prompt = "You buy apples."

    def start(self, options):
        self.price = int(self.np_random.integers(1, 9))
        self.asked = 0
        return "How much do two apples cost?"

    @tg.tool
    def price_of(self, what: str) -> int:
        """Return the price of a thing."""
        self.asked += 1
        return self.price

    def reply(self, action):
        return "", float(action == str(2 * self.price)), True, {"metrics": {"asked": float(self.asked)}}


class Chatting(gym.Env):
    def __init__(self, **settings):
        self.observation_space, self.action_space = Chat(**settings), Text()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [{"role": "user", "content": "1+1?"}], {}

    def step(self, action):
        return [], float(action == "2"), True, False, {}


def call(name, syntax="hermes", **arguments):
    return render_calls([ToolCall(name, arguments)], syntax)


def stepped(env, action):
    """Play one action in a fresh episode; return the observation and the metrics that are not 0."""
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    return observation, {name: value for name, value in info["metrics"].items() if value}


@pytest.mark.parametrize("syntax", ["hermes", "xml", "json"])
def test_runs_call_and_returns_result_as_next_observation(syntax):
    observation, counts = stepped(ToolCalling(Shop(), [add], syntax), call("add", syntax, a=19, b=23))
    assert "42" in observation
    assert counts == {"tool_calls": 1.0}


def test_passes_answer_to_environment_with_stateful_tools_as_methods():
    env = ToolCalling(Shop())
    env.reset(seed=4)
    observation, *_ = env.step(call("price_of", what="apple"))
    price = int(observation.split("\n")[1])
    _, reward, terminated, _, info = env.step(str(2 * price))
    assert (reward, terminated) == (1.0, True)
    assert info["metrics"]["asked"] == 1.0
    assert info["metrics"]["tool_calls"] == 0.0


def test_runs_several_calls_of_one_answer_in_order():
    action = "\n".join([call("add", a=1, b=1), "and", call("fail", how="x"), call("add", a=2, b=2)])
    observation, counts = stepped(ToolCalling(Shop(), [add, fail]), action)
    assert observation.index("\n2\n") < observation.index("ValueError") < observation.index("\n4\n")
    assert counts == {"tool_calls": 3.0, "tool_errors": 1.0}


@pytest.mark.parametrize(
    ("action", "told", "counts"),
    [
        ("<tool_call>add(1, 2)</tool_call>", "cannot be read", {"malformed_tool_calls": 1.0}),
        (
            call("subtract", a=1),
            "no tool 'subtract'; the tools are: price_of, add",
            {"malformed_tool_calls": 1.0},
        ),
        (call("add", a=1), "b is missing", {"malformed_tool_calls": 1.0}),
        (call("fail", how="x"), "ValueError: x", {"tool_calls": 1.0, "tool_errors": 1.0}),
        (call("fail", how="exit"), "SystemExit", {"tool_calls": 1.0, "tool_errors": 1.0}),
        (call("fail", how="tool"), "error: try again with less", {"tool_calls": 1.0, "tool_errors": 1.0}),
        (call("fail", how="surrogate"), "?", {"tool_calls": 1.0}),
        (call("fail", how="long"), "10000 characters left out", {"tool_calls": 1.0}),
    ],
)
def test_tells_and_counts_what_goes_wrong_with_a_call(action, told, counts):
    observation, counted = stepped(ToolCalling(Shop(), [add, fail]), action)
    assert told in observation
    assert counted == counts
    assert observation in Text()
    assert len(observation) < 11_000


def test_tells_policy_to_answer_after_max_calls():
    env = ToolCalling(Shop(), max_calls=1)
    for _ in range(2):
        env.reset(seed=1)
        first = env.step(call("price_of", what="a") * 2)
        assert first[4]["metrics"] == {
            "tool_calls": 1.0,
            "tool_errors": 0.0,
            "malformed_tool_calls": 0.0,
            "refused_tool_calls": 1.0,
        }
        assert "answer now" in first[0]
        assert env.unwrapped.asked == 1
        assert env.step("1")[2]


def test_gives_up_call_that_takes_too_long():
    go_on = threading.Event()

    @tg.tool(timeout_seconds=0.01)
    def wait() -> str:
        """Wait."""
        go_on.wait(60)
        return "late"

    observation, counts = stepped(ToolCalling(Shop(), [wait]), call("wait"))
    go_on.set()
    assert "did not return within 0.01 s" in observation
    assert counts == {"tool_calls": 1.0, "tool_errors": 1.0}


def test_runs_methods_in_the_environments_thread_and_functions_with_limit():
    threads = []

    class Threaded(Shop):
        @tg.tool
        def method(self) -> None:
            """Note the thread."""
            threads.append(threading.current_thread())

    @tg.tool
    def function() -> None:
        """Note the thread."""
        threads.append(threading.current_thread())

    stepped(ToolCalling(Threaded(), [function], timeout_seconds=60), call("method") + call("function"))
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


def test_rejects_time_limit_for_a_method():
    with pytest.raises(InvalidToolError):

        class Limited(Shop):
            @tg.tool(timeout_seconds=1)
            def slow(self) -> None:
                """Be slow."""


def test_counts_infrastructure_failure_as_outcome_of_the_episode():
    renderer = Renderer.from_bundle(byte_bundle())
    plan = EpisodePlan(
        episode_id="e",
        seed=0,
        policy="p",
        environment=EnvironmentRef(id="shop"),
        decoding=Decoding(max_turn_tokens=200, seed=0),
        limits=Limits(),
    )
    (result,) = play(
        [plan],
        sampler=ScriptedSampler(renderer, lambda prompt: call("fail", how="infrastructure")),
        renderer=renderer,
        make_env=lambda reference: ToolCalling(Shop(), [fail]),
    )
    assert result.trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "the sandbox is gone" in result.trajectory.error


@pytest.mark.parametrize("syntax", ["hermes", "xml", "json"])
def test_offers_tools_after_the_environments_own_system_prompt(syntax):
    inner = Shop()
    env = ToolCalling(inner, [add], syntax, max_calls=3)
    prompt = env.metadata["system_prompt"]
    assert prompt.startswith("You buy apples.")
    assert json.dumps(add.schema()) in prompt
    assert '"price_of"' in prompt
    assert "3 calls" in prompt
    assert inner.metadata["system_prompt"] == "You buy apples."
    assert env.metadata["turns"] == "multi"


def test_sends_tool_messages_in_a_chat():
    observation, _ = stepped(ToolCalling(Chatting(), [add]), call("add", a=1, b=1) + "<tool_call>")
    assert observation[0] == {"role": "tool", "content": "2", "name": "add"}
    assert observation[1]["role"] == "tool"
    assert observation in Chat()


def test_sends_user_text_in_chat_without_tool_messages():
    env = ToolCalling(Chatting(roles=["user"]), [add])
    observation, _ = stepped(env, call("add", a=1, b=1))
    assert observation in env.observation_space
    assert "2" in observation[0]["content"]


def test_keeps_other_keys_of_a_mapping():
    class Mapped(gym.Env):
        observation_space = gym.spaces.Dict({"text": Text(), "board": gym.spaces.Discrete(3)})
        action_space = Text()

        def reset(self, *, seed=None, options=None):
            return {"text": "go", "board": 2}, {}

    observation, _ = stepped(ToolCalling(Mapped(), [add]), call("add", a=1, b=1))
    assert observation["board"] == 2
    assert "2" in observation["text"]


def test_rejects_observation_that_can_hold_no_text():
    with pytest.raises(InvalidEnvironmentError) as caught:
        ToolCalling(gym.make("CartPole-v1"), [add]).reset()
    assert caught.value.field == "environment"


def test_records_wrapper_in_the_spec_and_makes_it_from_there():
    tg.register("tools/Shop-v0", f"{__name__}:Shop")
    env = ToolCalling(tg.make("tools/Shop-v0"), [add], "xml", max_calls=2)
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    again = gym.make(spec)
    assert again.metadata["system_prompt"] == env.metadata["system_prompt"]
    assert "42" in stepped(again, call("add", "xml", a=19, b=23))[0]


class Closing(Tool):
    name, description = "closing", "Close."
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012
    closed = 0

    def __init__(self, answer="x"):
        self.answer = answer

    def call(self, arguments):
        return self.answer

    def close(self):
        self.closed += 1


def test_closes_only_tools_made_by_name_with_the_environment(monkeypatch):
    source = {"tool": f"{__name__}:Closing", "answer": "made"}
    monkeypatch.setitem(__import__("sys").modules, __name__, type("module", (), {"Closing": Closing}))
    env = ToolCalling(Shop(), [source])
    assert "made" in stepped(env, call("closing"))[0]
    env.close()
    assert env.tools["closing"].closed == 1
    own = Closing()
    ToolCalling(Shop(), [own]).close()
    assert own.closed == 0


@pytest.mark.parametrize(
    "tools", [[add, add], ["json:loads:x"], ["nowhere:add"], [3], [Shop.price_of], [{"tool": 3}], ["json:x"]]
)
def test_rejects_what_is_no_tool(tools):
    with pytest.raises(InvalidToolError):
        ToolCalling(Shop(), tools)


def test_rejects_environment_without_tools():
    with pytest.raises(InvalidToolError):
        ToolCalling(Chatting())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("syntax", "yaml"),
        ("max_calls", 0),
        ("max_calls", 1.5),
        ("max_calls", True),
        ("max_result_characters", 99),
        ("max_result_characters", None),
        ("timeout_seconds", -1),
        ("timeout_seconds", "1"),
        ("timeout_seconds", float("inf")),
    ],
)
def test_rejects_setting_out_of_range(setting, value):
    with pytest.raises(InvalidRequestError) as refused:
        ToolCalling(Shop(), **{setting: value})
    assert refused.value.field == setting


def test_rejects_call_before_reset_or_after_the_end():
    env = ToolCalling(Shop())
    with pytest.raises(EpisodeProtocolError):
        env.step(call("price_of", what="a"))
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(EpisodeProtocolError):
        env.step(call("price_of", what="a"))


NATIVE_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("inner", [Shop, Chatting])
def test_offers_calls_and_answers_native_tools_in_messages(inner):
    env = ToolCalling(inner(), [add], "native")
    first, _ = env.reset(seed=0)
    assert first in env.observation_space
    assert [tool["function"]["name"] for tool in first[0]["tools"]][-1] == "add"
    assert "tools" not in (env.metadata.get("system_prompt") or "").lower()
    observation, *_, info = env.step(call("add", a="19", b=23))
    assert observation in env.observation_space
    assert observation == [{"role": "tool", "content": "42", "name": "add"}]
    assert info["metrics"]["tool_calls"] == 1.0


class Seen(gym.Env):
    """Shows a picture beside its messages."""

    observation_space = gym.spaces.Dict({"messages": Chat(), "image": Image(8, 8), "text": Text(99)})
    action_space = Text(99)
    picture = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"messages": [{"role": "user", "content": "Hm?"}], "image": self.picture, "text": "Look."}, {}


def test_shows_picture_once_by_native_tools_also_from_afar():
    env = ToolCalling(Seen(), [add], "native")
    first, _ = env.reset(seed=0)
    blobs = []
    packed = pack(first, blobs)
    shown = [
        part
        for message in observation_messages(unpack(packed, blobs))
        if not isinstance(message["content"], str)
        for part in message["content"]
        if isinstance(part, ImagePart)
    ]
    assert [part.sha256 for part in shown] == [image_file(Seen.picture).sha256]
    observation, *_ = env.step(call("add", a="19", b=23))
    assert observation_messages(observation) == [{"role": "tool", "content": "42", "name": "add"}]
    assert observation.keys() == first.keys() == env.observation_space.keys()


def test_calls_native_tools_in_the_models_own_form():
    renderer = Renderer.from_bundle(byte_bundle(chat_template=NATIVE_TEMPLATE))
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        return "2" if "|>tool\n" in prompt else '<call>add {"a": 1, "b": 1}</call>'

    plan = EpisodePlan(
        episode_id="e",
        seed=0,
        policy="p",
        environment=EnvironmentRef(id="shop"),
        limits=Limits(max_turns=4),
        decoding=Decoding(max_turn_tokens=99),
    )
    (result,) = play(
        [plan],
        sampler=ScriptedSampler(renderer, answer),
        renderer=renderer,
        make_env=lambda reference: ToolCalling(Shop(), [add], "native"),
    )
    trajectory = result.trajectory
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert prompts[-1].count("add") == 2
    assert prompts[-1].endswith("<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n")
    assert trajectory.turns[0].metrics["tool_calls"] == 1.0
    assert len(trajectory.segments) == 1
