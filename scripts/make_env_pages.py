"""Writes a page per environment of our packs, from what the environments say of themselves.

`python scripts/make_env_pages.py` writes docs/reference/environments/*.md and the table in its index.md, and
keeps the measured numbers that stand there; `--measure` plays the baselines anew. Where an environment has no
page yet, its baselines are played in any case.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.baselines import POLICIES, GoldPolicy, LegalPolicy, play_episode
from tinkergym.evaluation.statistics import mean_interval
from tinkergym.registration.environments import make
from tinkergym.registration.games import make_game
from tinkergym.registration.listing import ListedEnvironment, list_environments
from tinkergym.registration.pack_metadata import GAMES
from tinkergym.registration.packs import claim_of, load

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference" / "environments"
OVERVIEW = PAGES / "index.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"
EPISODES, SEED = 500, 0
SLOW_PACKS = {"textarena": 25}
"""Episodes per policy where one takes long."""
_SHOWN_TURNS = 8


def ours() -> list[ListedEnvironment]:
    """Return the environments of the packs in this repository, as far as they are installed."""
    names = {
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]
        for path in ROOT.glob("envs/*/pyproject.toml")
    }
    return [one for one in list_environments() if one.distribution in names and not one.error]


def page_path(listed: ListedEnvironment) -> Path:
    """Return where an environment's page stands."""
    return PAGES / f"{listed.id.replace('/', '-')}.md"


def page(listed: ListedEnvironment, measured: str) -> str:
    """Return an environment's page, with the measured block as it is given."""
    env = make(listed.id)
    pack = listed.distribution.removeprefix("tinkergym-")
    prompt = (env.metadata or {}).get("system_prompt")
    rows = [
        ("grid cell", listed.cell or "not declared"),
        ("observations", f"`{listed.observation_space}`"),
        ("actions", f"`{listed.action_space}`"),
        ("splits", ", ".join(f"`{split}`" for split in listed.splits) or "none"),
        *(
            [("game", f"`{listed.game}`, for `tinkergym.registration.games.make_game`")]
            if listed.game
            else []
        ),
        ("pack", f"[{listed.distribution}](../../../envs/{pack}/README.md) {listed.version}"),
        ("system prompt", "below" if prompt and "\n" in prompt else code_span(prompt) if prompt else "none"),
    ]
    parts = [
        f"# {listed.id}",
        "<!-- Made by scripts/make_env_pages.py from the environment's own words; edit those, not this. -->",
        _sentence(env, listed),
        f'```python\nimport tinkergym as tg\n\nenv = tg.make("{listed.id}")\n```',
        "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows),
        *([f"The system prompt:\n\n{code_block(prompt)}"] if prompt and "\n" in prompt else []),
        "## Arguments",
        _arguments(listed, env),
        "## An episode",
        _episode(env),
        "## Baselines",
        "Return of an episode. `random` answers with words of the observation, numbers and nonsense,\n"
        "`legal` with any legal action, `gold` with the best action that the environment knows.",
        measured,
    ]
    env.close()
    return "\n\n".join(parts) + "\n"


def code_span(text: str) -> str:
    """Return a line of any text as code that may stand in a cell of a table."""
    fence = "`" * (_longest_run_of_ticks(text) + 1)
    # A tick at either end would lengthen the fence. A bar ends a cell, also inside code.
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def code_block(text: str) -> str:
    """Return any lines as a block of code."""
    fence = "`" * max(3, _longest_run_of_ticks(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def _longest_run_of_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def measured_block(text: str) -> str:
    """Return the measured block of a page, empty if it has none."""
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    return found[0] if found else ""


def measure(listed: ListedEnvironment, episodes: int | None = None) -> str:
    """Play the baselines and return the measured block."""
    episodes = episodes or SLOW_PACKS.get(listed.pack, EPISODES)
    split = {"split": "test"} if "test" in listed.splits else {}
    lines = ["| policy | mean return | 95 % interval | episodes | seed |", "|---|---|---|---|---|"]
    for name in POLICIES:
        returns = _returns(listed.id, name, episodes, split)
        if returns is None:
            continue
        low, high = mean_interval(returns)
        # Returns that are all equal say nothing of how sure the mean is.
        interval = "all equal" if low == high else f"{low:.3f} to {high:.3f}"
        seeds = f"{SEED} to {SEED + len(returns) - 1}"
        lines.append(f"| {name} | {fmean(returns):.3f} | {interval} | {len(returns)} | {seeds} |")
    where = "on the split `test`, " if split else ""
    command = f"python scripts/make_env_pages.py --measure {listed.id}"
    return "\n".join([BEGIN, *lines, "", f"Measured {where}by `{command}`.", END])


def overview(text: str, pages: dict[str, str], listed: list[ListedEnvironment]) -> str:
    """Return the overview with the table of all environments, from their pages."""
    lines = ["| environment | grid cell | random | legal | gold |", "|---|---|---|---|---|"]
    for one in listed:
        means = dict(re.findall(r"^\| (random|legal|gold) \| (\S+) \|", pages[one.id], re.MULTILINE))
        figures = " | ".join(means.get(name, "") for name in ("random", "legal", "gold"))
        lines.append(f"| [`{one.id}`]({page_path(one).name}) | {one.cell} | {figures} |")
    table = "\n".join([TABLE_BEGIN, *lines, TABLE_END])
    return re.sub(
        f"{re.escape(TABLE_BEGIN)}.*?{re.escape(TABLE_END)}", lambda _: table, text, flags=re.DOTALL
    )


def _sentence(env: Any, listed: ListedEnvironment) -> str:
    rules = _rules(listed)
    subject = env.unwrapped if rules is None else rules
    doc = inspect.cleandoc(type(subject).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return f"{doc} Played against an opponent." if rules and listed.game != listed.id else doc


def _rules(listed: ListedEnvironment) -> Any:
    """Return the rules of a game that was written as a `TextGame`; None for any other environment."""
    return getattr(make_game(listed.game), "game", None) if listed.game else None


def _arguments(listed: ListedEnvironment, env: Any) -> str:
    subjects = [type(env.unwrapped)]
    chosen = dict(env.spec.kwargs)
    if (rules := _rules(listed)) is not None:
        subjects.insert(0, type(rules))
        chosen |= _defaults_of_game(listed.game)
        chosen |= {"on_illegal": env.metadata["on_illegal"]}
        chosen |= {"opponent": rules.opponents[0]} if listed.game != listed.id else {}
    known: dict[str, tuple[object, str]] = {}
    for function in (function for subject in subjects for function in _constructors(subject)):
        meanings = _meanings(function)
        for name, parameter in inspect.signature(function).parameters.items():
            plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if plain and parameter.default is not parameter.empty:
                known.setdefault(name, (parameter.default, meanings.get(name, "")))
    known |= {name: (value, "") for name, value in chosen.items() if name not in known}
    known.pop("render_mode", None)
    rows = [
        f"| `{name}` | {code_span(repr(chosen.get(name, default)))} | {meaning.replace('|', chr(92) + '|')} |"
        for name, (default, meaning) in known.items()
    ]
    return "\n".join(["| keyword | default | meaning |", "|---|---|---|", *rows]) if rows else "None."


def _defaults_of_game(game: str) -> dict[str, Any]:
    """Return the defaults of the function that makes a pack's game."""
    claim = claim_of(GAMES, game)
    parameters = inspect.signature(load(claim)).parameters.values() if claim else ()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _constructors(subject: type) -> Iterator[Callable[..., Any]]:
    """Yield the class's constructor, and those of its parents as long as arguments are handed on to them."""
    for parent in subject.__mro__:
        if "__init__" in vars(parent):
            function = vars(parent)["__init__"]
            yield function
            kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                return


def _meanings(function: Callable[..., Any]) -> dict[str, str]:
    doc = inspect.cleandoc(function.__doc__ or "")
    found = re.search(r"^Args:\n((?:    .*\n?|\n)+)", doc, re.MULTILINE)
    if not found:
        return {}
    items = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", found[1], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in items}


def _episode(env: Any) -> str:
    policy = GoldPolicy(env) if env.has_wrapper_attr("gold_action") else LegalPolicy(env, SEED)
    name = "gold" if isinstance(policy, GoldPolicy) else "legal"
    try:
        trajectory = play_episode(env, policy, seed=SEED)
    except InvalidRequestError:
        name = "legal"
        trajectory = play_episode(env, LegalPolicy(env, SEED), seed=SEED)
    lines: list[str] = []
    for turn in trajectory.turns[:_SHOWN_TURNS]:
        lines += [turn.observation, f"> {turn.action}"]
    if len(trajectory.turns) > _SHOWN_TURNS:
        lines.append(f"... {len(trajectory.turns) - _SHOWN_TURNS} more turns")
    if trajectory.final_observation:
        lines.append(trajectory.final_observation)
    lines.append(f"(return {trajectory.episode_return:g}, {trajectory.stop_reason.value})")
    return f"Seed {SEED}, played by `{name}`:\n\n" + code_block("\n".join(lines))


def _returns(env_id: str, policy: str, episodes: int, kwargs: dict[str, Any]) -> list[float] | None:
    env = make(env_id, **kwargs)
    try:
        player = POLICIES[policy](env)
        played = [play_episode(env, player, seed=SEED + i) for i in range(episodes)]
    except InvalidRequestError:
        return None  # it offers no such action, or not always
    finally:
        env.close()
    if failed := [trajectory for trajectory in played if trajectory.error]:
        raise SystemExit(f"{env_id} fails under the policy {policy}:\n{failed[0].error}")
    return [trajectory.episode_return for trajectory in played]


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(
        description="Write docs/reference/environments/ from the installed packs."
    )
    parser.add_argument("ids", nargs="*", help="only these environments or packs (default: all)")
    parser.add_argument("--measure", action="store_true", help="play the baselines anew")
    parser.add_argument("--episodes", type=int, help=f"per policy (default: {EPISODES})")
    arguments = parser.parse_args()
    PAGES.mkdir(exist_ok=True)
    listed = ours()
    for one in listed:
        # A whole pack by its namespace, too.
        if arguments.ids and not {one.id, one.id.split("/")[0]} & set(arguments.ids):
            continue
        path = page_path(one)
        block = measured_block(path.read_text(encoding="utf-8")) if path.exists() else ""
        if arguments.measure or not block:
            print(f"{one.id}: playing", file=sys.stderr)
            block = measure(one, arguments.episodes)
        path.write_text(page(one, block), encoding="utf-8")
        print(path.relative_to(ROOT))
    shown = [one for one in listed if page_path(one).exists()]
    pages = {one.id: page_path(one).read_text(encoding="utf-8") for one in shown}
    OVERVIEW.write_text(overview(OVERVIEW.read_text(encoding="utf-8"), pages, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
