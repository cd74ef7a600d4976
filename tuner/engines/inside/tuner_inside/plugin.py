"""vLLM's general plug-in of ours: does nothing unless the environment asks for it, and never breaks an engine."""

import os


def register() -> None:
    """Called by vLLM in each of its processes, before a model is built."""
    if os.environ.get("TUNER_KERNEL_TABLE"):
        from tuner_inside import kernel_table

        kernel_table.load()
    if os.environ.get("TUNER_PATH_PROOF"):
        from tuner_inside import path_proof

        path_proof.install()
