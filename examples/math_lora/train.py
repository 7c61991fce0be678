"""Problems from a dataset in the layout of GSM8K or MATH, trained with a LoRA adapter.

`tinkergym serve`, then `python examples/math_lora/train.py`. Finally it checks that the exported adapter
gives the same answer in plain transformers and PEFT.
"""

import tempfile

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
ENV = "math/WordProblems-v0"


def answer_of_peft(folder, system_prompt, question):
    """Return the greedy answer of the exported adapter."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    chat = [*system, {"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0][prompt["input_ids"].shape[1] :]
    return tokenizer.decode(answer, skip_special_tokens=True)


with tg.Client() as client:
    job = client.train(ENV, **recipe.settings("train"))
    recipe.watch(job)
    question = "47+38="
    policy = job.policy(temperature=0, max_turn_tokens=16)
    with tempfile.TemporaryDirectory() as folder:
        job.export(f"{folder}/adapter")
        same = policy.act(question) == answer_of_peft(
            f"{folder}/adapter", policy.environment_prompt, question
        )
    recipe.report(job, same_answer_in_peft=same)
