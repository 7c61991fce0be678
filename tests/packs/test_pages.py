"""The pages of the packs show what really happens."""

import re
from pathlib import Path

import pytest

from tinkergym.registration.environments import make, registered

PAGES = sorted((Path(__file__).parents[2] / "envs").glob("*/README.md"))
EPISODE = re.compile(
    r"^`(?P<id>[^`]+)`, (seed (?P<seed>\d+)|`split=\"test\"`, task (?P<task>\d+)):\n\n```\n(?P<text>.*?)```",
    re.MULTILINE | re.DOTALL,
)


WITH_AN_EPISODE = [page for page in PAGES if EPISODE.search(page.read_text(encoding="utf-8"))]


def transcript(env, actions, **start):
    """Play the actions and write the episode as the pages do."""
    observation, _ = env.reset(**start)
    lines, ended, total = [observation], False, 0.0
    for action in actions:
        assert not ended
        observation, reward, ended, _, _ = env.step(action)
        lines += [f"> {action}", *([observation] if observation else [])]
        total += reward
    assert ended
    return "\n".join([*lines, f"(reward {total:g})"]) + "\n"


@pytest.mark.parametrize("page", WITH_AN_EPISODE, ids=lambda page: page.parent.name)
def test_plays_the_episode_on_a_page(page):
    shown = EPISODE.search(page.read_text(encoding="utf-8"))
    actions = [line.removeprefix("> ") for line in shown["text"].splitlines() if line.startswith("> ")]
    if shown["seed"]:
        played = transcript(make(shown["id"]), actions, seed=int(shown["seed"]))
    else:
        env = make(shown["id"], split="test")
        played = transcript(env, actions, options={"task_index": int(shown["task"])})
    assert shown["text"] == played


def test_lists_every_environment_on_the_overview():
    overview = (PAGES[0].parents[2] / "docs" / "reference" / "environments" / "index.md").read_text(
        encoding="utf-8"
    )
    ours = [name for name in registered() if name.split("/")[0] in {page.parent.name for page in PAGES}]
    assert ours
    assert all(f"`{name}`" in overview for name in ours)
