from tokenizers import Tokenizer, decoders, models

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.token_text import token_bytes
from tinkergym.testing.bundles import byte_bundle


def test_returns_the_bytes_of_parts_of_characters():
    renderer = Renderer.from_bundle(byte_bundle())
    ids = renderer.encode_answer("é 🙂")[:-1]
    assert b"".join(map(renderer.bytes_of, ids)) == "é 🙂".encode()
    assert renderer.bytes_of(renderer.stop_ids[0]) == b"<|im_end|>"


def test_reads_bytes_that_tokenizers_write_as_numbers():
    tokenizer = Tokenizer(models.BPE(vocab={"<0xE2>": 0, "a": 1}, merges=[]))
    tokenizer.decoder = decoders.ByteFallback()
    assert [token_bytes(tokenizer, token) for token in (0, 1)] == [b"\xe2", b"a"]
