"""Stored answers of a job, ranked by a rubric, become preference pairs.

`tinkergym serve`, then `python examples/preference/train.py`.
"""

import re

import tinkergym as tg
from examples.shared.recipe import Recipe
from tinkergym.rubrics.final_answer import final_answer, number_of

ENV = "math/WordProblems-v0"
recipe = Recipe.from_command_line(__file__)
rubric = tg.Rubric()


@rubric.gate
def is_number(answer):
    return number_of(final_answer(answer) or "") is not None


@rubric.term
def near(answer, observation):
    """1 for the right number, less the farther off."""
    left, operator, right = re.fullmatch(r"(\d+)([+-])(\d+)=", observation).groups()
    gold = int(left) + int(right) * (1 if operator == "+" else -1)
    return 1 / (1 + abs(float(number_of(final_answer(answer))) - gold))


with tg.Client() as client:
    # Barely trained: it plays the episodes that the rubric ranks.
    played = client.train(ENV, **recipe.settings("play"))
    recipe.watch(played)
    pairs = played.rescore(rubric).episodes.to_preference(min_margin=0.05)
    settings = recipe.settings("preference")
    if recipe.own_control():
        rows = [pairs.read(number) for number in range(len(pairs))]
        flipped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows[::2]]
        pairs = tg.tasks.SequenceTasks(flipped + rows[1::2])
    job = client.preference(pairs, **settings)
    recipe.watch(job)
    recipe.report(job, metric="eval/accuracy", pairs=len(pairs), trained=job.id)
