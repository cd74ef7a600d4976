"""Run by the engine's interpreter: the capture sizes that vLLM keeps of those it is given.

question: [{"sizes": [..], "tokens_per_request": q}, ...].   answer: the sizes after vLLM's own adjustment.
"""

import json
import sys
from pathlib import Path

from vllm.config import CompilationConfig


def kept(sizes, tokens_per_request):
    compilation = CompilationConfig(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes))
    compilation.adjust_cudagraph_sizes_for_spec_decode(tokens_per_request)
    return compilation.cudagraph_capture_sizes


if __name__ == "__main__":
    question = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([kept(**asked) for asked in question]))
