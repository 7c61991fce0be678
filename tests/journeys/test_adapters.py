"""An adapter that plain PEFT made is trained on here, exported, and loaded by plain PEFT again."""

import random

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

import tinkergym as tg
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.certificates import verify
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import user
from tinkergym.schema.events import StepEvent

pytestmark = pytest.mark.service

NANO = PACKAGED_MODELS["nano"]
MOST_TOKENS = 12


@pytest.fixture(scope="module")
def made_by_peft(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peft") / "adapter"
    torch.manual_seed(3)
    settings = peft.LoraConfig(
        r=6, lora_alpha=9, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(NANO), settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    return folder


def words(number):
    rng = random.Random(number)
    return "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(1, 30))) + "?"


def answers_of_peft(folder, renderer, questions):
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(NANO), folder).eval()
    answers = []
    for question in questions:
        prompt = torch.tensor([renderer.start([user(question)])])
        out = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=MOST_TOKENS,
            eos_token_id=renderer.stop_ids,
            pad_token_id=0,
        )
        answers.append(renderer.decode_answer(out[0, prompt.shape[1] :].tolist()))
    return answers


def answers_here(policy, questions):
    return [policy.act(question) for question in questions]


@pytest.mark.full("trains, exports and loads again; the parts are tested alone")
@pytest.mark.parametrize(("number", "steps"), [(4, 1), (40, 25)])
def test_goes_on_from_peft_and_back_with_equal_answers(client, tmp_path, made_by_peft, number, steps):
    greedy = {"temperature": 0.0, "max_turn_tokens": MOST_TOKENS}
    questions = [words(one) for one in range(number)]
    sent = client.import_adapter(made_by_peft, model="nano")
    renderer = sent.policy().renderer
    given = answers_of_peft(made_by_peft, renderer, questions)
    assert answers_here(sent.policy(**greedy), questions) == given
    assert client.import_adapter(made_by_peft, model="nano").id == sent.id

    job = client.train(
        "board/TicTacToeVs-v0",
        steps=steps,
        initial_policy=str(made_by_peft),
        algorithm=tg.GRPO(group_size=8, groups_per_step=min(4, steps), learning_rate=5e-3),
    )
    job.wait()
    assert (job.spec.initial_policy, job.spec.adapter.rank) == (f"{sent.id}@1", 6)
    rewards = [event.body.reward_mean for event in job.events() if isinstance(event.body, StepEvent)]
    trained = answers_here(client.policy(job.id, system_prompt="", **greedy), questions)
    job.export(tmp_path / "out")
    assert answers_of_peft(tmp_path / "out", renderer, questions) == trained
    assert f"`{job.id}`, version {steps}" in (tmp_path / "out" / "README.md").read_text()
    assert verify(tmp_path / "out" / "certificate.json").ok

    again = client.import_adapter(tmp_path / "out")
    assert answers_here(again.policy(**greedy), questions) == trained
    rows = [{"prompt": question, "completion": "yes"} for question in questions[:4]]
    written = client.sft(rows, initial_policy=again.id, steps=2, learning_rate=1e-2)
    written.wait()
    losses = [event.body.loss for event in written.events() if isinstance(event.body, StepEvent)]
    assert losses[-1] < losses[0]
    if steps > 1:
        assert sum(rewards[-5:]) > sum(rewards[:5])


@pytest.mark.full("the first to train here: it waits for a pool")
def test_trains_one_seat_of_a_game_from_its_own_adapter(client, made_by_peft):
    seats = {"x": tg.Train(initial_policy=str(made_by_peft)), "o": tg.Train()}
    job = client.train(
        "board/TicTacToe-v0",
        steps=1,
        agents=seats,
        algorithm=tg.GRPO(group_size=2, groups_per_step=1),
    )
    sent = client.import_adapter(made_by_peft, model="nano")
    own = job.spec.agents["x"]
    assert (own.initial_policy, own.adapter.rank) == (f"{sent.id}@1", 6)
    assert job.spec.agents["o"].initial_policy is None
    job.wait()


def test_refuses_adapter_of_another_model_before_it_is_a_job(client, made_by_peft):
    before = [one.job_id for one in client.jobs()]
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        client.train("board/TicTacToeVs-v0", steps=1, model="nano-vl", initial_policy=str(made_by_peft))
    assert [one.job_id for one in client.jobs()] == before
