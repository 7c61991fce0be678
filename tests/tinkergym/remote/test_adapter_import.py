"""Which files of an adapter's folder are sent."""

import json
import os

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.remote.adapter_import import begin_seats, import_adapter
from tinkergym.schema.adapter_upload import PART_BYTES
from tinkergym.schema.jobs.seats import Train

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}
WEIGHTS = b"\x08" + bytes(7) + b"{}      " + bytes(PART_BYTES)


class Sent:
    """The service: keeps what it is sent."""

    def __init__(self):
        self.parts, self.asked = {}, []

    def put_adapter_part(self, sha256, body):
        self.parts[sha256] = body

    def add_adapter(self, wanted):
        self.asked.append(wanted)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "mine"
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({**PLAIN, "base_model_name_or_path": "org/base"}))
    (path / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return path


def test_sends_two_files_and_the_base_model_they_name(folder):
    service = Sent()
    import_adapter(service, folder)
    (asked,) = service.asked
    assert (asked.model, asked.name, asked.base_sha256) == ("org/base", "adapter mine", "")
    assert b"".join(service.parts[part] for part in asked.parts) == WEIGHTS
    origin = {"base_model": "nano", "base_sha256": "a" * 64}
    (folder / "tinkergym.json").write_text(json.dumps(origin))
    import_adapter(service, folder)
    import_adapter(service, folder, model="other", name="x")
    assert [(one.model, one.base_sha256[:1]) for one in service.asked[1:]] == [("nano", "a"), ("other", "a")]


def test_names_setting_whose_adapter_is_not_found():
    seats = {"x": Train(), "o": Train(initial_policy="my-polcy")}
    with pytest.raises(InvalidRequestError) as refused:
        begin_seats(Sent(), seats, "nano", None)
    assert refused.value.field == "agents.o.initial_policy"


def pickled(folder):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def renamed_pickle(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"\x80\x04\x95" + bytes(100))


def linked(folder):
    (folder.parent / "secret").write_bytes(WEIGHTS)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to("../secret")


def linked_settings(folder):
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to("/proc/self/environ")


def pipe(folder):
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


def vast_settings(folder):
    (folder / "adapter_config.json").write_bytes(b" " * 2_000_000)


def settings_in_other_bytes(folder):
    (folder / "adapter_config.json").write_bytes(b"\xff\xfe")


def without_settings(folder):
    (folder / "adapter_config.json").unlink()


def without_base(folder):
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN))


def of_another_kind(folder):
    (folder / "adapter_config.json").write_text(json.dumps({**PLAIN, "use_dora": True}))


@pytest.mark.parametrize(
    "spoil",
    [
        *(pickled, renamed_pickle, linked, linked_settings, pipe),
        *(vast_settings, settings_in_other_bytes, without_settings, without_base, of_another_kind),
    ],
)
def test_sends_nothing_of_another_folder(folder, spoil):
    spoil(folder)
    service = Sent()
    with pytest.raises(InvalidRequestError) as refused:
        import_adapter(service, folder)
    assert refused.value.field == "source"
    assert (service.parts, service.asked) == ({}, [])
