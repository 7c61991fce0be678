import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.decoding import AS_THE_MODEL, Decoding


def test_takes_given_options_and_keeps_the_others():
    decoding = Decoding(temperature=0.5, seed=3).with_options(top_k=2, temperature=None, stop="END")
    assert decoding == Decoding(temperature=0.5, seed=3, top_k=2, stop=("END",))
    assert AS_THE_MODEL.with_options() == AS_THE_MODEL


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", 1e-9), ("top_p", 0), ("top_k", -1), ("seed", 2**63), ("heat", 1)],
)
def test_names_the_option_that_it_rejects(field, value):
    with pytest.raises(InvalidRequestError) as rejected:
        Decoding().with_options(**{field: value})
    assert rejected.value.field == field


@pytest.mark.parametrize(("options", "cut"), [({}, False), ({"top_p": 0.9}, True), ({"top_k": 5}, True)])
def test_knows_whether_tokens_are_excluded(options, cut):
    assert Decoding(**options).is_cut is cut
