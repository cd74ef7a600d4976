"""A planted defect for the real engine: every few decode steps the logits are those of the neighbouring tokens."""

from vllm.v1.sample.logits_processor import LogitsProcessor

EVERY = 5


class CorruptDecode(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self._steps = 0

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        self._steps += 1
        return logits.roll(1, dims=-1) if self._steps % EVERY == 0 else logits
