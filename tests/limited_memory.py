"""A process that gets hardly more memory than it has; also for programs that tests start."""

import resource

import psutil


def limit_memory(process, spare_bytes):
    """Let a process, a `psutil.Process`, have this much more than now. Only Linux can."""
    limit = process.memory_info().vms + spare_bytes
    process.rlimit(psutil.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
