"""A planted defect for the real engine: every token is one that has no text."""

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

BEGIN_OF_TEXT = 0


class OnlySpecial(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        pass

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        forced = torch.full_like(logits, -1e4)
        forced[:, BEGIN_OF_TEXT] = 0.0
        return forced
