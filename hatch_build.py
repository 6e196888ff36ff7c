"""Compiles the way of a call for a wheel, if HANGUP_COMPILE=1 or HANGUP_COMPILE=trained is set when the wheel is built.

mypyc turns the modules below into one C extension, from the same sources: they stay in the wheel, and Python prefers the
extension. All other modules, and the wheel without that variable, are plain Python. A trained one is compiled twice: GCC counts
in a first build how often each branch is taken while `bench/training.py` plays calls, and lays the second one out for that.
See "Compiled wheels" in ARCHITECTURE.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The modules that a call passes through, and those whose classes derive from theirs: a class in Python cannot derive from a
# compiled one.
COMPILED = (
    "core/account.py",
    "core/admission/*.py",
    "core/call.py",
    "core/catalog.py",
    "core/engine_time.py",
    "core/histogram.py",
    "core/ledger.py",
    "core/reaper/pending_stops.py",
    "core/reasons.py",
    "gateway/accounting.py",
    "gateway/actions.py",
    "gateway/answers.py",
    "gateway/apis/*.py",
    "gateway/backend_set.py",
    "gateway/backends/backend.py",
    "gateway/backends/coming_transport.py",
    "gateway/backends/connection.py",
    "gateway/backends/nearby.py",
    "gateway/backends/pool.py",
    "gateway/backends/rate_limits.py",
    "gateway/call_flow.py",
    "gateway/call_lines.py",
    "gateway/client/connection.py",
    "gateway/client/connection_state.py",
    "gateway/client/handshake.py",
    "gateway/client/timed.py",
    "gateway/client_request.py",
    "gateway/engine_request.py",
    "gateway/http/*.py",
    "gateway/intake.py",
    "gateway/kinds/*.py",
    "gateway/log.py",
    "gateway/pauses.py",
    "gateway/placement.py",
    "gateway/registry.py",
    "gateway/relay/*.py",
    "gateway/request_policy.py",
    "gateway/routing.py",
    "gateway/stopping.py",
    "gateway/store/ledger.py",
    "gateway/stream_refusal.py",
    "gateway/trace_attributes.py",
)

# Functions of the extension call each other directly: nothing outside of it may take their place.
_DIRECT = "-fvisibility=hidden -fno-semantic-interposition"
_DIRECT_LINKS = "-Wl,-Bsymbolic" if sys.platform == "linux" else ""
_CFLAGS, _LDFLAGS = os.environ.get("CFLAGS", ""), os.environ.get("LDFLAGS", "")  # as whoever builds gives them


class CompileHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        compiling = ["mypy==2.4.1", "setuptools", "types-setuptools"] if _is_wanted() else []
        return compiling + (self.metadata.core.optional_dependencies["gateway"] if _is_trained() else [])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable" or not _is_wanted():
            return
        self._folder = tempfile.TemporaryDirectory()
        out = Path(self._folder.name)
        subprocess.run([sys.executable, __file__, str(out)], check=True, cwd=self.root)  # noqa: S603
        libraries = [*out.rglob("*.so"), *out.rglob("*.pyd")]
        build_data["force_include"] |= {str(library): str(library.relative_to(out)) for library in libraries}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _is_wanted() -> bool:
    return os.environ.get("HANGUP_COMPILE", "0") not in ("", "0")


def _is_trained() -> bool:
    return os.environ.get("HANGUP_COMPILE") == "trained"


def _compile(out: Path) -> None:
    """Compile the modules into `out`, from the project's folder."""
    from mypyc.build import mypycify  # noqa: PLC0415 - there only where it is wanted

    os.environ["MYPYPATH"] = "src"
    files = [str(path) for pattern in COMPILED for path in sorted(Path("src/hangup").glob(pattern))]
    files = [file for file in files if not file.endswith("__init__.py")]
    with tempfile.TemporaryDirectory() as temporary:
        extensions = mypycify(
            ["--no-warn-unused-ignores", "--ignore-missing-imports", *files],  # of extras that are not installed here
            opt_level="2",
            debug_level="0",
            multi_file=True,
            group_name="hangup",
            target_dir=temporary,
        )
        _without_weak_references(extensions)
        if _is_trained() and _is_gcc():
            counting = Path(temporary) / "counting"
            _build(extensions, counting, temporary, "-fprofile-generate -fprofile-update=prefer-atomic")
            _train(counting)
            _build(extensions, out, temporary, "-fprofile-use -fprofile-correction -Wno-missing-profile")
        else:
            _build(extensions, out, temporary)


def _build(extensions: list[Any], out: Path, temporary: str, flags: str = "") -> None:
    """Have the C compiler build the extensions into `out`. GCC keeps its counts beside the objects, in the temporary folder."""
    from setuptools import setup  # noqa: PLC0415

    os.environ["CFLAGS"] = f"{_CFLAGS} {_DIRECT} {flags}"
    os.environ["LDFLAGS"] = f"{_LDFLAGS} {_DIRECT_LINKS}"
    arguments = ["-q", "build_ext", "--force", "--build-lib", str(out), "--build-temp", temporary]
    setup(name="hangup", packages=[], ext_modules=extensions, script_args=[*arguments, "--parallel", str(os.cpu_count())])


def _is_gcc() -> bool:
    """Return whether the compiler is GCC: others count in other ways, and build without training."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    return "Free Software Foundation" in said


def _train(counting: Path) -> None:
    """Play calls against the gateway of the first build, which writes its counts beside the objects when it ends."""
    shutil.copytree("src/hangup", counting / "hangup", dirs_exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(counting), *sys.path])}
    subprocess.run([sys.executable, "-m", "bench.training"], check=True, env=environment)


def _without_weak_references(extensions: list[Any]) -> None:
    """Take the place for weak references from classes that derive from one in Python, in the generated C files.

    mypyc gives them one on Python 3.11, but its code drops a reference there that it does not own: once an object dies that had
    a weak reference, the interpreter crashes at some later time. Without the place, `weakref.ref` raises TypeError, as it does
    for all other compiled classes, and for these from Python 3.12 on.
    """
    for source in {Path(source) for extension in extensions for source in extension.sources}:
        source.write_text(re.sub(r"^ *\.tp_weaklistoffset = .*\n", "", source.read_text(), flags=re.MULTILINE))


if __name__ == "__main__":
    _compile(Path(sys.argv[1]))
