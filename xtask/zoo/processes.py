"""What a process takes, seen from outside."""

import pathlib
import re
import time


def memory(process, field):
    """Bytes of a process that runs: `VmRSS` is resident now, `VmHWM` was at most; `None` once it has ended."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"{field}:\s*(\d+)", status)
    return int(found[1]) << 10 if found else None


def processor_time(process):
    """Seconds, of all threads."""
    # Linux's number for the clock of a process; /proc counts in steps of 10 ms.
    return time.clock_gettime((~process.pid << 3) | 2)
