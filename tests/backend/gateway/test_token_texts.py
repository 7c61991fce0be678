import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from backend.gateway.token_texts import TokenReader, pieces
from backend.settings.served_models import PACKAGED_MODELS

NANO = Path(PACKAGED_MODELS["nano"], "tokenizer.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["a1 b2", "Grüße, 東京 🚀!", "  two  spaces\n\tand more", ""])
def test_splits_text_into_one_piece_per_token(text):
    tokenizer = Tokenizer.from_str(NANO)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = pieces(tokenizer, ids)
    assert len(found) == len(ids)
    assert "".join(found) == tokenizer.decode(ids, skip_special_tokens=False)


def test_shows_what_there_is_of_broken_characters():
    tokenizer = Tokenizer.from_str(NANO)
    rocket = tokenizer.encode("🚀", add_special_tokens=False).ids
    found = pieces(tokenizer, [*rocket[:2], *rocket[:1]])
    assert len(found) == 3
    assert set("".join(found)) == {"\ufffd"}


def test_says_why_a_tokenizer_cannot_be_read():
    reader = TokenReader(lambda model: json.dumps({"no": model}))
    found = reader.texts("lost", [[1]])
    assert found.segments is None
    assert "lost" in found.why_not
    assert TokenReader(lambda model: NANO).texts("nano", [[]]).segments == [[]]
