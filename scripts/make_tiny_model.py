"""Make a small Llama with random weights and a byte-level tokenizer; nothing is downloaded.

Run by the interpreter of the engine: make_tiny_model.py FOLDER. Seeded, so the weights are always the same; one that is
there is kept.
"""

import json
import sys
import sysconfig
from pathlib import Path

HIDDEN, LAYERS, HEADS, VOCABULARY, CONTEXT = 256, 4, 4, 2048, 2048


def main(folder: Path) -> None:
    if (folder / "model.safetensors").exists():
        print(f"{folder} is there")
        return
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
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
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    print(
        json.dumps({"model": str(folder), "parameters": sum(p.numel() for p in LlamaForCausalLM(config).parameters())})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
