"""Make the environments in which exports are proven: one per harness, each with the pinned release of that harness.

    python tests/harness/setup.py                        all of them, under build/harness
    python tests/harness/setup.py --only inspect,lm-eval DIR
    python tests/harness/setup.py --light                the three that every CI run has

An environment lies in DIR/NAME with its programs in DIR/NAME/bin. They share DIR/base (torch, transformers and other
big packages), or what `--base` names, in a .pth file: a harness that needs another version installs its own. One that
is complete is left as it is; a half-made one is made anew. The exit status is 1 when one could not be made, and the
others are still made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# torch comes first and is held: newer ones bring gigabytes of GPU libraries that nothing here uses.
TORCH = "torch==2.13.0"
BASE = [TORCH, "transformers", "datasets", "aiohttp", "openai", "pandas", "pillow", "fastapi", "uvicorn", "numpy"]

# What the serving engines import before they come to their benchmark clients. The wheels themselves are installed
# without their dependencies, most of which are GPU kernels.
# fmt: off
VLLM = [
    "anthropic", "blake3", "cachetools", "cbor2", "cloudpickle", "depyf", "einops", "fastapi[standard]", "ijson",
    "jsonschema", "lark", "llguidance", "mcp", "mistral_common", "msgspec", "openai_harmony", "orjson",
    "partial_json_parser", "prometheus_client", "prometheus-fastapi-instrumentator", "protobuf", "psutil", "py-cpuinfo",
    "pybase64", "python-json-logger", "pyyaml", "pyzmq", "regex", "requests", "sentencepiece", "setproctitle", "six",
    "tiktoken", "uvloop", "watchfiles",
]
VLLM_BARE = [
    "vllm==0.33.0", "apache-tvm-ffi", "compressed-tensors", "jmespath", "lm-format-enforcer",
    "model-hosting-container-standards", "outlines_core", "supervisor", "xgrammar",
]
SGLANG = [
    "compressed_tensors", "gguf", "ipython", "msgspec", "orjson", "pybase64", "pyzmq", "requests", "sentencepiece",
    "setproctitle",
]
SGLANG_BARE = ["sglang==0.5.23", "apache-tvm-ffi", "triton"]
# fmt: on

# SGLang imports torchvision, whose wheels need GPU libraries, and its benchmark client never calls it.
STAND_IN = """class _Name(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Name(name, (), {})
"""
STAND_INS = ["", "io", "utils", "transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional"]

# name -> (packages, packages without their dependencies)
HARNESSES: dict[str, tuple[list[str], list[str]]] = {
    "inspect": (["inspect-ai==0.3.285", "openai"], []),
    "lm-eval": (["lm-eval[api]==0.4.13"], []),
    "promptfoo": ([], []),  # from npm, below
    "guidellm": (["guidellm==0.8.1"], []),
    "aiperf": (["aiperf==0.13.0"], []),
    "vllm": (VLLM, VLLM_BARE),
    "sglang": (SGLANG, SGLANG_BARE),
    "evalscope": (["evalscope[perf]==1.14.1"], []),
    "lighteval": (["lighteval[litellm]==0.13.0", "litellm<1.82", "xxhash<4"], []),
}
PROMPTFOO = "promptfoo@0.119.0"  # newer ones need a newer Node than most machines have; npm compiles a database for it
LIGHT = ("guidellm", "inspect", "lm-eval")


def main() -> int:
    """Make what was asked for, one after another, and say what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "build" / "harness")
    parser.add_argument("--only", help=f"names, comma between: {', '.join(HARNESSES)}")
    parser.add_argument("--light", action="store_true", help=f"only {', '.join(LIGHT)}")
    parser.add_argument("--base", type=Path, help="an environment with torch to share, instead of DIR/base")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(LIGHT if given.light else HARNESSES)
    if unknown := [n for n in names if n not in HARNESSES]:
        parser.error(f"no environment is called {', '.join(unknown)}; there are {', '.join(HARNESSES)}")
    directory = given.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    base = given.base.resolve() if given.base else directory / "base"
    failed = [name for name in names if not make(directory, name, base)]
    if failed:
        print(f"could not make: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def make(directory: Path, name: str, base: Path) -> bool:
    """Make DIR/NAME unless it is there with these packages; say what happened."""
    where = directory / name
    stamp = where / "complete.json"
    wanted = json.dumps([str(base), *recipe(name)], sort_keys=True)
    if stamp.is_file() and stamp.read_text() == wanted:
        print(f"{name:10} is there", flush=True)
        return True
    if name not in ("base", "promptfoo") and base == directory / "base" and not make(directory, "base", base):
        return False
    start = time.monotonic()
    shutil.rmtree(where, ignore_errors=True)
    try:
        if name == "promptfoo":
            promptfoo(where)
        else:
            environment(where, name, base)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{name:10} FAILED: {error}", file=sys.stderr, flush=True)
        return False
    stamp.write_text(wanted)
    print(f"{name:10} made in {time.monotonic() - start:.0f} s", flush=True)
    return True


def recipe(name: str) -> list[object]:
    """Return what an environment is made of; a change of it makes the environment anew."""
    if name == "base":
        return [sys.version, BASE]
    return [PROMPTFOO] if name == "promptfoo" else [sys.version, BASE, *HARNESSES[name]]


def environment(where: Path, name: str, base: Path) -> None:
    """Make a virtual environment, let it see the base's packages, install the harness."""
    quiet([sys.executable, "-m", "venv", str(where)])
    packages, bare = (BASE, []) if name == "base" else HARNESSES[name]
    constraint = where / "constraint.txt"
    constraint.write_text(TORCH + "\n")
    install = [str(where / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--prefer-binary"]
    if name == "base":
        quiet([*install, TORCH])
    else:
        site, shared = (next((d / "lib").glob("python3*/site-packages")) for d in (where, base))
        (site / "zz-base.pth").write_text(f"{shared}\n")
    quiet([*install, "-c", str(constraint), *packages])
    if bare:
        quiet([*install, "-c", str(constraint), "--no-deps", *bare])
    if name == "sglang":
        for module in STAND_INS:
            (site / "torchvision" / module).mkdir(parents=True, exist_ok=True)
            (site / "torchvision" / module / "__init__.py").write_text(STAND_IN)
        (site / "torchvision-0.28.0.dist-info").mkdir()
        metadata = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
        (site / "torchvision-0.28.0.dist-info" / "METADATA").write_text(metadata)


def promptfoo(where: Path) -> None:
    """Install promptfoo from npm; bin/promptfoo is the program, as in the other environments."""
    where.mkdir(parents=True)
    quiet(["npm", "install", "--prefix", str(where), "--no-audit", "--no-fund", "--loglevel=error", PROMPTFOO])
    (where / "bin").mkdir()
    (where / "bin" / "promptfoo").symlink_to(where / "node_modules" / ".bin" / "promptfoo")


def quiet(command: list[str]) -> None:
    """Run a command with its output shown only if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, " ".join(command[:6]) + " ...")


if __name__ == "__main__":
    sys.exit(main())
