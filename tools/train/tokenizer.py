"""The byte-level BPE of the small models, in the real tokenizer.json format."""

import json
import os

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

EOS, PAD, MASK, END_OF_TURN = 2, 9, 12, 24

# Ids 0..24. A name in <...> is a chat tag: matched like any added token, not flagged special.
NAMED = {
    0: "〈|UNK|〉", 1: "〈|CODE_START|〉", EOS: "〈|EOS|〉", 3: "〈|CODE_END|〉", PAD: "〈|PAD|〉",
    MASK: "〈|MASK|〉", 16: "<system>", 17: "</system>", 18: "<user>", 19: "</user>",
    20: "<think>", 21: "</think>", 23: "<assistant>", END_OF_TURN: "</assistant>",
}
CONTROL = [NAMED.get(i, f"〈|RESERVED_{i}|〉") for i in range(25)]

NEWLINE_RUNS = r"[^\n]+|[\n]+"
WORDS = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
         r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(texts, vocab_size):
    """Train on the texts; returns the text of tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(NEWLINE_RUNS), "isolated"),
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CONTROL[EOS]} $A", pair=f"{CONTROL[EOS]} $A $B:1",
        special_tokens=[(CONTROL[EOS], EOS)])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=CONTROL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = not token["content"].startswith("<")
    document["model"]["vocab"] = dict(sorted(document["model"]["vocab"].items(),
                                             key=lambda item: item[1]))
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def configuration(cfg):
    """tokenizer_config.json of the same model."""
    return {
        "add_bos_token": True,
        "bos_token": CONTROL[EOS],
        "clean_up_tokenization_spaces": False,
        "eos_token": CONTROL[EOS],
        "mask_token": CONTROL[MASK],
        "model_max_length": cfg["max_position_embeddings"],
        "pad_token": CONTROL[PAD],
        "tokenizer_class": "TokenizersBackend",
        "unk_token": CONTROL[0],
    }


def load(folder):
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def encode(tokenizer, text):
    """Ids without the leading id 2."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False)
