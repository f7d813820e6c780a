"""`busbar trust`: what to set so that each SDK trusts the certificate authority of an instance.

Standard output is a shell script of exports whose comments have the rest, or JSON for programs.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from busbar.app.certificates import tls_directory

VARIABLES = {
    "NODE_EXTRA_CA_CERTS": "Node: added to what is trusted anyway",
    "REQUESTS_CA_BUNDLE": "Python, administration client: instead of what is trusted anyway",
    "SSL_CERT_FILE": "Go, .NET on Linux, curl, Python's ssl: instead of what is trusted anyway",
}


def run(data: Path, output: str) -> int:
    if output not in ("text", "json"):
        print(f"busbar: -o {output} is not known; text and json are.", file=sys.stderr)
        return 2
    ca = tls_directory(data.absolute()) / "ca.pem"
    if not ca.is_file():
        print(
            f"busbar: {ca} is not there: no instance with a certificate of its own was started on this data directory. "
            "Start `busbar serve` on it once, or name another with --data.",
            file=sys.stderr,
        )
        return 1
    if output == "json":
        print(
            json.dumps(
                {"ca": str(ca), "environment": dict.fromkeys(VARIABLES, str(ca)), "hints": _hints(ca)},
                indent=2,
            )
        )
        return 0
    print(f"# Certificate authority of this Busbar: {ca}")
    for name, meaning in VARIABLES.items():
        print(f"export {name}={shlex.quote(str(ca))}  # {meaning}")
    for language, hint in _hints(ca).items():
        print(f"# {language}: {hint}")
    return 0


def _hints(ca: Path) -> dict[str, str]:
    quoted = shlex.quote(str(ca))
    return {
        "Python": (
            f'ServiceBusClient and ServiceBusAdministrationClient take connection_verify="{ca}"; AMQP on a port of your '
            'own: custom_endpoint_address="sb://localhost:PORT"'
        ),
        "Node": "the variable must be set before node starts",
        ".NET": f"Linux: SSL_CERT_FILE as above; Windows: certutil -addstore -user Root {quoted}",
        "Java": (
            f"keytool -importcert -noprompt -alias busbar -file {quoted} -keystore busbar.p12 -storepass changeit, then "
            "-Djavax.net.ssl.trustStore=busbar.p12 -Djavax.net.ssl.trustStorePassword=changeit"
        ),
        "Go": "SSL_CERT_FILE as above, or tls.Config.RootCAs",
        "Debian": f"sudo cp {quoted} /usr/local/share/ca-certificates/busbar.crt && sudo update-ca-certificates",
    }
