"""`python -m tests.without_namespaces PROGRAM ...`: run Python where the kernel refuses new namespaces.

As in most containers: a seccomp filter answers `unshare` with EPERM, for root too. Children inherit it.
"""

import ctypes
import os
import struct
import sys

_UNSHARE = {"x86_64": 272, "aarch64": 97}
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def hide() -> None:
    steps = [
        (0x20, 0, 0, 0),  # the system call's number
        (0x15, 0, 1, _UNSHARE[os.uname().machine]),
        (0x06, 0, 0, 0x00050001),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allow
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(_SECCOMP, _FILTER, header, 0, 0) == 0


if __name__ == "__main__":
    hide()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
