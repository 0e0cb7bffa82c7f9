"""Creates the project's environment and installs into it, without ever fetching a CUDA build by accident.

Usage: python3 tools/install.py [--extra test]. Makes `.venv` beside this folder and installs foveate there, editable.
On a machine without an NVIDIA driver it first asks pip what a pinned torch would bring; when that includes CUDA
libraries, it takes PyTorch's own CPU builds instead, and stops with an explanation when those cannot be had.
Standard library only, because nothing is installed yet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_CPU = "torch==2.13.0"
TORCH_GPU = "torch>=2.11"
# Drafters are compared with this package; what it asks for pins other versions of torch and transformers.
REFERENCES = ("dflash==0.1.0",)
INTERPRETER = "triton==3.6.0"  # its interpreter runs the GPU kernels on a CPU; a CUDA build of torch brings its own
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def pip(python: Path, *words: str, **options: bool) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, check=False, text=True, capture_output=options.get("quiet", False))


def has_nvidia_driver() -> bool:
    return (
        shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0
    )


def brings_cuda(python: Path, requirement: str) -> bool:
    """Whether pip, as configured here, would install CUDA libraries with `requirement`."""
    plan = pip(python, "install", "--dry-run", "--quiet", "--report", "-", requirement, quiet=True)
    if plan.returncode:
        return True  # what cannot be planned is not taken on trust
    names = [item["metadata"]["name"].lower() for item in json.loads(plan.stdout).get("install", [])]
    return any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names)


def install_torch(python: Path) -> None:
    if has_nvidia_driver():
        return check(pip(python, "install", TORCH_GPU))
    if not brings_cuda(python, TORCH_CPU):
        return check(pip(python, "install", TORCH_CPU))
    print(f"No NVIDIA driver here and the usual {TORCH_CPU} brings CUDA: taking PyTorch's CPU build.", flush=True)
    done = pip(python, "install", TORCH_CPU, "--index-url", CPU_BUILDS)
    if done.returncode:
        sys.exit(
            f"{TORCH_CPU} without CUDA could not be installed from {CPU_BUILDS}.\n"
            f"Install a CPU build of torch 2.11 or newer into {python.parent.parent} yourself, then run this again."
        )


def check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", help="also install this group of optional dependencies")
    args = parser.parse_args()
    home = ROOT / ".venv"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    if subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode:
        install_torch(python)
    target = f"{ROOT}[{args.extra}]" if args.extra else str(ROOT)
    check(pip(python, "install", "--quiet", "--editable", target))
    if args.extra == "test":
        check(pip(python, "install", "--quiet", "--no-deps", *REFERENCES))
        if subprocess.run([str(python), "-c", "import triton"], capture_output=True).returncode:
            check(pip(python, "install", "--quiet", "--no-deps", INTERPRETER))


if __name__ == "__main__":
    main()
