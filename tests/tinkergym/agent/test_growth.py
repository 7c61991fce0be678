from tests.tinkergym.agent.talks import talk
from tinkergym.agent.renderer import Renderer
from tinkergym.testing import FAMILIES, family_bundle

BUNDLES = {name: family_bundle(name) for name in FAMILIES}


RENDERERS = {name: Renderer.from_bundle(bundle) for name, bundle in BUNDLES.items()}


def test_starts_segment_per_turn_when_template_moves_the_system_prompt():
    turns = [("one", "a"), ("two", "b"), ("three", "c")]
    trajectory, requests, _, _ = talk(RENDERERS["mistral"], turns, prompt="Be brief.")
    assert len(trajectory.segments) == 3
    expected = "<s>[INST] one[/INST] a</s>[INST] two[/INST] b</s>[INST] Be brief.\n\nthree[/INST]"
    assert RENDERERS["mistral"].decode(requests[-1].prompt_ids) == expected
    assert len(talk(RENDERERS["mistral"], turns)[0].segments) == 1
