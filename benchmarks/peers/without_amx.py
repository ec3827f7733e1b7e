"""Run Python without AMX on a processor that has it: `python -m benchmarks.peers.without_amx -m MODULE ...`.

A program may use AMX's tiles only after it asked Linux for them, by arch_prctl(ARCH_REQ_XCOMP_PERM). A seccomp filter
makes that call fail, before numpy or an engine is loaded, and every library falls back to what the processor has
besides. The filter outlives exec, so that one machine measures both kinds. Standard library only.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

ARCH_REQ_XCOMP_PERM = 0x1023
"""Asks for the use of a register file that grows a process's signal frames; the first argument of arch_prctl."""

ARCH_PRCTL = 158
"""Number of the system call on x86-64."""

_X86_64 = 0xC000003E
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in seccomp's data."""

_PROGRAM = (
    (_LOAD, 0, 0, _ARCHITECTURE),
    (_JUMP_IF_EQUAL, 0, 5, _X86_64),
    (_LOAD, 0, 0, _NUMBER),
    (_JUMP_IF_EQUAL, 0, 3, ARCH_PRCTL),
    (_LOAD, 0, 0, _FIRST_ARGUMENT),
    (_JUMP_IF_EQUAL, 0, 1, ARCH_REQ_XCOMP_PERM),
    (_RETURN, 0, 0, _FAIL),
    (_RETURN, 0, 0, _ALLOW),
)
"""Instructions of the filter: code, jumps if true and if false, constant."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_amx() -> None:
    """Refuse AMX to this thread and to all that it starts, programs included. It cannot be undone.

    Raises:
        OSError: the system takes no filter.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "AMX can be refused on Linux on x86-64 only")
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _PROGRAM)
    program = _Program(len(_PROGRAM), code)
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if library.prctl(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def main() -> None:
    """Refuse AMX, and replace this process by Python with the remaining arguments."""
    refuse_amx()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
