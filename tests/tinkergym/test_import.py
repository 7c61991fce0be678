import re
import subprocess
import sys

import pytest

import tinkergym
import tinkergym as tg


def loaded_after(statement):
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import tinkergym",
        "import tinkergym as tg; tg.TextEnv, tg.GRPO(), tg.spaces.Text(), tg.evaluate",
    ],
)
def test_imports_the_sdk_without_anything_heavy(statement):
    heavy = {"torch", "transformers", "httpx", "pettingzoo", "ray", "fastapi", "sqlalchemy", "backend"}
    assert not heavy & loaded_after(statement)


def test_has_every_public_name():
    for name in tinkergym.__all__:
        assert getattr(tinkergym, name) is not None
        assert name in dir(tinkergym)


def test_finds_package_beside_a_folder_called_tinkergym(tmp_path):
    (tmp_path / "tinkergym").mkdir()  # as a clone of the repository is
    script = tmp_path / "train.py"
    script.write_text("import tinkergym as tg; print(tg.GRPO().group_size)")
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "8"


def test_calls_unrelated_name_only_missing():
    assert not hasattr(tg, "GRPOO")
    with pytest.raises(AttributeError) as refused:
        tg.zebra  # noqa: B018 - it is the access that fails
    assert refused.value.name == "zebra"


@pytest.mark.parametrize(
    ("name", "meant"), [("Grpo", "GRPO"), ("LORA", "LoRA"), ("train", "Client().train"), ("Cient", "Client")]
)
def test_suggests_which_name_was_meant_by_misspelt_one(name, meant):
    with pytest.raises(AttributeError, match=re.escape(meant)):
        getattr(tg, name)


def test_has_few_names_at_the_top():
    assert len(tg.__all__) <= 30
