"""vLLM's own benchmark, imported once: its import costs about ten seconds of CPU, a run three."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from tuner_inside.channel import serve


def main() -> None:
    from vllm.benchmarks.serve import add_cli_args, get_tokenizer, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from tuner_inside.replay import against_server

    parser = FlexibleArgumentParser()
    add_cli_args(parser)

    @functools.lru_cache(maxsize=4)
    def tokenizer(model: str, trusted: bool) -> Any:
        return get_tokenizer(model, trust_remote_code=trusted)

    def answer(question: dict[str, Any]) -> Any:
        """What is asked decides what is answered:

        - `{"arguments": [...]}`, as for `vllm bench serve`: its result, details included. With `"prompts": [[text,
          output tokens], ...]` these are sent, in that order, in place of its data set.
        - `{"count": [text, ...], "model": name, "trust_remote_code": bool}`: how many tokens each text has.
        - `{"replay": {turns, seed, base_url, served, request_s}, "model": ..., "trust_remote_code": ...}`: the result
          of a replay, in the same words.
        """
        if "arguments" in question:
            namespace = parser.parse_args([*question["arguments"], "--save-detailed", "--disable-tqdm"])
            with sending(question["prompts"]) if "prompts" in question else contextlib.nullcontext():
                return asyncio.run(main_async(namespace))
        if "count" in question:
            encode = tokenizer(question["model"], question["trust_remote_code"])
            return [len(encode(text).input_ids) for text in question["count"]]
        if "replay" in question:
            known = tokenizer(question["model"], question["trust_remote_code"])
            special = set(known.all_special_ids)
            usable = [token for token in range(known.vocab_size) if token not in special]
            return asyncio.run(against_server(question["replay"], usable))
        return {"ready": True}

    serve(answer)


@contextlib.contextmanager
def sending(prompts: list[tuple[str, int]]) -> Iterator[None]:
    """The benchmark's own reader of prompts needs pandas, which is not everywhere, changes their order and repeats
    them; so the samples are put in its place."""
    import vllm.benchmarks.serve as benchmark

    def samples(_arguments: Any, tokenizer: Any) -> list[Any]:
        return [
            benchmark.SampleRequest(
                prompt=text,
                prompt_len=len(tokenizer(text).input_ids),
                expected_output_len=output_tokens,
                request_id=str(number),
            )
            for number, (text, output_tokens) in enumerate(prompts)
        ]

    original, benchmark.get_samples = benchmark.get_samples, samples
    try:
        yield
    finally:
        benchmark.get_samples = original


if __name__ == "__main__":
    main()
