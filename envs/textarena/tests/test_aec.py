"""Every seat from outside: what TextArena tells each player is what the PettingZoo form tells its agent."""

import pickle
import random
import warnings

import pytest
import textarena
from pettingzoo.test import api_test, seed_test
from tinkergym_textarena.games import VERSUS, moves_of
from tinkergym_textarena.native import NativeGame

import tinkergym as tg
from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.wrappers import AgainstOpponent

TALK = ["I offer you peace.", "[nonsense]", "🙂", "[3]", ""]
MOST_ACTIONS = 40
OTHERS = [("Briscola", 4), ("HighSociety", 2), ("IndianPoker", 2), ("Poker", 5), ("QuantumTicTacToe", 2)]
OTHERS += [("SecretMafia", 6), ("Stratego", 2), ("ThreePlayerIPD", 3), ("TruthAndDeception", 2)]
"""Games that no id of ours is made for, with many ways to tell players something."""


def script(name, seed, players=2):
    """Actions for whoever is next: mostly sensible, some not."""
    rng = random.Random(f"{name} {seed}")
    sensible = moves_of(f"{name}-v0")(NativeGame(f"{name}-v0", players, seed, {}).plain)
    return [rng.choice(sensible if rng.random() < 0.85 else TALK) for _ in range(MOST_ACTIONS)]


def native_play(name, seed, actions, players=2):
    """Play with TextArena alone; return what each player was shown, whole, then rewards and facts."""
    random.seed(seed)
    env = textarena.make(f"{name}-v0")
    env.reset(num_players=players, seed=seed)
    seen = []
    for action in actions:
        seen.append(env.get_observation())
        if env.step(action=action)[0]:
            return seen, *env.close()
    return seen, None, None


def our_play(env, seed, actions):
    """Play the AEC environment; return the same, an observation being all that its agent was shown so far."""
    env.reset(seed=seed)
    seen, whole = [], dict.fromkeys(env.possible_agents, "")
    for action in actions:
        agent = env.agent_selection
        text = env.observe(agent)["text"]
        assert env.last()[0]["text"] == text, "looking twice shows the same"
        whole[agent] += f"\n{text}" if text else ""
        seen.append((env.possible_agents.index(agent), whole[agent]))
        env.step(action)
        if all(env.terminations.values()):
            return seen, list(env.rewards.values()), [env.infos[agent] for agent in env.possible_agents]
    return seen, None, None


@pytest.mark.parametrize("name", sorted(VERSUS))
def test_gives_same_transcript_natively_and_by_pettingzoo(name):
    env = tg.make_game(f"textarena/{name}-v0", echo=True)
    for seed in range(4):
        actions = script(name, seed)
        native, rewards, facts = native_play(name, seed, actions)
        ours, earned, infos = our_play(env, seed, actions)
        assert ours == native
        assert earned == (None if rewards is None else [rewards[0], rewards[1]])
        if rewards is not None:
            assert [info["game"] for info in infos] == [facts[0], facts[1]]
            assert [info["metrics"]["won"] for info in infos] == [float(reward > 0) for reward in earned]


def test_allows_more_than_two_players_where_the_game_does():
    env = tg.make_game("textarena/LiarsDice-v0", players=3, echo=True)
    ended = 0
    for seed in range(4):
        actions = script("LiarsDice", seed, players=3) * 3
        native, rewards, _ = native_play("LiarsDice", seed, actions, players=3)
        ours, earned, _ = our_play(env, seed, actions)
        assert ours == native
        assert earned == (None if rewards is None else [rewards[player] for player in range(3)])
        ended += earned is not None
    assert ended


def test_shows_what_a_game_adds_when_a_players_turn_comes():
    actions = ["I want more. [Propose] $1.20", "Too much. [Reject]", "[Propose] $1.10", "[Accept]"]
    env = tg.make_game("textarena/Nim-v0", game="TwoDollar-v0", echo=True)
    for seed in range(3):
        native, rewards, _ = native_play("TwoDollar", seed, actions)
        ours, earned, _ = our_play(env, seed, actions)
        assert ours == native
        assert "CURRENT PROPOSAL" in ours[1][1]
        assert earned == (None if rewards is None else [rewards[0], rewards[1]])


def test_rejects_game_whose_players_see_their_past_edited():
    with pytest.raises(InvalidEnvironmentError, match="SettlersOfCatanObservationWrapper"):
        tg.make_game("textarena/Nim-v0", game="SettlersOfCatan-v0", players=4)


@pytest.mark.parametrize(("name", "players"), OTHERS)
def test_shows_games_that_are_only_named_as_native_play_does(name, players):
    env = tg.make_game("textarena/Nim-v0", game=f"{name}-v0", players=players, echo=True)
    actions = ["[0]", "[play 1]", "[1]", "I offer you peace.", "[pass]", "[2]"]
    native, rewards, _ = native_play(name, 1, actions, players)
    ours, earned, _ = our_play(env, 1, actions)
    assert ours == native
    assert earned == (None if rewards is None else [rewards[player] for player in range(players)])


@pytest.mark.parametrize("name", sorted(VERSUS))
def test_passes_pettingzoos_check(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What PettingZoo says of any space that is neither `Box` nor `Discrete`.
        warnings.filterwarnings("ignore", message="Observation is not a NumPy array|.*probably should be")
        api_test(tg.make_game(f"textarena/{name}-v0"), num_cycles=30)
        seed_test(lambda: tg.make_game(f"textarena/{name}-v0"), num_cycles=30)


def transcripts(seeds, actions):
    """Play one game per seed, turn by turn in turn."""
    envs = [tg.make_game("textarena/PigDice-v0") for _ in seeds]
    for env, seed in zip(envs, seeds, strict=True):
        env.reset(seed=seed)
    seen = [[] for _ in seeds]
    for action in actions:
        for env, record in zip(envs, seen, strict=True):
            if env.agents and not all(env.terminations.values()):
                record.append((env.agent_selection, env.last()))
                env.step(action)
    return seen


def test_keeps_interleaved_games_and_the_programs_own_random_apart():
    actions = ["[roll]", "[roll]", "[hold]"] * 8
    alone = [transcripts([seed], actions)[0] for seed in range(3)]
    random.seed(4)
    state = random.getstate()
    assert transcripts(range(3), actions) == alone
    assert random.getstate() == state
    assert alone[0] != alone[1]


def test_continues_game_from_a_copy_in_another_process():
    env = tg.make_game("textarena/PigDice-v0")
    env.reset(seed=2)
    env.step("[roll]")
    copy = pickle.loads(pickle.dumps(env))
    for one in (env, copy):
        one.step("[roll]")
        one.step("[hold]")
    assert copy.last() == env.last()


def test_asks_again_and_counts_illegal_action_before_losing():
    env = tg.make_game("textarena/TicTacToe-v0")
    env.reset(seed=0)
    first = env.agent_selection
    env.step("[99]")
    assert env.agent_selection == first
    assert "invalid move" in env.observe(first)["text"]
    assert env.infos[first]["metrics"] == {"illegal_moves": 1.0}
    env.step("[99]")
    assert env.rewards[first] == -1.0
    assert env.infos[first]["metrics"] == {
        "illegal_moves": 1.0,
        "won": 0.0,
        "drawn": 0.0,
        "lost": 1.0,
        "illegal_move": 1.0,
    }
    for _ in env.agents[:]:
        env.step(None)
    assert env.agents == []
    with pytest.raises(EpisodeProtocolError):
        env.step("[0]")


def test_gives_legal_actions_only_to_player_in_turn():
    env = tg.make_game("textarena/TicTacToe-v0")
    env.reset(seed=0)
    mover, other = env.agent_selection, next(a for a in env.agents if a != env.agent_selection)
    env.step("[4]")
    assert env.legal_actions(mover) == []
    assert env.legal_actions(other) == [f"[{cell}]" for cell in range(9) if cell != 4]
    assert not env.is_legal(other, "[4]")
    assert env.is_legal(other, "[5]")


def test_turns_one_seat_into_gymnasium_environment_against_random_opponent():
    env = AgainstOpponent(tg.make_game("textarena/Nim-v0"))
    env.reset(seed=1)
    over = False
    while not over:
        _, reward, over, _, info = env.step(env.legal_actions()[0])
    assert reward in (-1.0, 1.0)
    assert info["metrics"]["won"] == float(reward > 0)


@pytest.mark.parametrize(
    ("field", "settings"), [("on_illegal", {"on_illegal": "lose"}), ("players", {"players": 1})]
)
def test_rejects_setting_without_effect_by_name(field, settings):
    with pytest.raises(InvalidRequestError) as caught:
        tg.make_game("textarena/TicTacToe-v0", **settings)
    assert caught.value.field == field


def test_names_agent_that_lost_by_an_illegal_move():
    env = tg.make_game("textarena/TicTacToe-v0")
    env.reset(seed=0)
    loser = env.agent_selection
    while not env.terminations[loser]:
        env.step("nonsense" if env.agent_selection == loser else env.legal_actions(env.agent_selection)[0])
    marked = {agent: info["metrics"]["illegal_move"] for agent, info in env.infos.items()}
    assert marked == {agent: float(agent == loser) for agent in env.possible_agents}
