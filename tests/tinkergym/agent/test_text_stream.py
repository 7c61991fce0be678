import random
from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tinkergym.agent.text_stream import TextStream

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = "ab é漢🙂\n"


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def tokenizer(request):
    """Return a tokenizer with a token for each byte, and in one case pieces that are text."""
    if request.param == "byte level":
        tokenizer = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(ALPHABET)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    pieces = [chr(at) if at < 128 else f"<0x{at:02X}>" for at in range(256)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=[]))
    tokenizer.decoder = decoders.ByteFallback()
    return tokenizer


class Counted:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.decoded = tokenizer, 0

    def decode(self, ids, **more):
        self.decoded += len(ids)
        return self.tokenizer.decode(ids, **more)


def ids_of(tokenizer, data):
    if tokenizer.token_to_id("<0x80>") is not None:
        return list(data)
    return [tokenizer.token_to_id(one) for one in map(letter_of, data)]


@cache
def letter_of(byte):
    """Return how byte-level tokenizers write a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in printable else 256 + [b for b in range(256) if b not in printable].index(byte))


def streamed(tokenizer, ids, size):
    stream = TextStream(tokenizer)
    return "".join([stream.add(ids[at : at + size]) for at in range(0, len(ids), size)])


@pytest.mark.parametrize("size", [1, 3, 20])
def test_returns_the_text_of_all_tokens_in_parts(tokenizer, size):
    drawn = random.Random(size)
    for _ in range(200):
        text = "".join(drawn.choices(LETTERS, k=30)) + "."
        assert streamed(tokenizer, ids_of(tokenizer, text.encode()), size) == text


def test_returns_bytes_of_no_character_as_the_whole_text_does(tokenizer):
    drawn = random.Random(1)
    for size in (1, 3, 20) * 100:
        ids = ids_of(tokenizer, drawn.randbytes(60) + b" end of it")
        if tokenizer.token_to_id("<0x80>") is None:
            assert streamed(tokenizer, ids, size) == tokenizer.decode(ids)
        else:  # Whether bytes are characters is decided by what follows; the end is there all the same.
            assert streamed(tokenizer, ids, size).endswith("end of it")


def test_takes_no_longer_for_tokens_behind_many_without_a_character(tokenizer):
    counted = Counted(tokenizer)
    streamed(counted, ids_of(tokenizer, b"\x80" * 2000), 1)
    assert counted.decoded < 40 * 2000
