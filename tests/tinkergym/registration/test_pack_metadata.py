"""Metadata of distributions that lie, are there twice, or have no bounds."""

import importlib
import json

import pytest

from tinkergym.registration.packs import find_packs

ENVIRONMENTS = {"twin/Env-v0": "twin:Env", "twin/Other-v0": "twin:Other"}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the metadata of a distribution into a folder that Python looks into; return its pack."""

    def metadata(folder, kind, *, name="tinkergym-twin", ids=ENVIRONMENTS, version="1.0", source=None):
        place = tmp_path / folder / kind
        place.mkdir(parents=True)
        egg = place.suffix == ".egg-info"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (place / ("PKG-INFO" if egg else "METADATA")).write_text(text)
        points = "".join(f"{one} = {target}\n" for one, target in ids.items())
        (place / "entry_points.txt").write_text(f"[tinkergym.envs]\n{points}")
        if source:
            origin = {"url": (tmp_path / source).as_uri(), "dir_info": {"editable": True}}
            (place / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(tmp_path / folder)
        importlib.invalidate_caches()

    yield metadata
    monkeypatch.undo()
    find_packs()


def found(name="twin"):
    (pack,) = [pack for pack in find_packs() if pack.name == name]
    return pack


@pytest.mark.parametrize("order", [("site", "forged"), ("forged", "site")])
def test_names_both_distributions_that_claim_an_id(write, order, tmp_path):
    forged = {**ENVIRONMENTS, "twin/Other-v0": "evil:Other", "twin/New-v0": "evil:New"}
    for folder in reversed(order):
        if folder == "site":
            write("site", "tinkergym_twin-1.0.dist-info")
        else:
            write("forged", "Tinkergym_Twin-9.dist-info", name="Tinkergym_Twin", ids=forged, version="9")
    pack = found()
    assert pack.environment_ids == ("twin/Env-v0",)
    assert {one.partition(" was ignored")[0].split("'")[3] for one in pack.refused} == {
        "twin:Other",
        "evil:Other",
        "evil:New",
    }
    for refusal in pack.refused:
        assert f"1.0 in {tmp_path}/site/tinkergym_twin-1.0.dist-info" in refusal
        assert f"9 in {tmp_path}/forged/Tinkergym_Twin-9.dist-info" in refusal


@pytest.mark.parametrize("layout", ["sources", "sources/src"])
@pytest.mark.parametrize("first", ["egg", "dist"])
def test_reads_same_setuptools_metadata_from_sources_of_installed_folder(write, layout, first):
    kept = {"twin/Env-v0": "twin:Env"}  # of a build before the last
    for kind in ("dist", "egg") if first == "egg" else ("egg", "dist"):
        if kind == "egg":
            write(layout, "tinkergym_twin.egg-info", ids=kept)
        else:
            write("site", "tinkergym_twin-1.0.dist-info", source="sources")
    pack = found()
    assert pack.environment_ids == tuple(ENVIRONMENTS)
    assert pack.refused == ()


def test_counts_path_that_is_there_twice_as_one(write, tmp_path, monkeypatch):
    write("site", "tinkergym_twin-1.0.dist-info")
    (tmp_path / "link").symlink_to(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "link")
    monkeypatch.syspath_prepend(f"{tmp_path}/site/../site")
    assert (found().environment_ids, found().refused) == (tuple(ENVIRONMENTS), ())


def test_ignores_what_pip_left_behind_when_it_was_killed(write):
    write("site", "tinkergym_twin-1.0.dist-info")
    write("site2", "~inkergym_twin-0.9.dist-info", ids={"twin/Old-v0": "twin:Old"}, version="0.9")
    assert (found().environment_ids, found().refused) == (tuple(ENVIRONMENTS), ())


def test_counts_only_first_thousand_of_a_distribution(write):
    write("site", "tinkergym_twin-1.0.dist-info", ids={f"twin/E{n}-v0": "twin:Env" for n in range(5000)})
    pack = found()
    assert len(pack.environment_ids) == 1000
    (refusal,) = pack.refused
    assert "first 1000 of its 5000" in refusal


def test_reads_no_entry_points_without_an_end(write):
    write("site", "tinkergym_twin-1.0.dist-info", ids={"twin/Env-v0": "x" * 1_000_001})
    assert found().environment_ids == ()
    assert "tinkergym-twin 1.0" in found().refused[0]


@pytest.mark.parametrize("name", ["tinkergym-\x1b[2J", "x" * 201, "tinkergym-bоard", "two words"])
def test_names_place_of_distribution_without_valid_name_or_ids(write, name, tmp_path):
    write("site", "odd-1.0.dist-info", name=name)
    (pack,) = [pack for pack in find_packs() if str(tmp_path) in "".join(pack.refused)]
    assert pack.environment_ids == ()
    assert (pack.distribution + pack.refused[0]).isprintable()
    assert len(pack.distribution) <= 200


def test_shows_version_without_control_characters(write):
    write("site", "tinkergym_twin-1.0.dist-info", version="1\x1b[2J" + "0" * 999)
    assert found().version.isprintable()


@pytest.mark.parametrize("url", [5, None, "file:///\0", "file://[", "{folder}/circle"])
def test_works_with_origin_that_says_nothing(write, tmp_path, url):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    origin = {"url": url.format(folder=tmp_path.as_uri()) if isinstance(url, str) else url, "dir_info": {}}
    for folder in ("one", "two"):
        write(folder, "tinkergym_twin-1.0.dist-info")
        (tmp_path / folder / "tinkergym_twin-1.0.dist-info" / "direct_url.json").write_text(
            json.dumps(origin)
        )
    write("three", "tinkergym_twin.egg-info")
    assert found().environment_ids == tuple(ENVIRONMENTS)
