#!/usr/bin/env bash
# Start a real server from an exported file, under its environment file, and ask it one question.
#   scripts/try_export.sh FILE.yaml        (the interpreter that has vLLM: $TUNER_ENGINE_PYTHON)
set -euo pipefail
yaml=${1:?usage: try_export.sh FILE.yaml}
engine=${TUNER_ENGINE_PYTHON:?set TUNER_ENGINE_PYTHON to the interpreter that has vLLM}
# Long enough: vLLM 0.32's CPU attention dies of an illegal instruction at a prompt of two tokens on a CPU with AMX.
prompt="The quick brown fox jumps over the lazy dog, then it sits down in the shade and counts to one hundred and back"
log=$(mktemp); port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
set -a; . "${yaml%.yaml}.env"; set +a
setsid "$engine" -m vllm.entrypoints.cli.main serve --config "$yaml" --host 127.0.0.1 --port "$port" \
  --served-model-name exported >"$log" 2>&1 &
server=$!
trap 'kill -TERM -- -$server 2>/dev/null || true; sleep 3; kill -KILL -- -$server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 180); do
  curl --silent --fail "http://127.0.0.1:$port/health" >/dev/null && break
  kill -0 "$server" 2>/dev/null || { tail -n 30 "$log"; echo "the exported configuration did not start"; exit 1; }
  sleep 1
done
answer=$(curl --silent --fail "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
  -d '{"model": "exported", "prompt": "'"$prompt"'", "max_tokens": 8, "temperature": 0}') \
  || { tail -n 30 "$log"; echo "the exported configuration did not answer"; exit 1; }
echo "a server started from $yaml answers:"
echo "$answer"
