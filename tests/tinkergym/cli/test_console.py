from tinkergym.cli.console import complain
from tinkergym.errors import InvalidRequestError


def test_prints_error_as_sentence_with_field_and_then_the_hint(capsys):
    complain(InvalidRequestError("must be above 0", hint="take 1", field="steps"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["error: steps: must be above 0", "  take 1"]


def test_shows_what_somebody_wrote_without_markup_and_emoji(capsys):
    complain(InvalidRequestError("[red]:car:[/red] is unknown"))
    assert "[red]:car:[/red] is unknown" in capsys.readouterr().err
