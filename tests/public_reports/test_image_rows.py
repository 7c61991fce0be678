"""Images in a column of their own, with marks; their numbers differ.

https://github.com/axolotl-ai-cloud/axolotl/issues/2567,
https://github.com/hiyouga/LlamaFactory/issues/7909 and 8734, 6135
"""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.tinkergym.datasets.test_layouts import vision_renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError


def png(shade):
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(out, "PNG")
    return out.getvalue()


RED, BLUE = png(200), png(20)
TEXT = {"type": "text", "text": "How many?"}


def row(*parts, **more):
    asked = {"role": "user", "content": parts[0] if isinstance(parts[0], str) else list(parts)}
    return {"messages": [asked, {"role": "assistant", "content": "two"}], **more}


def uri(data):
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"},
    }


def ours():
    return row({"type": "image", "image": RED}, {"type": "image", "image": BLUE}, TEXT)


BOTH = [{"bytes": RED, "path": None}, {"bytes": BLUE, "path": None}]
MARK = {"type": "image", "text": None}


@pytest.mark.parametrize(
    "given",
    [
        row(MARK, MARK, {**TEXT, "index": None}, images=BOTH),
        row({**MARK, "index": 0}, {**MARK, "index": 1}, TEXT, images=[RED, BLUE]),
        row("<image><image>How many?", images=BOTH),
        row(uri(RED), uri(BLUE), TEXT),
    ],
)
def test_reads_images_of_a_column_at_their_marks(given):
    model = vision_renderer()
    found, wanted = (prepare([one], model, kind="sft") for one in (given, ours()))
    assert (found.bodies, found.images.keys()) == (wanted.bodies, wanted.images.keys())


def test_loads_images_of_a_column_by_path(tmp_path):
    for name, data in (("a.png", RED), ("b.png", BLUE)):
        (tmp_path / name).write_bytes(data)
    given = row("<image><image>How many?", images=[str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    model = vision_renderer()
    assert prepare([given], model, kind="sft").bodies == prepare([ours()], model, kind="sft").bodies


@pytest.mark.parametrize(
    "given",
    [
        row(MARK, MARK, TEXT, images=BOTH[:1]),
        row("How many?", images=BOTH[:1]),
        row("<image>How many?", images=["https://example.org/a.png"]),
        row({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}, TEXT),
    ],
)
def test_refuses_images_that_do_not_fit_their_marks(given):
    with pytest.raises(InvalidRequestError) as caught:
        prepare([given], vision_renderer(), kind="sft")
    assert caught.value.field == "data"
