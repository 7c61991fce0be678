#!/usr/bin/env bash
# Runs what `make test` leaves out, in parts: the tests marked `full`, and those that need packages of a registry.
#
#   test_all.sh [PART...]                   these parts, or all
#   test_all.sh --seconds N [--first N]     as many as fit, beginning with the part of this number, modulo their count
#
# A part that cannot be had here, or for which there is no time, says so and fails nothing; a test that fails ends the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts=(recipes marked trackers quantized s3 deploy vllm verifiers openenv alfworld clients)
# A part is not begun with fewer seconds left than this.
least() {
    case $1 in
    alfworld) echo 300 ;; # to install it compiles two packages
    vllm) echo 420 ;;
    recipes | marked | clients | deploy | s3) echo 240 ;;
    trackers | quantized | verifiers) echo 120 ;;
    openenv) echo 60 ;;
    *) echo "test-all: there is no part $1, only: ${parts[*]}" >&2; return 2 ;;
    esac
}
most=1000000 first=0 chosen=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) most=$2; shift 2 ;;
    --first) first=$2; shift 2 ;;
    *) least "$1" >/dev/null; chosen+=("$1"); shift ;;
    esac
done
[ ${#chosen[@]} = 0 ] || parts=("${chosen[@]}")
bounded() { if command -v timeout >/dev/null; then timeout --kill-after=10 "$@"; else shift; "$@"; fi; }

run() {
    local marked=(.venv/bin/python -m pytest -n 2 -m full) code=0
    case $2 in
    recipes) bounded "$1" "${marked[@]}" tests/examples || code=$? ;;
    marked) bounded "$1" "${marked[@]}" --ignore=tests/examples || code=$? ;;
    vllm) bounded "$1" bash scripts/test_vllm.sh; return ;;
    *) bounded "$1" bash scripts/test_extras.sh "$2"; return ;;
    esac
    [ "$code" = 3 ] && code=1 # pytest has a 3 of its own
    return "$code"
}

for number in "${!parts[@]}"; do
    part=${parts[$(((first + number) % ${#parts[@]}))]} left=$((most - SECONDS)) code=0
    if [ "$left" -lt "$(least "$part")" ]; then
        echo "test-all: $part was left out: $left s are left; run: make test-all PARTS=$part"
        continue
    fi
    echo "test-all: $part"
    run "$left" "$part" || code=$?
    case $code in
    0) ;;
    3) echo "test-all: $part was left out: its packages cannot be had here, for the reason above" ;;
    124 | 137) echo "test-all: $part did not end within $left s; run: make test-all PARTS=$part" ;;
    *) exit "$code" ;;
    esac
done
