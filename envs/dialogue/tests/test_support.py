import numpy as np
import pytest
from tinkergym_dialogue.case import Case
from tinkergym_dialogue.shop import Shop, right_contents

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.baselines import GoldPolicy, play_episode
from tinkergym.testing import EnvContract

NAME = "dialogue/SupportVs-v0"
SYNTAXES = ["words", "hermes", "xml", "json"]


class TestSupport(EnvContract):
    def make(self):
        return tg.make(NAME)


class TestSupportWithToolCalls(EnvContract):
    def make(self):
        return tg.make(NAME, calls="hermes")


class Listed:
    """Says one thing after the other; `%s` is the item that the customer does not want."""

    def __init__(self, env, *actions):
        self._game, self._actions = env.unwrapped.game, list(actions)

    def act(self, observation):
        del observation
        return self._actions.pop(0).replace("%s", self._game.case.item)


def case_with(**wanted):
    """A seed whose case is as wanted."""
    env = tg.make(NAME)
    for seed in range(200):
        env.reset(seed=seed)
        if all(getattr(env.unwrapped.game.case, name) == value for name, value in wanted.items()):
            return seed
    raise AssertionError(wanted)


def played(*actions, seed, **settings):
    env = tg.make(NAME, **settings)
    return play_episode(env, Listed(env, *actions), seed=seed)


@pytest.mark.parametrize("calls", SYNTAXES)
def test_earns_1_by_asking_looking_and_undoing_the_order(calls):
    env = tg.make(NAME, calls=calls)
    for seed in range(12):
        trajectory = play_episode(env, GoldPolicy(env), seed=seed)
        assert (trajectory.episode_return, trajectory.terminated) == (1.0, True)
        metrics = trajectory.turns[-1].metrics
        assert metrics["reward/database"] == 1.0
        assert (metrics["tool_calls"], metrics["looked"], metrics["malformed_tool_calls"]) == (2, 1, 0)
        assert metrics["asked"] == float(env.unwrapped.game.case.vague)


@pytest.mark.parametrize(
    ("status", "actions", "reward"),
    [
        ("open", ["drop %s", "bye"], 1.0),
        ("closed", ["take %s", "bye"], 1.0),
        ("closed", ["drop %s", "bye"], 0.0),
        ("open", ["take %s", "bye"], 0.0),
        ("open", ["drop %s", "take %s", "bye"], 0.0),
        ("open", ["DROP %s ", "look", "All done!"], 1.0),
        ("open", ["bye"], 0.0),
    ],
)
def test_rewards_what_the_database_holds_at_the_end(status, actions, reward):
    trajectory = played(*actions, seed=case_with(status=status))
    assert (trajectory.episode_return, trajectory.terminated) == (reward, True)


def test_keeps_an_order_that_the_customer_wants():
    seed = case_with(status="open", unwanted=0)
    env = tg.make(NAME)
    env.reset(seed=seed)
    other = env.unwrapped.game.case.items[1]
    assert played("drop %s", f"drop {other}", "bye", seed=seed).episode_return == 0.0


def test_cuts_off_endless_dialogue_and_still_counts_the_database():
    trajectory = played("drop %s", *["look"] * 7, seed=case_with(status="open"))
    assert (trajectory.episode_return, trajectory.truncated, len(trajectory.turns)) == (1.0, True, 8)


def test_reports_and_counts_calls_that_cannot_run():
    call = '<tool_call>{"name": "%s", "arguments": {"item": "spoon"}}</tool_call>'
    actions = [
        '<tool_call>{"name": </tool_call>',
        call.replace("%s", "sell"),
        call.replace("%s", "cancel_order"),
    ]
    trajectory = played(*actions, "Goodbye.", seed=1, calls="hermes")
    assert [turn.observation.count("error") for turn in trajectory.turns[1:]] == [1, 1, 1]
    metrics = trajectory.turns[-1].metrics
    assert (metrics["malformed_tool_calls"], metrics["tool_errors"], metrics["tool_calls"]) == (2, 1, 1)


def test_holds_other_customers_in_database_whom_no_tool_reaches():
    case = Case.drawn_by(np.random.default_rng(0))
    shop = Shop(case)
    before = shop.contents()
    assert before.count("INSERT INTO") == 6
    assert shop.list_orders() == " ".join(f"{item}: {status}." for item, status in case.orders)
    shop.cancel_order(case.item)
    changed = set(shop.contents().splitlines()) ^ set(before.splitlines())
    assert len(changed) == 2
    assert all(f"'{case.customer}','{case.item}'" in line for line in changed)
    assert right_contents(case) != before


def test_lets_policy_play_the_customer_with_free_text():
    table = tg.make_game("dialogue/Support-v0")
    for text in ("", "\ud800", "x" * 100_000, "I do not want it"):
        table.reset(seed=2)
        assert table.agent_selection == "customer"
        assert table.unwrapped.game.case.item in table.observe("customer")["text"]
        table.step(text)
        assert table.agent_selection == "agent"
        assert len(table.observe("agent")["text"]) < 4000
        table.step("which")
        assert table.observe("customer")["text"] == "Agent: which"
        table.step("goodbye")
        assert all(table.terminations.values())


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"calls": "prose"}, "calls"),
        ({"most_turns": 1}, "most_turns"),
        ({"opponent": "customer_9"}, "opponent"),
    ],
)
def test_rejects_settings_that_mean_nothing(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        tg.make(NAME, **settings)
    assert refused.value.field == field


def test_tells_remote_model_who_it_is_before_the_agents_words():
    """What an `External` in the customer's seat is shown, turn by turn."""
    table = tg.make_game("dialogue/Support-v0", calls="hermes")
    table.reset(seed=case_with(vague=True))
    assert "Do not say at first which one it is" in table.observe("customer")["text"]
    table.step("I want to give something back.")
    assert "list_orders" in table.observe("agent")["text"]
    assert "Customer: I want to give something back." in table.observe("agent")["text"]
    table.step("Which one?")
    assert table.observe("customer")["text"] == "Agent: Which one?"
