"""Make a small Llama with random weights and a byte-level tokenizer; nothing is downloaded.

Run by the interpreter of the engine: make_tiny_model.py FOLDER [LAYERS]. Seeded, so the weights are always the same.
One that is there is kept if it was made like this and made whole; it appears under its name only when it is complete.
"""

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

HIDDEN, HEADS, VOCABULARY, CONTEXT = 256, 4, 2048, 2048
MADE_BY = "made_by.json"


def main(folder: Path, layers: int = 4) -> None:
    import transformers

    made_by = {
        "script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "transformers": transformers.__version__,
        "layers": layers,
    }
    mark = folder / MADE_BY
    if mark.exists() and json.loads(mark.read_text()) == made_by:
        print(f"{folder} is there")
        return
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    parameters = make(partial, layers)
    (partial / MADE_BY).write_text(json.dumps(made_by))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(json.dumps({"model": str(folder), "parameters": parameters}))


def make(folder: Path, layers: int) -> int:
    """Write it; the number of its parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library = Path(sysconfig.get_path("stdlib"))
    tokenizer.train([str(path) for path in sorted(library.glob("*.py"))[:60]], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        torch_dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
