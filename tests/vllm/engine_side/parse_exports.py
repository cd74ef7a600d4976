"""Run by the engine's interpreter: what `vllm serve` understands of each exported file and command line.

question: [{"file": YAML text, "command": [argument, ...], "options": rendered options}, ...]; the arguments of an
"overlay", where there is one, stand behind the file on the command line.
answer: for each, {"file": {option: value}, "command": {...}, "changed": [...]}: the values of exactly the options asked
for, and the names of all that differ from vLLM's defaults, as the file was read.
"""

import dataclasses
import enum
import json
import sys
from pathlib import Path

from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ModuleNotFoundError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser


def vllm_parser():
    """As vllm/entrypoints/cli/main.py builds it: `serve` is a sub-command, which is where false flags get lost."""
    parser = FlexibleArgumentParser()
    make_arg_parser(parser.add_subparsers(required=False, dest="subparser").add_parser("serve"))
    return parser


def plain(value, asked):
    """JSON of a parsed value; of a configuration object the keys asked for."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and isinstance(asked, dict):
        return {name: plain(getattr(value, name), inner) for name, inner in asked.items()}
    return value


def understood(arguments, options):
    """The parsed value of each rendered option, under the name that it was rendered with, false flags as False."""
    found = {}
    for key, asked in options.items():
        name = key.removeprefix("no-").replace("-", "_")
        value = plain(getattr(arguments, name), asked)
        found[key] = (value is False) if key.startswith("no-") else value
    return found


def changed(arguments, defaults):
    return sorted(
        name for name, value in vars(arguments).items() if name != "config" and value != getattr(defaults, name)
    )


def main():
    parser = vllm_parser()
    defaults = parser.parse_args(["serve", "m"])
    answer = []
    for number, asked in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        file = Path(f"{number}.yaml")
        file.write_text(asked["file"])
        from_file = parser.parse_args(["serve", "--config", str(file), *asked.get("overlay", [])])
        from_command = parser.parse_args(["serve", *asked["command"]])
        if from_command.model_tag is not None:  # vllm/entrypoints/cli/serve.py does the same before it starts
            from_command.model = from_command.model_tag
        if from_file.model_tag is not None:
            from_file.model = from_file.model_tag
        answer.append(
            {
                "file": understood(from_file, asked["options"]),
                "command": understood(from_command, asked["options"]),
                "changed": changed(from_file, defaults),
            }
        )
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
