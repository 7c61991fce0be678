"""The environment variables of processes that run the code of packs.

They get a list of harmless ones instead of the service's: the operator's cloud keys, the service's settings
and Ray's token are not for packs. All processes of a service belong to one user, so this does not stop code
that reads other processes' memory or files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from backend.processes.children import MARK_VARIABLE
from tinkergym.bridges.verifiers_process import PYTHON_VARIABLE
from tinkergym.rollout.external_player import ALLOWED_VARIABLE as OPPONENT_URLS
from tinkergym.rubrics.llm_judge import ALLOWED_VARIABLE as JUDGE_URLS
from tinkergym.tasks.named import ALLOW_HUB, DATA_FOLDER
from tinkergym.tools.sandbox.isolation_rule import VARIABLE as PYTHON_TOOL

HOST_VARIABLE = "TINKERGYM_SCHEDULER_HOST"
"""Environment variable inherited by everything below Ray: its owner."""

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "JAVA_HOME"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TOKENIZERS_PARALLELISM"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
        *("HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"),
        # By which a service finds and ends what it started.
        *(MARK_VARIABLE, HOST_VARIABLE),
        *(PYTHON_TOOL, JUDGE_URLS, OPPONENT_URLS, DATA_FOLDER, ALLOW_HUB, PYTHON_VARIABLE),
    }
)
_PREFIXES = ("LC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_")


def environment_for_packs(further: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for a process that runs the code of packs.

    Args:
        further: The operator's `environment_variables`: names that packs may read as well.
        environ: The variables of this process.
    """
    own = os.environ if environ is None else environ
    return {
        name: value
        for name, value in own.items()
        if name in _NAMES or name in further or name.startswith(_PREFIXES)
    }
