"""The built parts."""
import pathlib
import subprocess

from .processes import Failed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Tools:
    """Filter, `warmpath` and Envoy: built, or fetched, where they are missing."""

    def __init__(self):
        self.root = ROOT
        print("real: building the filter and warmpath", flush=True)
        self.filter = pathlib.Path(line_of(["scripts/build-filter"]))
        line_of(["cargo", "build", "--quiet", "--release", "-p", "warmpath-cli"])
        target = line_of(["bash", "-c", 'echo "${CARGO_TARGET_DIR:-$PWD/target}"'])
        self.warmpath = pathlib.Path(target) / "release/warmpath"
        script = "ROOT=$PWD; . scripts/lib/common.sh; . scripts/lib/envoy.sh; envoy_path"
        self.envoy = pathlib.Path(line_of(["bash", "-c", script]))


def line_of(command):
    """The last line that a command prints."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed with {done.returncode}")
    return (done.stdout.strip().splitlines() or [""])[-1]
