#!/usr/bin/env bash
# Makes .venv with the SDK, the service, the packs and the development tools. Safe to repeat: when nothing
# changed it returns at once; when it fails it removes what it began, so that no half-made .venv stays behind. A .venv that
# was whole before and still works after a failed update is kept: the next run tries the update again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH_VERSION=2.13.0
say() { printf 'install: %s\n' "$*"; }
why=""
die() { why=$*; [ -n "${log:-}" ] || printf 'install: %s\n' "$why" >&2; exit 1; }  # with a log the EXIT trap says it, last

# --- is there anything to do? -------------------------------------------------------------------------------------
fingerprint=$(cat pyproject.toml constraints.txt scripts/install.sh envs/*/pyproject.toml | sha256sum | cut -d' ' -f1)
stamp=.venv/.complete
# The Python that .venv was made with may have been removed since; then its link leads nowhere.
complete() { [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint $PWD" ]; }
complete && exit 0

# Of two runs at once the second waits, else it would remove what the first makes. The lock is on this folder, so there is
# no file to leave behind; pip inherits it, so a run also waits for a pip that outlived its killed install.
if command -v flock >/dev/null; then
    exec 9<.
    flock -n 9 || { say "another install is at work here; waiting for it"; flock 9; }
    complete && exit 0
fi

# --- which Python? ------------------------------------------------------------------------------------------------
python=""
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
[ -n "$python" ] || die "no Python >= 3.11 found; install one or name it: make PYTHON=/path/to/python3 test"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv"
free_kib=$(df -Pk . | awk 'NR==2{print $4}')
[ "$free_kib" -gt 3000000 ] || die "needs 3 GB of free disk here, $((free_kib / 1024)) MB are left"

# --- from here on a failure removes .venv, unless it was whole before and still is ----------------------------------
log=$(mktemp)
finished=no
updating=no
works() { .venv/bin/python -c 'import torch, transformers, peft, ray, tinkergym' >>"$log" 2>&1; }
end() {
    code=$?
    if [ $finished = no ]; then
        [ $code -ne 0 ] || code=1
        [ $code -eq 130 ] && why=interrupted || tail -n 15 "$log" >&2
        if [ $updating = yes ] && works; then
            left='the .venv of before still works and was kept; the next run tries the update again'
        else
            rm -rf .venv
            left='.venv was removed, so the next run starts clean'
        fi
        printf 'install: %s\ninstall: %s\n' "${why:-failed}" "$left" >&2
    fi
    rm -f "$log"
    exit $code
}
trap end EXIT
trap 'exit 130' INT TERM

if [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(sed 's/^[^ ]* //' "$stamp")" = "$PWD" ]; then
    say "bringing .venv up to date"
    updating=yes # its stamp is of an older state, so that it does not count as complete until the end
else
    rm -rf .venv
    say "making .venv with $("$python" --version) (once; a few minutes)"
    "$python" -m venv .venv
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" >>"$log" 2>&1; }
refused="pip could not install it, and says why above. Without a way to pypi.org, name a mirror in PIP_INDEX_URL"

# --- torch: a CPU build unless there is an NVIDIA GPU -------------------------------------------------------------
has_gpu() { [ -e /proc/driver/nvidia/version ] || { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }; }
if .venv/bin/python -c 'import torch' 2>/dev/null; then
    : # an up-to-date run keeps the build that is there
elif has_gpu; then
    say "torch for the NVIDIA GPU of this machine"
    pip install "torch==$TORCH_VERSION" || die "$refused"
elif [ "$(uname -s)" = Darwin ]; then
    say "torch $TORCH_VERSION"
    pip install "torch==$TORCH_VERSION" || die "$refused"
elif pip install --dry-run --no-deps --no-index "torch==$TORCH_VERSION"; then
    # A build lies in pip's configured find-links; pip prefers its local version (`+cpu`) to the registry's.
    say "torch $TORCH_VERSION from the configured find-links"
    pip install "torch==$TORCH_VERSION" || die "$refused"
else
    : >"$log" # that find-links has none is no error
    say "torch $TORCH_VERSION, CPU build"
    pip install "torch==$TORCH_VERSION" --index-url https://download.pytorch.org/whl/cpu ||
        die "no CPU build of torch $TORCH_VERSION: neither in pip's find-links nor, as pip says above, at download.pytorch.org." \
            "Without a way there, put the wheel into a folder and name it in PIP_FIND_LINKS"
fi
if ! has_gpu && .venv/bin/python -m pip list 2>/dev/null | grep -qiE '^nvidia-|^triton '; then
    [ "$(uname -s)" = Darwin ] || die "CUDA packages came along though this machine has no NVIDIA GPU"
fi

# --- everything else; torch is pinned so that no requirement can exchange it ---------------------------------------
say "tinkergym, the service, the packs and the tools"
installed_torch=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))')
printf 'torch==%s\n' "$installed_torch" >.venv/torch.txt
packs=(); for pack in envs/*/pyproject.toml; do packs+=(-e "$(dirname "$pack")"); done
pip install -c constraints.txt -c .venv/torch.txt -e ".[backend,dev,plot,docs]" || die "$refused"
pip install -c constraints.txt -c .venv/torch.txt --no-deps "${packs[@]}" || die "$refused"
# Without what it asks for: pip finds no tml-renderers as new as that, which only some models need (see pyproject.toml).
pip install --no-deps tinker-cookbook==0.6.1 || die "$refused"
works ||
    die "what was installed cannot be imported; Python says why above"

printf '%s' "$fingerprint $PWD" >"$stamp"
finished=yes
say "done"
