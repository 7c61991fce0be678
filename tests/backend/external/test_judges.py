from backend.external import judges
from tinkergym.schema.jobs.parts import EnvironmentRef


def test_compares_reference_without_its_judges_key():
    judge = {"url": "https://judge.example/v1", "model": "small"}
    open_ref, stored = (
        EnvironmentRef(id="math/Sums-v0", kwargs={"level": 2, "judge": {**judge, "api_key": key}})
        for key in ("sk-secret", "stored:abc")
    )
    assert judges.without_key(open_ref) == judges.without_key(stored)
    assert judges.without_key(open_ref).kwargs == {"level": 2, "judge": judge}
    without = EnvironmentRef(id="math/Sums-v0", kwargs={"level": 2})
    assert judges.without_key(without) == without
