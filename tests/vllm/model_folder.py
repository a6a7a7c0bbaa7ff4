"""Makes a model of a few MB that vLLM serves: `python model_folder.py CORPUS FOLDER`, run by the Python that has vLLM.

Writes FOLDER/model (configuration, tokenizer, chat template; no weights: vLLM draws them with
`--load-format dummy`, the same ones in every process) and FOLDER/adapters/NAME, LoRA adapters of
random numbers in PEFT's format. The same corpus gives the same tokenizer. Answers are nonsense; what
counts is that prompts, caches, gauges and streams are vLLM's own.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import ByteLevelBPETokenizer, Tokenizer

ADAPTERS = ("both", "one")
HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, POSITIONS, RANK = 512, 4, 8, 4, 4096, 32768, 8
BEGIN, END, PAD = "<s>", "</s>", "<pad>"

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Each message under its role, in order: a conversation's next turn begins with the tokens of this one."""


def write_tokenizer(corpus: Path, folder: Path) -> Tokenizer:
    """A byte-level BPE tokenizer of the corpus' own words."""
    trained = ByteLevelBPETokenizer()
    trained.train([str(corpus)], vocab_size=VOCABULARY, min_frequency=2, special_tokens=[BEGIN, END, PAD])
    trained.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def write_model(corpus: Path, folder: Path) -> None:
    """A Llama without its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(corpus, folder)
    begin, end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": POSITIONS,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": begin,
        "eos_token_id": end,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    # Greedy: the same prompt has the same answer, so two runs of one workload ask the same.
    generation = {"do_sample": False, "temperature": 0.0, "bos_token_id": begin, "eos_token_id": end}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))


def write_adapter(name: str, folder: Path) -> None:
    """Low-rank changes of the query and value projections."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(name.encode()))
    outputs = {"q_proj": HIDDEN, "v_proj": HIDDEN // HEADS * KV_HEADS}
    weights = {}
    for layer in range(LAYERS):
        for projection, width in outputs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            weights[f"{at}.lora_A.weight"] = rng.normal(0, 0.02, (RANK, HIDDEN)).astype(np.float32)
            weights[f"{at}.lora_B.weight"] = rng.normal(0, 0.02, (width, RANK)).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "model",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outputs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    corpus, folder = Path(sys.argv[1]), Path(sys.argv[2])
    write_model(corpus, folder / "model")
    for name in ADAPTERS:
        write_adapter(name, folder / "adapters" / name)


if __name__ == "__main__":
    main()
