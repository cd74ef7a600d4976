#!/usr/bin/env bash
# Unpack the Python and JSON files of the vLLM 0.33.0 wheel, without its GPU libraries (60 MB instead of 1 GB and more).
#   unpack_vllm_python.sh [FOLDER]
# With them on PYTHONPATH of the CPU engine's interpreter (`make engine`) and VLLM_TARGET_DEVICE=cpu, vLLM 0.33.0's own
# parser and refusals can be asked on a machine without a GPU. Does nothing where the folder is there already; the folder
# appears whole or not at all. Prints the folder.
set -euo pipefail
version=0.33.0
target=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tuner/engines/vllm-$version-python}
python=${PYTHON:-python3}
if [ -f "$target/vllm/__init__.py" ]; then echo "$target"; exit 0; fi
mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$work" "vllm==$version"
mkdir "$work/files"
"$python" - "$work" <<'PYTHON'
import sys, zipfile
from pathlib import Path
work = Path(sys.argv[1])
(wheel,) = work.glob("vllm-*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(work / "files", [name for name in archive.namelist() if name.endswith((".py", ".json"))])
PYTHON
chmod 755 "$work/files"
mv -T "$work/files" "$target" 2>/dev/null || [ -f "$target/vllm/__init__.py" ]   # somebody else was faster
echo "$target"
