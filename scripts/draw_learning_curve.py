"""Draw docs/images/learning_curve.svg from benchmarks/results/tictactoe.json.

`python -m benchmarks tictactoe` measures; this only draws.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "tictactoe.json"
PICTURE = ROOT / "docs" / "images" / "learning_curve.svg"

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 44, 46
WINDOW = 10
"""Steps in the moving average."""


def draw(result: dict[str, Any]) -> str:
    """Return the picture for a result file of `benchmarks/learning.py`."""
    details = result["details"]
    rewards, before, after = details["reward_curve"], details["before"], details["after"]
    low, high = -0.4, 1.0

    def point(step: float, reward: float) -> str:
        x = LEFT + step / len(rewards) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (reward - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    steps = range(1, len(rewards) + 1)
    means = [sum(part := rewards[max(0, n - WINDOW) : n]) / len(part) for n in steps]
    lines = [
        f'<text x="{LEFT}" y="24" class="title">nano (1 M parameters) learns tic-tac-toe: '
        f"{len(rewards)} GRPO steps, {details['training_seconds']:.0f} s on 2 CPU cores</text>"
    ]
    for reward in (-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        x, y = point(0, reward).split(",")
        lines.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" class="grid"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{reward:.1f}</text>')
    for step in range(0, len(rewards) + 1, 50):
        x, y = point(step, low).split(",")
        lines.append(f'<text x="{x}" y="{float(y) + 18:.1f}" text-anchor="middle">{step}</text>')
    lines.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">train step</text>'
    )
    each = " ".join(map(point, steps, rewards))
    mean = " ".join(map(point, steps, means))
    lines += [f'<polyline points="{each}" class="each"/>', f'<polyline points="{mean}" class="mean"/>']
    for judged, step in ((before, 0), (after, len(rewards))):
        (x, bottom), (_, top) = (point(step, end).split(",") for end in judged["interval_95"])
        lines.append(f'<line x1="{x}" y1="{bottom}" x2="{x}" y2="{top}" class="judged"/>')
        y = point(step, judged["mean_return"]).split(",")[1]
        lines.append(f'<circle cx="{x}" cy="{y}" r="4.5" class="dot"/>')
    lines += _note(point(0, before["mean_return"]), 38, "dark", f"before: {before['mean_return']:.2f}")
    games = f"greedy, {after['episodes']} held-out\ngames, 95 % interval"
    lines += _note(
        point(len(rewards), after["mean_return"]), -2, "dark", f"after: {after['mean_return']:.2f}"
    )
    lines += _note(point(len(rewards), after["mean_return"]), 13, "", games)
    sampled = f"mean return per step,\nsampled (last {WINDOW} steps)"
    lines += _note(point(len(rewards), means[-1]), 58, "teal", sampled)
    return _document(lines)


def _note(point: str, below: int, kind: str, text: str) -> list[str]:
    x, y = map(float, point.split(","))
    return [
        f'<text x="{x + 10:.1f}" y="{y + below + 14 * line:.1f}" class="{kind}">{words}</text>'
        for line, words in enumerate(text.split("\n"))
    ]


def _document(lines: list[str]) -> str:
    style = (
        "text{font:12px sans-serif;fill:#667}.title{font-size:14px;fill:#223;font-weight:600}"
        ".dark{fill:#223;font-weight:600}.teal{fill:#00796b}.grid{stroke:#e3e6ea}"
        ".each{fill:none;stroke:#b2dfdb}.mean{fill:none;stroke:#00796b;stroke-width:2.5}"
        ".judged{stroke:#223;stroke-width:2}.dot{fill:#223}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *lines,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
