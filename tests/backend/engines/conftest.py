"""Engines under one contract: each with a way to say what its answers must be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights, FullWeights, PolicyWeights
from backend.engines.protocol import SamplingEngine
from backend.engines.scripted.scripted_engine import Script, ScriptedEngine
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.settings.served_models import PACKAGED_MODELS, VllmSettings
from tests.backend.engines.fleet import Fleet
from tests.backend.tiny_models import make_model, write_json  # noqa: F401
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

NANO = Path(PACKAGED_MODELS["nano"])
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Subject(Protocol):
    """An engine, and what its answers must be."""

    engine: SamplingEngine
    tolerance: float
    structures: bool
    """Whether it gives structured output."""
    cuts: bool
    """Whether it knows which tokens are likeliest, for `top_p` and `top_k`."""
    tokenizer: Tokenizer

    def weights(self, seed: int) -> PolicyWeights:
        """Some policy."""
        ...

    def full_weights(self, seed: int) -> PolicyWeights:
        """Some policy without an adapter."""
        ...

    def canary(self, policy: str, version: int, prompt: Sequence[int]) -> int:
        """Publish a policy that answers this prompt with one token, and return the token."""
        ...

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """As the engine does; from now on the answers are known."""
        ...

    def expected(self, request: SampleRequest, answer: Completion) -> list[float]:
        """What the answer's logprobs must be."""
        ...

    def expected_of_prompt(self, request: SampleRequest, answer: Completion) -> list[float]:
        """What the logprobs of the prompt's tokens must be, from the second on."""
        ...


class ScriptedSubject:
    """Every token of a policy tells which version of which policy it is from."""

    tolerance = 0.0
    structures = cuts = False

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], int] = {("", 0): 11}
        self.engine: SamplingEngine = self.engine_of(self._script)
        self.tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))

    @staticmethod
    def engine_of(script: Script) -> ScriptedEngine:
        return ScriptedEngine(script, context_length=1024, logprob=-0.5, model_directory=NANO)

    def _script(self, request: SampleRequest) -> list[int]:
        return [self._tokens[request.policy, request.policy_version or 0]] * request.max_tokens

    def weights(self, seed: int) -> PolicyWeights:
        return AdapterWeights(rank=1, alpha=1.0, tensors={"x": torch.full((1,), float(seed))})

    full_weights = weights

    def canary(self, policy: str, version: int, prompt: Sequence[int]) -> int:
        self._tokens[policy, version] = 321
        self.engine.publish(policy, version, self.weights(321))
        return 321

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        self._tokens[policy, version] = 100 + len(self._tokens)
        return self.engine.publish(policy, version, weights, let_finish=let_finish)

    def expected(self, request: SampleRequest, answer: Completion) -> list[float]:
        assert set(answer.token_ids) == {self._tokens[request.policy, answer.policy_version]}
        return [-0.5] * len(answer.token_ids)

    def expected_of_prompt(self, request: SampleRequest, answer: Completion) -> list[float]:
        return [-0.5] * (len(request.prompt_ids) - 1)


def some_adapter(model: Any, seed: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, module in model.named_modules():
        if path.endswith(_LINEARS):
            high, wide = module.weight.shape
            key = f"base_model.model.{path}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(4, wide, generator=generator) * 0.1
            tensors[f"{key}B.weight"] = torch.randn(high, 4, generator=generator) * 0.1
    return AdapterWeights(rank=4, alpha=8.0, tensors=tensors)


class SpreadSubject(ScriptedSubject):
    """The same with an engine host, which answers every second request."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.fleet = Fleet(self.engine, folder)
        self.fleet.add(ScriptedSubject.engine_of(self._script))
        self.engine = self.fleet.engine


@functools.cache
def _plain(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory).eval()


class ModelSubject:
    """An engine over the nano model, compared with plain transformers."""

    tolerance = 2e-4
    """Nats; float32 rounds by a tenth of it, and another policy is off by a hundred times as much."""
    cuts = True

    def __init__(self, engine: SamplingEngine, directory: Path = NANO, *, structures: bool = False) -> None:
        self.structures = structures
        self.engine = engine
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._base = _plain(directory)
        self._models: dict[tuple[str, int], Any] = {("", 0): self._base}

    def weights(self, seed: int) -> AdapterWeights:
        return some_adapter(self._base, seed)

    def full_weights(self, seed: int) -> FullWeights:
        generator = torch.Generator().manual_seed(seed)
        state = self._base.state_dict()
        return FullWeights(
            tensors={n: t + torch.randn(t.shape, generator=generator) * 0.02 for n, t in state.items()}
        )

    @torch.no_grad()
    def canary(self, policy: str, version: int, prompt: Sequence[int]) -> int:
        layers = self._base.model.layers
        seen = []
        handle = layers[-1].mlp.down_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        self._base(torch.tensor([list(prompt)]))
        handle.remove()
        inputs = seen[0][0, -1]
        # Far out in a token's own direction only that token is left; some have a better one than others.
        readout = self._base.lm_head.weight * self._base.model.norm.weight
        directions = torch.nn.functional.normalize(torch.linalg.pinv(readout), dim=0)
        token = int(torch.softmax(readout.shape[1] ** 0.5 * readout @ directions, dim=0).diagonal().argmax())
        path = f"base_model.model.model.layers.{len(layers) - 1}.mlp.down_proj.lora_"
        weights = AdapterWeights(
            rank=1,
            alpha=1.0,
            tensors={
                f"{path}A.weight": (inputs / inputs.square().sum())[None],
                f"{path}B.weight": (1e4 * directions[:, token])[:, None].contiguous(),
            },
        )
        self.publish(policy, version, weights)
        return token

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        model = copy.deepcopy(self._base)
        if isinstance(weights, FullWeights):
            model.load_state_dict(weights.tensors)
        else:
            modules = dict(model.named_modules())
            for name, down in weights.tensors.items():
                if name.endswith("lora_A.weight"):
                    path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                    up = weights.tensors[name.replace("lora_A", "lora_B")]
                    weight = modules[path].weight
                    delta = weights.scaling * up.double() @ down.double()
                    weight.data = (weight.double() + delta).float()
        self._models[policy, version] = model
        return self.engine.publish(policy, version, weights, let_finish=let_finish)

    def expected(self, request: SampleRequest, answer: Completion) -> list[float]:
        rows = self.distributions(request, answer)
        return [float(row[token]) for row, token in zip(rows, answer.token_ids, strict=True)]

    def distributions(self, request: SampleRequest, answer: Completion) -> list[torch.Tensor]:
        """[V] logprobs per sampled token, of what it must have been drawn from."""
        logprobs = self._logprobs(request, answer, request.temperature or 1.0)
        start = len(request.prompt_ids) - 1
        return [among_the_likeliest(row, request) for row in logprobs[start : start + len(answer.token_ids)]]

    def expected_of_prompt(self, request: SampleRequest, answer: Completion) -> list[float]:
        rows = self._logprobs(request, answer, 1.0)
        return [float(row[token]) for row, token in zip(rows, request.prompt_ids[1:], strict=False)]

    @torch.no_grad()
    def _logprobs(self, request: SampleRequest, answer: Completion, temperature: float) -> torch.Tensor:
        model = self._models[request.policy, answer.policy_version]
        logits = model(torch.tensor([request.prompt_ids + answer.token_ids])).logits[0]
        return torch.log_softmax(logits.float() / temperature, dim=-1)


def among_the_likeliest(logprobs: torch.Tensor, request: SampleRequest) -> torch.Tensor:
    """[V] logprobs of what the request's `top_k` and then its `top_p` leave; -inf where nothing is left."""
    if request.temperature == 0.0 or not request.is_cut:
        return logprobs
    values, order = logprobs.double().sort(descending=True, stable=True)
    if request.top_k:
        values, order = values[: request.top_k], order[: request.top_k]
    probabilities = values.softmax(-1)
    left = order[probabilities.cumsum(-1) - probabilities < request.top_p]
    among = torch.full_like(logprobs, -torch.inf)
    among[left] = torch.log_softmax(logprobs[left], -1)
    return among


@pytest.fixture
def start() -> Iterator[Callable[..., TransformersEngine]]:
    """Start engines called transformers, which end with the test."""
    engines = []

    def make(directory: Path, **options: Any) -> TransformersEngine:
        engines.append(TransformersEngine(directory, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def directory(make_model: Callable[[str], Path]) -> Path:  # noqa: F811
    """The folder of a tiny model."""
    return make_model("qwen3")


@pytest.fixture
def adapter() -> AdapterWeights:
    """Some adapter of the nano model."""
    model = AutoModelForCausalLM.from_pretrained(NANO)
    return some_adapter(model, seed=1)


@pytest.fixture(scope="session")
def vllm_subject() -> Iterator[ModelSubject]:
    """One vLLM for all tests that want it; starting it is what takes long."""
    pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")
    from backend.engines.vllm.vllm_engine import VllmEngine

    engine = VllmEngine(NANO, settings=VllmSettings(adapters_at_once=2, sleep="offload"))
    yield ModelSubject(engine, structures=True)
    engine.close()


@pytest.fixture(scope="session")
def vllm_ranks() -> Iterator[ModelSubject]:
    """One vLLM whose model two ranks divide between them; its process count is the subject."""
    pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")
    from backend.engines.vllm.vllm_engine import VllmEngine

    settings = VllmSettings(adapters_at_once=2)
    engine = VllmEngine(NANO, devices=("cpu", "cpu"), settings=settings)
    yield ModelSubject(engine, structures=True)
    engine.close()


@pytest.fixture(
    params=[
        "scripted",
        "spread",
        "transformers",
        pytest.param("vllm", marks=pytest.mark.service),
    ]
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Each engine in turn, without policies."""
    made: Subject
    if request.param == "vllm":
        made = request.getfixturevalue("vllm_subject")
        yield made
        for policy in made.engine.loaded():
            made.engine.retire(policy)
        return
    if request.param == "spread":
        spread = SpreadSubject(tmp_path_factory.mktemp("fleet"))
        yield spread
        spread.fleet.close()
        return
    made = ScriptedSubject() if request.param == "scripted" else ModelSubject(TransformersEngine(NANO))
    yield made
    made.engine.close()


@pytest.fixture
def check(subject: Subject) -> Callable[..., None]:
    """Compare completions with what they must be."""

    def compare(requests: Sequence[SampleRequest], found: dict[str, Completion | SampleFailure]) -> None:
        for request in requests:
            answer = found[request.request_id]
            assert isinstance(answer, Completion), answer
            assert answer.sampling_logprobs == pytest.approx(
                subject.expected(request, answer), abs=subject.tolerance
            )

    return compare
