import pytest

from tinkergym.datasets.image_columns import with_images


def message(*parts):
    return {"role": "user", "content": list(parts)}


def test_replaces_paths_by_what_is_in_the_files(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(b"pixels")
    text = {"type": "text", "text": "look"}
    row = {"prompt": [message(text, {"type": "image", "path": "images/1.png"})], "completion": "a cat"}
    assert with_images(row, tmp_path) == {
        "prompt": [message(text, {"type": "image", "image": b"pixels"})],
        "completion": "a cat",
    }


@pytest.mark.parametrize(
    "row",
    [
        "text",
        {"messages": "text"},
        {"messages": [{"role": "user", "content": "text"}, "no message"]},
        {"messages": [message({"type": "image", "sha256": "ab" * 32})]},
        {"messages": [message({"type": "image", "path": "x.png", "image": b""})]},
    ],
)
def test_leaves_everything_else_as_it_is(row, tmp_path):
    assert with_images(row, tmp_path) == row


def test_names_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.png"):
        with_images({"messages": [message({"type": "image", "path": "nowhere.png"})]}, tmp_path)
