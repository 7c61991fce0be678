"""The end of an answer is masked where it is also the padding token, so that models never stop.

https://github.com/unslothai/unsloth/issues/416, https://github.com/huggingface/trl/issues/6357,
https://github.com/mlabonne/llm-course/issues/33
"""

import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.marked_tokens import conversation_tokens
from tinkergym.messages import assistant, user
from tinkergym.schema.chat_templates import PLAIN
from tinkergym.testing import FAMILIES, family_bundle

TALK = [user("Hi"), assistant("Hello."), user("Bye"), assistant("Bye.")]


@pytest.mark.parametrize("template", ["own", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_trains_the_end_of_every_answer(family, template):
    bundle = family_bundle(family)
    end = bundle.special_tokens["eos_token"]
    # As many models are saved: padding is the token that ends answers.
    changes = {"special_tokens": {**bundle.special_tokens, "pad_token": end}}
    changes |= {"chat_template": PLAIN} if template == "plain" else {}
    renderer = Renderer.from_bundle(bundle.model_copy(update=changes))
    sequence = conversation_tokens(renderer, TALK)
    assert len(sequence.trained) == 2
    for (_, stop), text in zip(sequence.trained, ["Hello.", "Bye."], strict=True):
        assert sequence.token_ids[stop - 1] in renderer.stop_ids
        assert renderer.decode(sequence.token_ids[:stop]).endswith(text + end)
