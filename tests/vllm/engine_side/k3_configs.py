"""Run by the engine's interpreter: vLLM 0.33.0's own configuration of each file, as it would be built on GB300.

question: [YAML text, ...].   answer: for each, {"error": text or null, "unsupported": reason or null,
"capture_sizes": [...], "cudagraph_mode": name}. Nothing is started; the platform is told that it is of family 100 and
can capture graphs, and its CPU adjustments are left out.
"""

import json
import sys
from pathlib import Path

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.models.kimi_k3.nvidia.specialized_decode.runtime import unsupported
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser


def pretend_gb300():
    platform = type(current_platform)
    platform.is_device_capability_family = lambda _, asked: asked == 100
    platform.support_static_graph_mode = lambda _: True
    platform.check_and_update_config = lambda _, __: None


def built(parser, text):
    file = Path("candidate.yaml")
    file.write_text(text)
    arguments = parser.parse_args(["serve", "--config", str(file)])
    try:
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        reason = unsupported(config)
    except (ValueError, NotImplementedError, AssertionError) as error:
        return {"error": str(error)}
    return {
        "error": None,
        "unsupported": reason,
        "capture_sizes": config.compilation_config.cudagraph_capture_sizes,
        "cudagraph_mode": config.compilation_config.cudagraph_mode.name,
    }


if __name__ == "__main__":
    pretend_gb300()
    parser = FlexibleArgumentParser()
    make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    question = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([built(parser, text) for text in question]))
