"""Bundles come from anybody: each kind of tampering is found, also if everything is hashed again."""

from __future__ import annotations

import json

import pytest

from benchmarks.forgery import packed, resealed, unpacked
from tests.tinkergym.certificates.made_run import JOB, PUBLIC, Run
from tinkergym.certificates import verify
from tinkergym.certificates.checks import sealed
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.certificate import BundledFile, Certificate, EpisodeFate
from tinkergym.schema.events import (
    EpisodeEvent,
    EvaluationEvent,
    JobState,
    SettingChange,
    SettingsUpdate,
    StepEvent,
    UpdateEvent,
)
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.view import Cost
from tinkergym.testing.made_up_episodes import stored_record

CERTIFICATE, PAGE, EVENTS, HASHES, LEDGER = (
    "certificate.json",
    "certificate.html",
    "events.jsonl",
    "events.sha256",
    "ledger.jsonl",
)
FIRST_STEP = "episodes/step-000001.jsonl"
MANIFEST = "checkpoints/step-000002/manifest.json"
ADAPTER = "checkpoints/step-000002/adapter_model.safetensors"


@pytest.fixture
def files(tmp_path):
    return unpacked(Run().bundle(tmp_path))


def problems(files, folder, **options):
    return verify(packed(files, folder / "other.tar"), **options).problems


def sealed_again(files, changed):
    """Replace files and every hash of them in the certificate, which stays signed."""
    files = {name: body for name, body in (files | changed).items() if body is not None}
    return resealed(Certificate.model_validate_json(files[CERTIFICATE]), files)


def names(found, name):
    """Whether problems were found, and one of them is about this file."""
    return any(problem.startswith(name) for problem in found)


def test_finds_nothing_wrong_with_a_clean_bundle(tmp_path):
    found = verify(Run().bundle(tmp_path), key=PUBLIC)
    assert (found.ok, found.checked, found.signed, found.problems) == (True, "bundle", "valid", [])


@pytest.mark.parametrize("name", [EVENTS, HASHES, LEDGER, FIRST_STEP, MANIFEST, ADAPTER, PAGE, CERTIFICATE])
def test_names_a_file_with_a_changed_byte(files, tmp_path, name):
    body = bytearray(files[name])
    body[-6] ^= 1
    assert names(problems(files | {name: bytes(body)}, tmp_path), name)


@pytest.mark.parametrize("name", [EVENTS, HASHES, LEDGER, FIRST_STEP, MANIFEST, ADAPTER, PAGE])
@pytest.mark.parametrize("again", [False, True])
def test_names_a_missing_file(files, tmp_path, name, again):
    left = sealed_again(files, {name: None}) if again else files
    assert f"{name}: missing" in problems(left | {name: None}, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["evil.sh", "Events.jsonl", "episodes/step-000009.jsonl", "checkpoints/step-000009/manifest.json"],
)
@pytest.mark.parametrize("again", [False, True])
def test_names_a_file_that_belongs_to_no_bundle(files, tmp_path, name, again):
    more = sealed_again(files, {name: b""}) if again else files | {name: b""}
    assert problems(more, tmp_path) == [f"{name}: not part of the bundle"]


def test_finds_a_wrong_size(files, tmp_path):
    certificate = Certificate.model_validate_json(files[CERTIFICATE])
    wrong = BundledFile(sha256=certificate.files[EVENTS].sha256, bytes=1)
    found = resealed(certificate, files)
    document = json.loads(found[CERTIFICATE])
    document["files"][EVENTS] = wrong.model_dump()
    assert names(problems(files | {CERTIFICATE: json.dumps(document).encode()}, tmp_path), EVENTS)


@pytest.mark.parametrize("page", [b"<script>fetch('//x')</script>", b""])
def test_finds_another_page(files, tmp_path, page):
    assert names(problems(files | {PAGE: page}, tmp_path), PAGE)


def test_finds_a_forged_verdict(files, tmp_path):
    run = Run()
    steps = [one.model_copy(update={"matched_tokens": 3}) for one in run.facts.steps]
    run.facts = run.facts.model_copy(update={"steps": steps})
    honest = Certificate.model_validate_json(unpacked(run.bundle(tmp_path))[CERTIFICATE])
    forged = sealed(
        honest.model_copy(
            update={"checks": [one.model_copy(update={"verdict": "holds"}) for one in honest.checks]}
        )
    )
    alone = tmp_path / CERTIFICATE
    alone.write_text(forged.model_dump_json())
    assert any("trained_tokens_were_sampled" in problem for problem in verify(alone).problems)
    left_out = sealed(honest.model_copy(update={"checks": honest.checks[:-1]}))
    alone.write_text(left_out.model_dump_json())
    assert any(honest.checks[-1].name in problem for problem in verify(alone).problems)
    invented = honest.checks[0].model_copy(update={"name": "audited", "verdict": "holds"})
    alone.write_text(
        sealed(honest.model_copy(update={"checks": [*honest.checks, invented]})).model_dump_json()
    )
    assert any("audited" in problem for problem in verify(alone).problems)


# Files that are replaced together with their hashes in the certificate.


def test_finds_events_replaced_with_their_hashes(tmp_path):
    files = unpacked(Run().bundle(tmp_path))
    other = unpacked(Run(state=JobState.CANCELLED).bundle(tmp_path))
    changed = {name: other[name] for name in (EVENTS, HASHES)}
    found = problems(sealed_again(files, changed), tmp_path)
    # Their chain is not the one that the service signed, whatever else they contradict.
    assert any(problem.startswith(EVENTS) and "chained" in problem for problem in found)


def test_finds_hashes_of_other_events(files, tmp_path):
    swapped = b"".join(reversed(files[HASHES].splitlines(keepends=True)))
    assert names(problems(sealed_again(files, {HASHES: swapped}), tmp_path), EVENTS)
    more = files[HASHES] + b"0" * 64 + b"\n"
    assert names(problems(sealed_again(files, {HASHES: more}), tmp_path), HASHES)


@pytest.mark.parametrize("name", [LEDGER, FIRST_STEP])
def test_finds_replaced_doubled_and_added_lines(files, tmp_path, name):
    lines = files[name].splitlines(keepends=True)
    record = json.loads(lines[0])
    record["trajectories" if "trajectories" in record else "episodes"][0]["retries"] = 5
    replaced = [json.dumps(record).encode() + b"\n", *lines[1:]]
    for other in (replaced, [*lines, lines[0]], [*lines, b"{}\n"], lines[1:]):
        changed = sealed_again(files, {name: b"".join(other)})
        assert names(problems(changed, tmp_path), name) or (name == LEDGER and other[:-1] == lines)


def test_finds_another_adapter(files, tmp_path):
    changed = sealed_again(files, {ADAPTER: files[ADAPTER] + b"\0"})
    assert names(problems(changed, tmp_path), ADAPTER)


@pytest.mark.parametrize(
    "change",
    [
        {"weights_sha256": "9" * 64},
        {"step": 1},
        {"policy_version": 1},
        {"model_fingerprint": "9" * 64},
        {"adapter": {"kind": "full"}},
        {"files": {}},
        {"extra": {}},
        {"extra": {"job_id": JOB, "spec": {}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_finds_a_forged_manifest(tmp_path, change):
    run = Run()
    run.files["manifest.json"] = json.dumps({**json.loads(run.files["manifest.json"]), **change}).encode()
    run.facts = run._facts()
    assert names(verify(run.bundle(tmp_path)).problems, MANIFEST)


# Records that the service itself could not have written together.


def with_event(run, kind, **changes):
    """Change the last event of a kind, and chain the log again."""
    events = list(run.events)
    index = max(number for number, event in enumerate(events) if isinstance(event.body, kind))
    body = events[index].body.model_copy(update=changes)
    events[index] = events[index].model_copy(update={"body": body})
    return run.with_events(events)


@pytest.mark.parametrize(
    ("kind", "changes", "where"),
    [
        (StepEvent, {"step": 1}, EVENTS),
        (StepEvent, {"steps": 3}, EVENTS),
        (StepEvent, {"policy_version": 1}, EVENTS),
        (StepEvent, {"episodes": 3}, EVENTS),
        (StepEvent, {"sampled_tokens": 3}, EVENTS),
        (StepEvent, {"reward_mean": 2.5}, "episodes/step-000002.jsonl"),
        (StepEvent, {"reward_mean": None}, "episodes/step-000002.jsonl"),
        (StepEvent, {"metrics": {}}, EVENTS),
        (EpisodeEvent, {"seed": 7}, "episodes/step-000002.jsonl"),
        (EpisodeEvent, {"episode_return": 1.0}, "episodes/step-000002.jsonl"),
        (EpisodeEvent, {"stop_reason": "turn_limit"}, "episodes/step-000002.jsonl"),
        (EpisodeEvent, {"transcript": [("user", "question")]}, "episodes/step-000002.jsonl"),
        (EpisodeEvent, {"transcript": [("user", "q"), ("assistant", "42")]}, "episodes/step-000002.jsonl"),
        (UpdateEvent, {"from_step": 1}, EVENTS),
        (
            UpdateEvent,
            {"changes": [SettingChange(name="learning_rate", old=1e-3, new=1.0)]},
            EVENTS,
        ),
    ],
)
def test_finds_a_log_that_the_rest_contradicts(tmp_path, kind, changes, where):
    assert names(verify(with_event(Run(), kind, **changes).bundle(tmp_path)).problems, where)


@pytest.mark.parametrize(("used", "fits"), [(21, True), (20, False), (22, False)])
def test_counts_tokens_of_evaluations_after_the_newest_step(tmp_path, used, fits):
    run = Run()
    counts = {"episodes": 1, "failed_episodes": 0, "mean": 0.0, "sampled_tokens": 5}
    evaluated = EvaluationEvent(name="e", step=2, policy_version=2, **counts)
    last = run.events[-1]
    run.events[-1:] = [
        last.model_copy(update={"body": evaluated}),
        last.model_copy(update={"seq": last.seq + 1}),
    ]
    run.facts = run._facts()
    job = run.facts.job.model_copy(update={"used_tokens": used})
    run.facts = run.facts.model_copy(update={"job": job})
    assert (verify(run.bundle(tmp_path)).problems == []) == fits


@pytest.mark.parametrize("change", [{"seq": 2}, {"job_id": "job-2"}])
def test_finds_an_event_of_elsewhere(tmp_path, change):
    run = Run()
    events = [*run.events[:3], run.events[3].model_copy(update=change), *run.events[4:]]
    assert names(verify(run.with_events(events).bundle(tmp_path)).problems, f"{EVENTS}: event 4")


def test_finds_a_step_of_the_log_without_facts(tmp_path):
    run = Run()
    run.facts = run.facts.model_copy(update={"steps": run.facts.steps[:1]})
    assert names(verify(run.bundle(tmp_path)).problems, EVENTS)


def fates_of(run, change):
    ledger = run.ledgers[1]
    return ledger.model_copy(update={"episodes": change(list(ledger.episodes))})


@pytest.mark.parametrize(
    "change",
    [
        {"matched_tokens": 0},
        {"trained_tokens": 0},
        {"sampled_tokens": 2},
        {"captured_tokens": 0},
        {"retries": 1},
        {"issued": 2},
        {"fate": "dropped", "why": "masked"},
        {"why": "masked"},
        {"fate": "not_learned"},
        {"episode_id": f"{JOB}:2:0"},
        {"episode_id": "job-2:1:0"},
        {"sha256": "9" * 64},
    ],
)
def test_finds_a_ledger_that_the_rest_contradicts(tmp_path, change):
    run = Run()
    ledger = fates_of(run, lambda fates: [fates[0].model_copy(update=change), *fates[1:]])
    found = verify(run.with_ledger(1, ledger).bundle(tmp_path)).problems
    assert names(found, LEDGER) or names(found, FIRST_STEP)


def test_finds_sums_that_balance_over_episodes(tmp_path):
    run = Run()

    def shift(fates):
        more = fates[0].model_copy(update={"trained_tokens": 2, "matched_tokens": 2, "sampled_tokens": 2})
        less = fates[1].model_copy(
            update={"trained_tokens": 0, "matched_tokens": 0, "sampled_tokens": 0, "captured_tokens": 1}
        )
        return [more, less, *fates[2:]]

    assert names(verify(run.with_ledger(1, fates_of(run, shift)).bundle(tmp_path)).problems, LEDGER)


def test_finds_sampled_tokens_that_only_the_record_denies(tmp_path):
    run = Run()
    more = fates_of(run, lambda fates: [fates[0].model_copy(update={"sampled_tokens": 2}), *fates[1:]])
    run.with_ledger(1, more)
    steps = [
        one.model_copy(update={"sampled_tokens": one.sampled_tokens + (one.step == 1)})
        for one in run.facts.steps
    ]
    run.facts = run.facts.model_copy(update={"steps": steps})
    assert names(verify(run.bundle(tmp_path)).problems, FIRST_STEP)


def test_finds_a_doubled_episode(tmp_path):
    run = Run()
    ledger = fates_of(run, lambda fates: [fates[0], *fates[:1], *fates[2:]])
    assert names(verify(run.with_ledger(1, ledger).bundle(tmp_path)).problems, LEDGER)


@pytest.mark.parametrize(
    "change",
    [
        {"fate": "trained"},
        {"trained_tokens": 1},
        {"retries": 1},
        {"episode_id": f"{JOB}:1:7"},
        {"episode_id": "job-2:3:0"},
        {"episode_id": f"{JOB}:²:0"},
        {"episode_id": f"{JOB}:{'9' * 5000}:0"},
        {"sha256": ""},
    ],
)
def test_finds_episodes_in_progress_that_are_not(tmp_path, change):
    run = Run(state=JobState.RUNNING, in_progress=[stored_record(0, 1.0, step=3)])
    assert verify(run.bundle(tmp_path)).problems == []
    fates = [EpisodeFate.model_validate({**run.facts.not_learned[0].model_dump(), **change})]
    run.facts = run.facts.model_copy(update={"not_learned": fates})
    assert verify(run.bundle(tmp_path)).problems


@pytest.mark.parametrize(
    ("keep", "lost", "missing"), [(None, 1, True), (1, 1, False), (1, 2, True), (0, 2, False)]
)
def test_misses_episodes_that_the_service_keeps(tmp_path, keep, lost, missing):
    run = Run()
    spec = run.spec.model_copy(update={"keep_episodes": keep})
    run.spec = spec
    run.files = run._checkpoint_files()
    run.facts = run._facts()
    kept = [line for step, lines in run.episodes.items() if step != lost for line in lines]
    found = verify(run.bundle(tmp_path, stored=kept))
    name = f"episodes/step-{lost:06d}.jsonl"
    assert (f"{name}: missing" in found.problems) == missing
    assert bool(found.notes) or missing


# Facts that contradict each other.


@pytest.mark.parametrize(
    ("name", "number", "change"),
    [
        ("attempts", 0, {"attempt": 2}),
        ("publishes", 1, {"attempt": 2}),
        ("publishes", 2, {"agent": "x"}),
        ("agreements", 1, {"attempt": 2}),
        ("agreements", 1, {"allowed": 1.0}),
        ("agreements", 1, {"mean": 1e-4}),
        ("agreements", 0, {"tokens": 5}),
        ("agreements", 0, {"version": 7}),
        ("adapters", 0, {"learner_shift": None}),
        ("adapters", 0, {"engine_shift": 0.26}),
        ("adapters", 0, {"tokens": 5}),
        ("adapters", 0, {"tensors": 2}),
        ("adapters", 0, {"nonzero_tensors": 0}),
        ("adapters", 0, {"norm": 0.0}),
        ("steps", 0, {"attempt": 2}),
        ("steps", 0, {"learning_rate": 1.0}),
        ("steps", 0, {"records": 1}),
        ("steps", 0, {"retried": 1}),
        ("steps", 0, {"issued_again": 1}),
        ("checkpoints", 1, {"agent": "x"}),
        ("checkpoints", 1, {"manifest_sha256": "9" * 64}),
    ],
)
@pytest.mark.parametrize("doubled", [False, True])
def test_finds_facts_that_contradict_each_other(tmp_path, name, number, change, doubled):
    run = Run()
    entries = list(getattr(run.facts, name))
    if doubled:
        entries.append(entries[number])
    else:
        entries[number] = entries[number].model_copy(update=change)
    run.facts = run.facts.model_copy(update={name: entries})
    found = verify(run.bundle(tmp_path))
    assert found.problems or not found.ok


def of_job(**changes):
    run = Run()
    run.facts = run.facts.model_copy(update={"job": run.facts.job.model_copy(update=changes)})
    return run


def test_finds_hashes_of_data_that_the_job_does_not_have(tmp_path):
    run = Run()
    run.facts = run.facts.model_copy(update={"data": {"evaluation own/Env-v0": "0" * 64}})
    assert names(verify(run.bundle(tmp_path)).problems, CERTIFICATE)


def test_finds_a_cost_which_no_service_records(tmp_path):
    assert names(verify(of_job(cost=Cost(amount=1.0)).bundle(tmp_path)).problems, CERTIFICATE)


def test_finds_invented_changes_of_any_form(tmp_path):
    changes = [("algorithm", "x"), ("agents.x.learning_rate", 1.0)]
    update = SettingsUpdate(
        changes=[SettingChange(name=name, old=new, new=new) for name, new in changes], from_step=2
    )
    run = of_job(updates=[update], spec=Run().spec.model_copy(update={"agents": {"x": Train()}}))
    assert names(verify(run.bundle(tmp_path)).problems, CERTIFICATE)


@pytest.mark.parametrize("made_at", [-1.0, 1e12, 1e300])
def test_refuses_a_time_that_has_no_date(files, tmp_path, made_at):
    document = json.loads(files[CERTIFICATE])
    document["facts"]["made_at"] = made_at
    with pytest.raises(InvalidRequestError):
        problems(files | {CERTIFICATE: json.dumps(document).encode()}, tmp_path)


def test_takes_pages_and_hashes_from_certificate_alone(tmp_path):
    path = tmp_path / CERTIFICATE
    path.write_bytes(unpacked(Run().bundle(tmp_path))[CERTIFICATE])
    found = verify(path)
    assert (found.ok, found.checked, found.signed) == (True, "certificate", "not checked")
