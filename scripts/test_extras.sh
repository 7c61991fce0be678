#!/usr/bin/env bash
# Tests trackers with the real packages, offline, in a virtual environment of its own that stands on .venv: what is
# installed for it changes nothing for anybody else. Where the packages cannot be had it says so and exits with 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATIENCE_SECONDS=400  # without a way to the registry, pip tries again and again
venv=.venvs/extras
bounded() { if command -v timeout >/dev/null; then timeout --kill-after=10 "$@"; else shift; "$@"; fi; }
list=scripts/extras_constraints.txt
if ! cmp -s "$list" "$venv/installed.txt"; then
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv"
    # Packages that it lacks come from .venv; what pip installs here comes first.
    packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    below=$(.venv/bin/python -c "$packages") own=$("$venv/bin/python" -c "$packages")
    bounded "$PATIENCE_SECONDS" "$venv/bin/python" -m pip --disable-pip-version-check --quiet install -c "$list" mlflow tensorboard trackio wandb || {
        echo "test-extras: the trackers' packages cannot be installed within $PATIENCE_SECONDS s; pip says why above" >&2
        exit 3
    }
    printf 'import site; site.addsitedir(%s)\n' "'$below'" >"$own/below.pth"
    cp "$list" "$venv/installed.txt"
fi
"$venv/bin/python" -m pytest -q -p no:cacheprovider --timeout=300 tests/tinkergym/reporting/test_real_trackers.py || exit 1 # pytest has a 3 of its own
