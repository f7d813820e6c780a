"""Starts Busbar at once, also while its compiled rooms are not built yet.

    python tools/first_start.py COMMAND [ARGUMENT ...]

If the rooms are built, the command replaces this program. Otherwise, the command runs interpreted, and the rooms are
built beside it with a low priority: a newcomer sends a first message while the C compiler works. The running command
stays interpreted, and the next start uses the compiled rooms. If the command ends first, the build ends too; the next
one continues with the C files that are left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_rooms import built_modules, up_to_date  # noqa: E402

LOG = ROOT / "build" / "rooms.log"


def start_build() -> subprocess.Popen[bytes]:
    """Build in a session of its own, so that a Ctrl-C reaches the command alone."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tools" / "build_rooms.py")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_lowest_priority,
        )


def _lowest_priority() -> None:
    os.nice(19)


def report(build: subprocess.Popen[bytes]) -> None:
    """Wait for the build and print how it ended, unless it was stopped."""
    code = build.wait()
    if code == 0 and built_modules():
        print("\nThe compiled rooms are built. Stop Busbar and start it again to use them.\n", flush=True)
    elif code == 0:
        print(f"\n{LOG.read_text().strip()}\n", flush=True)
    elif code > 0:
        print(
            f"\nThe compiled rooms could not be built; {LOG.relative_to(ROOT)} has the reason.\n", flush=True
        )


def serve_and_build(command: list[str]) -> int:
    """Run the command interpreted and build beside it; returns the command's exit code."""
    print(
        "first start: Busbar runs interpreted, and its rooms are compiled beside it for the next start",
        flush=True,
    )
    build = start_build()
    server = subprocess.Popen(command, env=os.environ | {"BUSBAR_INTERPRETED": "1"})
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda received, _: server.send_signal(received))
    threading.Thread(target=report, args=(build,), daemon=True).start()
    try:
        return server.wait()
    finally:
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGTERM)


def main() -> int:
    command = sys.argv[1:]
    if not command:
        print(__doc__)
        return 2
    if up_to_date():
        os.execv(command[0], command)
    return serve_and_build(command)


if __name__ == "__main__":
    sys.exit(main())
