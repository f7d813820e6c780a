"""A real server with the API of S3, on the loopback interface, for archives in object stores.

It is a process of its own: the Delta library waits for answers while it holds the lock of the interpreter.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path

REGION = "us-east-1"


class ObjectStore:
    """An S3 server, with credentials for the programs that use it. Its objects are gone when it stops."""

    def __init__(self) -> None:
        self._buckets = itertools.count()
        self._endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> ObjectStore:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.object_store"],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._endpoint = self._process.stdout.readline().strip()
        assert self._endpoint, "the S3 server has not started"
        return self

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def environment(self) -> dict[str, str]:
        """What programs need in their environment."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self) -> str:
        """The URL of a new bucket."""
        from pyarrow import fs

        name = f"bucket-{os.getpid()}-{next(self._buckets)}"
        host = self._endpoint.removeprefix("http://")
        store = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=host,
            scheme="http",
            region=REGION,
            allow_bucket_creation=True,
        )
        store.create_dir(name)
        return f"s3://{name}"


def main() -> None:
    """Serve until standard input ends, which happens at the latest when the process that started this one ends."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
