"""CPU kernels that are faster than those of torch and transformers, and one switch for all of them.

With `TINKERGYM_CPU_KERNELS=off` in the service's environment, learners and engines run torch's products,
transformers' modules and uncompiled functions: to measure what the kernels are worth on a processor, or to
see whether a wrong result is theirs. Processes that the service starts inherit it. Jobs resume with equal
bits only with the setting they began with.
"""

from __future__ import annotations

import os

CPU_KERNELS = os.environ.get("TINKERGYM_CPU_KERNELS", "on") != "off"
