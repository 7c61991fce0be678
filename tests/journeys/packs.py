"""Packs that are installed where the service runs, and not in this process."""

AFAR = """
import os, sys
import tinkergym as tg

class Env(tg.SingleTurnEnv):
    system_prompt = "Say something."
    def __init__(self, how="well"):
        print("made")
        if how == "raises":
            raise RuntimeError("no licence")
        self.how = how
    def ask(self, options):
        return f"{self.np_random.integers(100)}?"
    def score(self, answer):
        if self.how == "dies":
            os._exit(3)
        if self.how == "variables":
            began = open(f"/proc/{os.getpid()}/environ").read() if sys.platform == "linux" else ""
            seen = {name: float(name in os.environ or name in began) for name in ("CANARY_KEY", "PACK_KEY")}
            return 0.0, {**seen, "ray": float("ray" in sys.modules or "RAY_AUTH_TOKEN" in began)}
        return len(answer) / 64
"""
JUDGED = """
import tinkergym as tg
from tinkergym.rubrics import LLMJudge, Rubric, score_members


class Judged(tg.SingleTurnEnv):
    def __init__(self, judge=None):
        self.rubric = Rubric([LLMJudge.of(judge).term(name="quality")])

    def ask(self, options):
        return "Say something."

    def score(self, answer):
        return self.rubric.score(task="Say something.", answer=answer)


class Longest(tg.SingleTurnEnv):
    def ask(self, options):
        return "Say much."

    def score(self, answer):
        return 0.25

    def score_group(self, members):
        most = max(len(member.answer) for member in members)
        return [(float(len(member.answer) == most), {"of": float(len(members))}) for member in members]
"""
_PACKS = {"afar": (AFAR, ["Env"]), "judged": (JUDGED, ["Judged", "Longest"])}


def install(folder):
    """Write them as pip would install them."""
    for name, (code, classes) in _PACKS.items():
        (folder / f"{name}_pack.py").write_text(code)
        info = folder / f"tinkergym_{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinkergym-{name}\nVersion: 0.1\n")
        ids = "".join(f"{name}/{one}-v0 = {name}_pack:{one}\n" for one in classes)
        (info / "entry_points.txt").write_text(f"[tinkergym.envs]\n{ids}")
