"""An installed pack and the jobs that use it."""

from pathlib import Path
from types import SimpleNamespace

from backend.admission.facts import Facts
from backend.admission.offered_models import FileCatalog
from backend.catalog.models import load_renderer_bundle
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import UnknownModelError
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.refusals import Refusal
from tinkergym.testing import byte_bundle

PACK = """
import os, subprocess, sys, time
import gymnasium as gym
import numpy as np
import tinkergym as tg

class Odd(gym.Env):
    action_space = observation_space = gym.spaces.Text(100)
    metadata = {"system_prompt": "s" * 10, "render_modes": []}

    def __init__(self, how="well", length=5):
        self.how, self.length = how, length
        if how == "quiz":
            self.tasks = tg.tasks.SequenceTasks([{"question": "?" * length}])
        if how == "raises_when_made":
            raise RuntimeError("no licence found")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.how == "raises":
            raise ValueError("the reason of the user")
        if self.how == "lacks":
            raise tg.errors.InvalidRequestError("row 3 has no column 'answer'", hint="rename it")
        if self.how == "hangs":
            time.sleep(600)
        if self.how == "leaves":
            child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            open(os.environ["ODD_PIDS"], "w").write(f"{os.getpid()} {child.pid}")
        if self.how == "dies":
            print("last words", flush=True)
            os._exit(7)
        if self.how == "image":
            return {"text": "look", "screen": np.zeros((4, 4, 3), np.uint8)}, {}
        if self.how == "shown":
            return {"text": "look", "image": np.arange(192, dtype=np.uint8).reshape(8, 8, 3)}, {}
        if self.how == "many":
            shades = [np.full((8, 8, 3), shade, np.uint8) for shade in range(self.length)]
            return {"text": "look", "images": shades}, {}
        if self.how == "animated":
            import io
            from PIL import Image
            frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
            file = io.BytesIO()
            frames[0].save(file, format="PNG", save_all=True, append_images=frames[1:])
            return {"text": "look", "image": file.getvalue()}, {}
        if self.how == "variables":
            began = open("/proc/self/environ").read() if sys.platform == "linux" else ""
            raise tg.errors.InvalidRequestError(f"{sorted(os.environ)} {began}")
        if self.how == "silent":
            return [], {}
        if self.how == "numbers":
            return 3, {}
        if self.how == "no_info":
            return "text"
        if self.how == "prints":
            print("{}")
            os.write(1, b"more noise")
        return "x" * self.length, {}

    def step(self, action):
        return "", 0.0, True, False, {}

"""


class Catalog:
    def listed(self):
        return []

    def renderer(self, model, chat_template=""):
        if model == "nano-vl":
            return load_renderer_bundle(model, Path(PACKAGED_MODELS[model]))
        if model == "short":
            return byte_bundle(context_length=100)
        if model != "bytes":
            raise UnknownModelError(f"unknown model {model!r}", field="model")
        return byte_bundle(context_length=200)


def spec(name="odd/Odd-v0", *, model="bytes", rollout="server", max_turn_tokens=10, **kwargs):
    return RLSpec(
        environment=EnvironmentRef(id=name, kwargs=kwargs),
        model=model,
        rollout=rollout,
        steps=1,
        sampling=Sampling(max_turn_tokens=max_turn_tokens),
    )


def facts(config, catalog=None, tenant=None, memory=lambda: 64 * 10**9, gpus=dict):
    """What a check may ask."""
    tenant = tenant or SimpleNamespace(tenant_id="ada", is_local_owner=True)
    catalog = catalog or FileCatalog(config)
    return Facts(config=config, catalog=catalog, tenant=tenant, job_check=None, memory=memory, gpus=gpus)


def admit(check, spec, given):
    """Return the job as a check leaves it; raises what `Admission` would."""
    found = check(spec, given)
    if isinstance(found, Refusal):
        raise found.error()
    return found
