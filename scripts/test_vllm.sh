#!/usr/bin/env bash
# Tests the engines with the real vLLM, in a virtual environment of its own that stands on .venv: what is installed for it
# changes nothing for anybody else. Where vLLM cannot be had it says why and exits with 3; when its tests fail, it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATIENCE_SECONDS=600  # without a way to the registry, pip tries again and again
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
bounded() { if command -v timeout >/dev/null; then timeout --kill-after=10 "$@"; else shift; "$@"; fi; }

.venv/bin/python -m venv --without-pip "$folder/venv"
# Packages that it lacks come from .venv, pip too; pip installs into it alone.
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
below=$(.venv/bin/python -c "$packages") own=$("$folder/venv/bin/python" -c "$packages")
printf 'import site; site.addsitedir(%s)\n' "'$below'" >"$own/below.pth"

code=0
bounded "$PATIENCE_SECONDS" bash scripts/install_vllm.sh "$folder/venv" || code=$?
case $code in
0) ;;
124 | 137)
    echo "ci: vLLM could not be installed within $PATIENCE_SECONDS s" >&2
    exit 3
    ;;
*) exit "$code" ;;
esac
bounded 60 bash scripts/install_torchvision.sh "$folder/venv" || echo "ci: without torchvision vLLM is not tested with Qwen3-VL"
# Starting vLLM counts as time of the first test that wants it. One that hangs ends before the time that CI leaves for all.
"$folder/venv/bin/python" -m pytest -p no:cacheprovider --timeout=300 -k vllm tests/backend/engines || exit 1 # pytest has a 3 of its own
