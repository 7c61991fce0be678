#!/usr/bin/env bash
# Puts torchvision into the folder torchvision/ of .venv, or of the virtual environment given as the argument: for the tests
# of vLLM's CPU build with a Qwen3-VL model. It is not among the packages, since transformers would process the images of
# all tests with it. Safe to repeat. Exits with 3 where it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCHVISION_VERSION=0.28.0 # the one for torch 2.13.0
venv=${1:-.venv}
folder=$venv/torchvision
[ -d "$folder/torchvision-$TORCHVISION_VERSION.dist-info" ] && exit 0
made=$(mktemp -d "$venv/torchvision.XXXXXX")
trap 'rm -rf "$made"' EXIT
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --target "$made" \
    "torchvision==$TORCHVISION_VERSION" || {
    echo "install_torchvision: pip could not install it, and says why above" >&2
    exit 3
}
# The registry's build has operators for a torch with CUDA only, and cannot be imported without two of them. Images need none.
cat >>"$made/torchvision/extension.py" <<'PYTHON'


if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
rm -rf "$folder"
mv "$made" "$folder"
