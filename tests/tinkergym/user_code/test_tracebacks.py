import sys
import traceback

import pytest

from tinkergym.user_code.tracebacks import with_relative_paths


def test_names_files_by_their_place_in_their_package(tmp_path, monkeypatch):
    package = tmp_path / "site" / "word_game"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "env.py").write_text("def step():\n    raise ValueError('/etc/answer is not a word')\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    try:
        __import__("word_game.env").env.step()
    except ValueError:
        told = with_relative_paths(traceback.format_exc())
    finally:
        for name in [name for name in sys.modules if name.startswith("word_game")]:
            del sys.modules[name]
    assert '  File "word_game/env.py", line 2, in step\n' in told
    assert str(tmp_path) not in told
    assert "ValueError: /etc/answer is not a word" in told


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a/site/pack/env.py", "pack/env.py"),
        ("/a/site/deeper/pack/env.py", "pack/env.py"),
        ("/elsewhere/env.py", "env.py"),
        ("<string>", "<string>"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
@pytest.mark.parametrize("before", ["  ", "  | ", "    | "])
def test_counts_innermost_folder_of_imports(path, shown, before):
    text = f'{before}File "{path}", line 3, in step'
    folders = ["/a/site", "/a/site/deeper", "/a"]
    assert with_relative_paths(text, folders) == f'{before}File "{shown}", line 3, in step'


def test_names_package_installed_for_development_from_its_top(tmp_path):
    inner = tmp_path / "src" / "pack" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    assert with_relative_paths(f'  File "{inner}/env.py", line 1', []) == '  File "pack/inner/env.py", line 1'
