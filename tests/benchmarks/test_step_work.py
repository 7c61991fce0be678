from backend.catalog.models import load_renderer_bundle
from backend.engines.protocol import BASE_POLICY
from backend.engines.transformers.transformers_engine import TransformersEngine
from benchmarks.step_work import ANSWER_TOKENS, END_OF_TURN, PROMPT_TOKENS, fixed_prompts, model_directory
from tinkergym.agent.renderer import Renderer
from tinkergym.schema.sampling import Completion, SampleRequest


def test_gives_random_model_prompts_of_equal_length():
    with model_directory() as model:
        renderer = Renderer.from_bundle(load_renderer_bundle("bench", model))
        prompts = [renderer.start([{"role": "user", "content": text}]) for text in fixed_prompts(8)]
        engine = TransformersEngine(model)
        answers = engine.generate_together(
            [
                SampleRequest(
                    request_id=str(number),
                    policy=BASE_POLICY,
                    policy_version=0,
                    prompt_ids=prompts[number % 8],
                    max_tokens=ANSWER_TOKENS,
                    seed=number,
                    temperature=2.0,
                    stop_ids=renderer.stop_ids,
                )
                for number in range(64)
            ]
        )
        engine.close()
    assert renderer.stop_ids == [END_OF_TURN]
    assert {len(prompt) for prompt in prompts} == {PROMPT_TOKENS}
    assert len({tuple(prompt) for prompt in prompts}) == 8
    assert all(isinstance(answer, Completion) for answer in answers)
    assert {len(answer.token_ids) for answer in answers if isinstance(answer, Completion)} == {ANSWER_TOKENS}
