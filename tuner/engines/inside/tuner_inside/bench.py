"""vLLM's own benchmark, imported once: its import costs about ten seconds of CPU, a run three."""

import asyncio
from typing import Any

from tuner_inside.channel import serve


def main() -> None:
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        """question: `{"arguments": [...]}` as for `vllm bench serve`.   Returns its result, details included."""
        if "arguments" not in question:
            return {"ready": True}
        namespace = parser.parse_args([*question["arguments"], "--save-detailed", "--disable-tqdm"])
        return asyncio.run(main_async(namespace))

    serve(answer)


if __name__ == "__main__":
    main()
