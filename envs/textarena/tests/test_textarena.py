"""Against the real package: what TextArena shows and pays is what these environments show and pay."""

import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from tinkergym_textarena.games import EXACT, SINGLE, VERSUS, moves_of
from tinkergym_textarena.native import NativeGame

import tinkergym as tg
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    InvalidRewardError,
)
from tinkergym.registration.environments import make
from tinkergym.testing.contract import EnvContract

TALK = ["I offer you peace.", "[Offer: 2 Wood -> 1 Ore]", "[nonsense]", "[Player 0] hello", "🙂", "[3]", ""]
FOR_TWO = [
    "TicTacToe",
    "ConnectFour",
    "Nim",
    "KuhnPoker",
    "SimpleNegotiation",
    "MemoryGame",
    "LiarsDice",
    "PigDice",
]
ALONE = ["GuessTheNumber", "Mastermind", "2048", "Minesweeper", "Bandit"]


def script(name, seed, count=60):
    """Actions that both sides are to play: mostly sensible, some not."""
    rng = np.random.default_rng([seed, 7])
    game = NativeGame(f"{name}-v0", 2 if name in VERSUS else 1, seed, {})
    sensible = moves_of(f"{name}-v0")(game.plain)
    return [str(rng.choice(sensible if rng.random() < 0.85 else TALK)) for _ in range(count)]


def native_play(name, seed, actions):
    """Play with TextArena alone, as its own page shows it.

    Return what each player saw at each turn, whole, and at the end the rewards and reasons.
    """
    import textarena

    random.seed(seed)
    env = textarena.make(f"{name}-v0")
    env.reset(num_players=2 if name in VERSUS else 1, seed=seed)
    seen, done = [], False
    for action in actions:
        player, observation = env.get_observation()
        seen.append((player, observation))
        done, _ = env.step(action=action)
        if done:
            break
    return seen, *(env.close() if done else (None, None))


def our_play(name, seed, actions, seat=0, *, echo=True):
    """Play the same through our environment: the opponent says what the script gives its side."""
    env = make(f"textarena/{name}{'Vs' if name in VERSUS else ''}-v0", echo=echo).unwrapped
    seen, queue = [], iter(actions)

    class OutOfWordsError(Exception):
        pass

    def say():
        try:
            return next(queue)
        except StopIteration:
            raise OutOfWordsError from None

    if name in VERSUS:
        env = make(f"textarena/{name}Vs-v0", echo=echo, seat=seat).unwrapped

        def answer(observation):
            seen.append((1 - seat, observation))
            return say()

        env.seat_opponent(answer)
    try:
        observation, _ = env.reset(seed=seed)
        over = env._game.over
        if over:
            return seen, *env.step("not heard any more")[1:5:3]
        while not over:
            seen.append((seat, observation))
            observation, reward, over, _, info = env.step(say())
    except OutOfWordsError:
        return seen, None, None
    return seen, reward, info


def whole(deltas, player):
    """Put a player's deltas together as TextArena shows the past."""
    return "".join(f"\n{text}" for seat, text in deltas if seat == player and text)


@pytest.mark.parametrize("name", [*FOR_TWO, *ALONE])
def test_gives_the_same_transcript_as_native_play(name):
    finished = 0
    for seed in range(6):
        actions = script(name, seed)
        native, rewards, facts = native_play(name, seed, actions)
        for seat in (0, 1) if name in VERSUS else (0,):
            ours, reward, info = our_play(name, seed, actions, seat)
            # Ours may have been shown one observation more, to which the script had no answer.
            assert [player for player, _ in ours][: len(native)] == [player for player, _ in native]
            assert len(ours) <= len(native) + (rewards is None)
            for turn, (player, everything) in enumerate(native):
                assert whole(ours[: turn + 1], player) == everything
            if rewards is not None:
                finished += 1
                assert reward == rewards[seat]
                assert info["reason"] == facts[seat]["reason"]
                assert info["game"] == facts[seat]
    assert finished


def test_leaves_out_only_the_players_own_words_without_echo():
    actions = script("TicTacToe", 2)
    with_echo, *_ = our_play("TicTacToe", 2, actions)
    without, *_ = our_play("TicTacToe", 2, actions, echo=False)
    for (player, one), (_, other) in zip(with_echo, without, strict=True):
        own = f"[Player {player}] "
        assert [line for line in one.splitlines() if not line.startswith(own)] == other.splitlines()


def test_shows_only_what_is_new_in_an_observation():
    env = make("textarena/ConnectFourVs-v0")
    first, _ = env.reset(seed=1)
    second, *_ = env.step(env.unwrapped.legal_actions()[0])
    assert "You are Player" in first
    assert "You are Player" not in second


def episode(env, seed, actions):
    seen = [env.reset(seed=seed)]
    for action in actions:
        if len(seen[-1]) == 5 and seen[-1][2]:
            break
        seen.append(env.step(action))
    return seen


CHANCE = ["PigDiceVs", "2048", "KuhnPokerVs"]


def actions_for(name, seed=0):
    return script(name.removesuffix("Vs"), seed, 25)


@pytest.mark.parametrize("name", CHANCE)
def test_separates_chance_of_interleaved_games(name):
    actions = actions_for(name)
    expected = [episode(make(f"textarena/{name}-v0"), seed, actions) for seed in (0, 1)]
    envs = [make(f"textarena/{name}-v0") for _ in range(2)]
    seen = [[env.reset(seed=seed)] for seed, env in enumerate(envs)]
    for action in actions:
        for env, record in zip(envs, seen, strict=True):
            if not (len(record[-1]) == 5 and record[-1][2]):
                record.append(env.step(action))
    assert seen == expected


def test_leaves_the_host_programs_random_alone():
    actions = actions_for("PigDiceVs")
    expected = episode(make("textarena/PigDiceVs-v0"), 0, actions)
    random.seed(5)
    drawn = [random.random() for _ in range(30)]
    random.seed(5)
    env, again = make("textarena/PigDiceVs-v0"), []
    record = [env.reset(seed=0)]
    for action in actions:
        again.append(random.random())
        if len(record[-1]) == 5 and record[-1][2]:
            break
        record.append(env.step(action))
    assert again == drawn[: len(again)]
    assert record == expected


def test_plays_same_episodes_in_simultaneous_threads_as_alone():
    actions = actions_for("KuhnPokerVs")
    expected = [episode(make("textarena/KuhnPokerVs-v0"), seed, actions) for seed in range(4)]
    seen, draws = {}, []
    random.seed(9)

    def play(seed):
        for _ in range(5):
            seen[seed] = episode(make("textarena/KuhnPokerVs-v0"), seed, actions)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    draws = [random.random() for _ in range(2000)]
    for thread in threads:
        thread.join()
    assert [seen[seed] for seed in range(4)] == expected
    random.seed(9)
    assert draws == [random.random() for _ in range(2000)]


def test_draws_for_others_from_the_global_generator_as_ever():
    make("textarena/PigDiceVs-v0").reset(seed=0)
    import textarena

    def native():
        env = textarena.make("PigDice-v0-raw")
        env.reset(num_players=2)
        for _ in range(5):
            env.step("[roll]")
        return env.state.logs

    random.seed(3)
    one = native()
    random.seed(3)
    assert native() == one


def test_continues_a_game_in_another_process_as_it_would_here():
    actions = actions_for("PigDiceVs")
    env = make("textarena/PigDiceVs-v0").unwrapped
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert [copy.step(action) for action in actions[:3]] == [env.step(action) for action in actions[:3]]


def test_plays_legal_moves_as_random_opponent_and_from_list():
    for name in [*FOR_TWO, "GameOfPureStrategy", "WildTicTacToe"]:
        env = make(f"textarena/{name}Vs-v0").unwrapped
        rng = np.random.default_rng(0)
        for seed in range(3):
            env.reset(seed=seed)
            over = False
            for _ in range(40):
                legal = env.legal_actions()
                _, _, over, _, info = env.step(legal[int(rng.integers(len(legal)))])
                assert info["metrics"]["illegal_moves"] == 0.0
                if over:
                    break
            if over:
                assert info["metrics"]["won"] + info["metrics"]["drawn"] + info["metrics"]["lost"] == 1.0
                assert not info["game"]["invalid_move"]


@pytest.mark.parametrize("name", sorted(EXACT - {"Minesweeper"}))
def test_lists_untried_moves_as_just_the_legal_ones(name):
    players = 2 if name in VERSUS else 1
    rng = np.random.default_rng(0)
    game = NativeGame(f"{name}-v0", players, 0, {})
    for _ in range(4):
        moves = moves_of(f"{name}-v0")(game.plain)
        some = [str(move) for move in rng.permutation(moves)[:20]]
        assert list(game.legal(some)) == some
        game.act(some[0])
        if game.over:
            break


def test_hides_the_mines_from_the_legal_moves():
    env = make("textarena/Minesweeper-v0").unwrapped
    env.reset(seed=0)
    env.step("[0 0]")
    shown = env.step("[0 0]")[0]
    assert "already been revealed" in shown
    legal = env.legal_actions()
    game = env._game.plain
    assert {f"[{r} {c}]" for r in range(8) for c in range(8) if game.grid[r][c] == -1} <= set(legal)
    assert "[0 0]" not in legal


def test_changes_nothing_by_looking_for_legal_moves():
    one, other = (make("textarena/MemoryGameVs-v0").unwrapped for _ in range(2))
    one.reset(seed=4)
    other.reset(seed=4)
    for _ in range(4):
        move = one.legal_actions()[0]
        assert one.step(move) == other.step(move)


def test_counts_an_illegal_move_and_loses_by_the_next():
    env = make("textarena/TicTacToeVs-v0", seat=0)
    env.reset(seed=0)
    observation, reward, over, _, info = env.step("[99]")
    assert "invalid move" in observation
    assert (reward, over, info) == (0.0, False, {"metrics": {"illegal_moves": 1.0}})
    _, reward, over, _, info = env.step("[99]")
    assert (reward, over) == (-1.0, True)
    assert info["metrics"] == {"illegal_moves": 1.0, "won": 0.0, "drawn": 0.0, "lost": 1.0}
    with pytest.raises(EpisodeProtocolError):
        env.step("[1]")


def test_tells_of_opponent_that_lost_before_the_first_action():
    env = make("textarena/TicTacToeVs-v0", seat=1, opponent=["hello"])
    env.reset(seed=0)
    _, reward, over, _, info = env.step("[0]")
    assert (reward, over) == (1.0, True)
    assert info["metrics"] == {"illegal_moves": 0.0, "won": 1.0, "drawn": 0.0, "lost": 0.0}


def test_takes_list_of_lines_as_opponent():
    env = make("textarena/TicTacToeVs-v0", seat=0, opponent=["[0]", "[1]", "[2]"])
    env.reset(seed=0)
    env.step("[3]")
    env.step("[4]")
    assert env.step("[8]")[1] == -1.0


def test_reaches_variants_and_settings_of_a_game():
    assert "pile 4" in make("textarena/NimVs-v0", variant="large").reset(seed=0)[0]
    assert "pile 0: 9" in make("textarena/NimVs-v0", piles=[9, 1]).reset(seed=0)[0]


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("Wordle-v0", "nltk.downloader"),
        ("Hangman-v0", "nltk.downloader"),
        ("TwentyQuestions-v0", "OPENROUTER_API_KEY"),
        ("Tetris-v0", "no game 'Tetris-v0'"),
        ("UsedCar-v0-balanced", "cannot be imported"),
    ],
)
def test_says_why_a_game_cannot_be_played_here(game, why, monkeypatch, tmp_path):
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(InvalidEnvironmentError, match=why):
        make("textarena/GuessTheNumber-v0", game=game).reset(seed=0)


def test_invalidates_episode_by_reward_that_is_no_number():
    env = make("textarena/GuessTheNumber-v0", game="Countdown-v0")
    env.reset(seed=0)
    env.step("?")
    with pytest.raises(InvalidRewardError):
        env.step("?")


def test_names_outcome_of_a_game_that_fails():
    env = make("textarena/NimVs-v0", seat=0)
    env.reset(seed=0)
    del env.unwrapped._game.plain.state.game_state["piles"]
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("[0 1]")


def test_takes_megabyte_as_an_action_like_any_other():
    env = make("textarena/ConnectFourVs-v0")
    env.reset(seed=0)
    assert env.step("[9" + "9" * 1_000_000 + "]")[4]["metrics"]["illegal_moves"] == 1.0


@pytest.mark.parametrize(
    ("field", "settings"),
    [("opponent", {"opponent": "clever"}), ("opponent", {"opponent": []}), ("seat", {"seat": 2})],
)
def test_rejects_wrong_setting_with_its_name(field, settings):
    with pytest.raises(InvalidRequestError) as caught:
        make("textarena/TicTacToeVs-v0", **settings)
    assert caught.value.field == field


def test_requires_known_moves_of_an_opponent():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "opponent"):
        make("textarena/TicTacToeVs-v0", game="Stratego-v0")


def test_registers_only_games_of_textarena():
    from textarena.envs.registration import ENV_REGISTRY

    assert {f"{name}-v0" for name in (*SINGLE, *VERSUS)} <= set(ENV_REGISTRY)


def test_names_every_game_by_entry_points_without_loading_textarena():
    (pack,) = [pack for pack in tg.registration.find_packs() if pack.distribution == "tinkergym-textarena"]
    environments = {f"textarena/{name}-v0" for name in SINGLE} | {f"textarena/{name}Vs-v0" for name in VERSUS}
    assert set(pack.environment_ids) == environments
    assert set(pack.game_ids) == {f"textarena/{name}-v0" for name in VERSUS}
    code = "import sys, tinkergym; print('textarena' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert out.stdout.strip() == "False"


class TestTicTacToe(EnvContract):
    environment_id = "textarena/TicTacToeVs-v0"


class TestKuhnPoker(EnvContract):
    environment_id = "textarena/KuhnPokerVs-v0"


class TestBandit(EnvContract):
    environment_id = "textarena/Bandit-v0"
