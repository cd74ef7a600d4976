"""Ask the installed vLLM whether it would take a configuration: its own parser and `create_engine_config`.

Nothing is loaded onto a device. The first question costs seconds, each later one a fraction of a second.
"""

import contextlib
import importlib
import io
from typing import Any

from tuner_inside.channel import serve

# Where `make_arg_parser` stands: vLLM 0.33, 0.32, and before.
_PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make_arg_parser = _make_arg_parser()

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        """question: `{"config": path of a YAML file, "arguments": [...]}`.   Returns `{"refusal": text or null}`."""
        said = io.StringIO()
        root = FlexibleArgumentParser()
        commands = root.add_subparsers(dest="command")
        make_arg_parser(commands.add_parser("serve"))
        try:
            with contextlib.redirect_stderr(said):
                namespace = root.parse_args(["serve", "--config", question["config"], *question.get("arguments", [])])
            arguments = AsyncEngineArgs.from_cli_args(namespace)
            arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        except SystemExit:
            last = (said.getvalue().strip().splitlines() or ["no reason given"])[-1]
            return {"refusal": f"vLLM's parser refused an option: {last.partition('error: ')[2] or last}"}
        except (ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError, OSError) as error:
            return {"refusal": f"{type(error).__name__}: {error}"}
        return {"refusal": None}

    serve(answer)


def _make_arg_parser() -> Any:
    for name in _PARSERS:
        try:
            return importlib.import_module(name).make_arg_parser
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no make_arg_parser in any of {_PARSERS}")


if __name__ == "__main__":
    main()
