"""Write a Qwen3-8B-sized model and a two-layer DSpark draft without weights, for `load-format: dummy`; loads nothing.

Run by the interpreter of the engine: make_dummy_qwen3.py FOLDER makes FOLDER/target and FOLDER/draft. The sizes are
those of Qwen3-8B's config.json; the further keys of the draft are what vLLM 0.25.1's Qwen3DSparkModel reads.
"""

import json
import sys
import sysconfig
from pathlib import Path

TARGET = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DRAFT = {
    "architectures": ["Qwen3DSparkModel"],
    "num_hidden_layers": 2,
    "markov_rank": 64,
    "block_size": 7,
    "draft_vocab_size": TARGET["vocab_size"],
    "dflash_config": {"target_layer_ids": [1, 17, 33], "mask_token_id": 3},
}


def main(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library = Path(sysconfig.get_path("stdlib"))
    tokenizer.train([str(path) for path in sorted(library.glob("*.py"))[:60]], trainer)
    for name, config in (("target", TARGET), ("draft", {**TARGET, **DRAFT})):
        (folder / name).mkdir(parents=True, exist_ok=True)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
        fast.save_pretrained(folder / name)
        (folder / name / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
