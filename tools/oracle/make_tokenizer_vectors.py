#!/usr/bin/env python3
"""tests/vectors/tokenizer/: ids and texts from the Hugging Face `tokenizers` package.

    make_tokenizer_vectors.py                 trains the small tokenizers and writes their vectors
    make_tokenizer_vectors.py FILE NAME       vectors of an existing tokenizer.json, as
                                              tests/vectors/tokenizer/NAME/vectors.json
    make_tokenizer_vectors.py --check         encodes again and compares with what is stored

tests/vectors/tokenizer/<name>/tokenizer.json is the tokenizer (laguna-nano's own lies under
models/), vectors.json holds

    tokenizer   path from the repository's root
    texts       one object a text; every text is UTF-8 as hex, since texts hold NUL and controls
        about             a label for people
        text              the text
        ids               encode(text, add_special_tokens=False): added tokens are recognised
        ids_with_special  encode(text, add_special_tokens=True): and the post-processor's template
        ids_special_plain encode_special_tokens = True: tokens flagged special are ordinary pieces,
                          other added tokens are still recognised
        ids_plain         no added token exists: the rule for text that a user wrote
        decoded           decode(ids, skip_special_tokens=False); decoded_skip with True
        token_bytes       bytes of each token of ids; together they are decoded's bytes unless
                          those are invalid UTF-8
        stream            what a streaming decoder has appended after each token of ids (characters
                          as soon as they are complete), and last what finishing adds
    sequences   objects {about, ids, decoded, decoded_skip, token_bytes, stream}: ids that no text
                gives, with invalid UTF-8, which becomes U+FFFD

ids_plain comes from the same file without added_tokens, post_processor and the added tokens'
entries in the vocabulary.

The package decodes an added token whose every character stands in the byte map (for example one
with an e acute) as mapped bytes, not as its content; the small tokenizers have no such token.
Needs tokenizers 0.23.
"""

import codecs
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

REPO = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
ROOT = os.path.join(REPO, "tests", "vectors", "tokenizer")

PROSE = """It was a cold morning, and the engine wouldn't start; they'd tried twice, hadn't they? "No," she
said, "it's the belt -- I'll fetch another." He'd counted 1, 22, 333 and 4444 of them by 10:45.
  for (int i = 0; i < 128; i++) { total += values[i] * weights[i]; }   // indentation matters
\tif (total > 3.14159e-2) { return total / count; }

Die Grünanlage lag still. L'été dernier, où étions-nous ? ¿Qué pasó, niño? Быстрая лиса прыгает.
The the the there then them these those; and and hand band sand land; ing ing thing nothing king.
"""

TEXTS = [
    ("empty", ""),
    ("one space", " "),
    ("one letter", "a"),
    ("sentence", "The quick brown fox jumps over the lazy dog."),
    ("leading space", " leading and trailing "),
    ("contractions", "I'll we've they'd it's don't I'M YOU'RE he'S 'tis 'LL"),
    ("prose", PROSE),
    ("emoji", "😀😃 🎉🎊 ok👍🏽👌🏿 ❤️ ☎️ 1️⃣2️⃣"),
    ("emoji glued to words", "go🚀now🚀🚀 a😀b c 😀"),
    ("ZWJ families", "👨‍👩‍👧‍👦 👩🏾‍🚀 🏳️‍🌈 👨‍❤️‍💋‍👨"),
    ("flags", "🇫🇷🇯🇵🇺🇳🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇩"),
    ("CJK", "日本語のテキスト、漢字とカタカナ。中文字符测试！한국어 문장입니다. 𠮷野家"),
    ("CJK with spaces and digits", "第 1 章　全角空白 １２３ abc漢字123"),
    ("combining marks", "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343a\u0329l\u0321 n\u0303 \u0301lone"),
    ("NFC and NFD of the same", "café cafe\u0301 Å A\u030a Å \uac00 \u1100\u1161"),
    ("compatibility forms", "ﬁ ﬂ ½ ² ™ ㎏ Ⅳ ﷺ"),
    ("right to left", "שלום עולם مرحبا بالعالم \u200f\u202bmixed\u202c 123 עברית"),
    ("Indic and Thai", "नमस्ते दुनिया ภาษาไทย வணக்கம் ក្រុង"),
    ("CRLF", "line one\r\nline two\r\n\r\nline four\r\n"),
    ("lone CR", "a\rb\r\rc\r \r\td\r"),
    ("mixed line ends", "x\n\r\n\r\r\n\n y\r\n \n\tz"),
    ("newlines", "\n"),
    ("many newlines", "a\n\n\n\n\n\n\n\nb\n\n"),
    ("newlines and spaces", "a \n  \n   \n    b\n    \n"),
    ("spaces 2..9", "a  b   c    d     e      f       g        h         i"),
    ("spaces only", " " * 37),
    ("spaces at the end", "end" + " " * 12),
    ("spaces at the start", " " * 11 + "start"),
    ("tabs", "\t\tx\t\t\ty \t z\t \t"),
    ("form feed and vertical tab", "a\fb\vc \f \v d"),
    ("Unicode spaces", "a\u00a0b\u2003c\u2009\u200ad\u3000e\u1680f\u2028g\u2029h\u0085i\u202fj\u205fk"),
    ("zero widths", "a\u200bb\u200cc\u200dd\u2060e\ufefff \u200b g"),
    ("BOM first", "\ufeffBOM"),
    ("digits", "1 12 123 1234 12345 1234567890123456789012345678901234567890"),
    ("digits and letters", "a1b22c333 x86_64 3.14 1,000,000 0xDEADBEEF 10e-5 v2"),
    ("other numerals", "١٢٣ ४५६ ௧௨ Ⅷ ½ ³ ① ㊿ 𝟜𝟝 ⅓x"),
    ("punctuation", "!!! ... ??!? --- === *** ((())) [[]] {{}} <<>> `~@#$%^&*_+|\\;:'\",./"),
    ("punctuation then newlines", "end.\n\nnext!?\r\n\"quote\"\n...\n\n\n-- x"),
    ("apostrophes", "' '' ''' 's' 't 're’s it’s o'clock '\n's"),
    ("underscores and hyphens", "snake_case kebab-case __init__ a--b a_1_b _ __"),
    ("code", "def f(x):\n    return {k: v for k, v in x.items() if v != 0}\n\n\n# end\n"),
    ("JSON", '{"a": [1, 2.5, -3e10, null, true], "b\\n": "\\u00e9"}'),
    ("HTML", "<p class='x'>a &amp; b</p><!-- c --><br/>"),
    ("URL", "https://example.org/a/b?c=d&e=%20f#g user@example.org"),
    ("mathematics", "∀x∈ℝ: √x²≥0 ∧ π≈3.14159 → ∑ᵢ₌₁ⁿ i = n(n+1)⁄2 𝒜𝔅ℂ"),
    ("controls", "".join(chr(c) for c in range(1, 32)) + "\x7f"),
    ("NUL", "a\x00b\x00\x00c"),
    ("NUL only", "\x00"),
    ("C1 controls", "".join(chr(c) for c in range(0x80, 0xA0))),
    ("Latin-1", "".join(chr(c) for c in range(0xA0, 0x100))),
    ("Latin extended", "ŁódŹ ŒuvreǅŽ İıſß ẞ Ĳ ŉ ǆǅǄ"),
    ("last code points", "\ud7ff\ue000\uf8ff\ufffd\ufffe\uffff\U00010000\U0010fffd\U0010ffff"),
    ("replacement character", "a\ufffdb\ufffd\ufffd"),
    ("letters outside the BMP", "𝓗𝓮𝓵𝓵𝓸 𐍈𐍉 𝔘𝔫𝔦 🜁 𐎀𐎁"),
    ("Laguna control tokens", "</assistant> 〈|EOS|〉 〈|CODE_START|〉x〈|CODE_END|〉 <think></think><user>hi</user>"),
    ("control token alone", "</assistant>"),
    ("EOS alone", "〈|EOS|〉"),
    ("control tokens glued", "x</assistant></assistant>〈|EOS|〉〈|EOS|〉y"),
    ("control tokens with spaces", "a </assistant> b  〈|EOS|〉  c"),
    ("broken control tokens", "</assistant 〈|EOS|> <|endoftext < mask> </ assistant> 〈EOS〉"),
    ("control tokens of other kinds", "<|endoftext|> <mask> a <mask>b  <mask>  c<r> d<r>  e"),
    ("single word", "[W] [W]x x[W] a[W]b [W]. ([W]) _[W] [W]\n[W]1"),
    ("stripping", "a  <l>  b<l>\n\t<l>c <r>  d<r>\n<r> e  <b>  f<b>g \n<b>\n h"),
    ("normalised tokens", "\u0439! \u0438\u0306! x\u0439!\u0438\u0306 e\u0301<n> <n> x<n>\u0301 e<n>\u0301"),
    ("a whole turn", "〈|EOS|〉<system>You help.</system>\n<user>Why?</user>\n<assistant></think>Because.</assistant>\n"),
    ("very long word", "a" * 700),
    ("very long mixed word", "abcdefghij" * 60),
    ("long word of one CJK character", "漢" * 120),
    ("long digits", "7" * 300),
    ("long punctuation", "=" * 260 + "-" * 77),
    ("long newlines", "\n" * 130 + "x"),
    ("long spaces in text", "a" + " " * 200 + "b"),
    ("long emoji", "🤖" * 60),
    ("alternating", "aA1 " * 40),
    ("mixed scripts glued", "abcабв漢字あいう한글ابج123٤٥٦"),
    ("title case", "iPhone eBay McDonald ALLCAPS CamelCaseWordsHere"),
    ("spaces before punctuation", "a , b . c ! d ? ( e ) ' f '"),
    ("no-break mix", "a \u00a0b\u00a0 c \u00a0\u00a0 d\u00a0\n"),
    ("soft hyphen and joiners", "co\u00adoperate नि\u200dक\u200cष"),
    ("variation selectors", "☺︎☺️ 龍\U000e0100 ⚡︎"),
    ("surrogate-looking escapes", "\\ud83d\\ude00 \\x00 \\n"),
]


def random_texts(count=60):
    rng = random.Random(11)
    pools = [
        "abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789", "     ", "\n\n\r\t ", "'\".,;:!?-_()[]<>/|",
        "éüñçßøåÆ", "漢字仮名", "😀🎉👍🚀", "\u0301\u0308\u200d\ufe0f\u00a0\u3000", "אבגابج", "\x00\x01\x1b\x7f\x85",
    ]
    out = []
    for i in range(count):
        weights = [rng.random() ** 3 for _ in pools]
        text = "".join(rng.choice(rng.choices(pools, weights)[0]) for _ in range(rng.randint(1, 60)))
        for piece in ("</assistant>", "〈|EOS|〉", "<mask>", "[W]"):
            if rng.random() < 0.15:
                at = rng.randint(0, len(text))
                text = text[:at] + piece + text[at:]
        out.append((f"random {i}", text))
    return out


# --- the small tokenizers ------------------------------------------------------------------------


def trained(pre_tokenizer, normalizer=None, size=420, special=(), **model):
    t = Tokenizer(BPE(**model))
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = [text for about, text in TEXTS if not about.startswith(("long", "very"))]
    t.train_from_iterator([PROSE * 4] + words, trainer)
    return t


def template(token, token_id):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, token_id)])


def merges_as_strings(text):
    value = json.loads(text)
    value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    return json.dumps(value, ensure_ascii=False)


def gpt2_regex():
    """ByteLevel with GPT-2's own pattern, merges as "a b" strings, every kind of added token,
    a ByteLevel post-processor (adds nothing)."""
    t = trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens(["<|endoftext|>", AddedToken("<mask>", lstrip=True, special=True)])
    t.add_tokens(
        [
            AddedToken("[W]", single_word=True, normalized=False),
            AddedToken("<l>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("<b>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<n>", normalized=True),
            AddedToken("</assistant>", normalized=False),
        ]
    )
    return merges_as_strings(t.to_str())


def prefix_space():
    """ByteLevel with a prefix space, merges as pairs, NFC, ignore_merges, a BOS template, added
    tokens that are matched in normalised text."""
    t = trained(
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), normalizers.NFC(), ignore_merges=True
    )
    value = json.loads(t.to_str())
    # whole words that no merge makes: ignore_merges finds them, ordinary merging would not
    for word in ("Ġlazy", "ĠCamelCaseWordsHere", "Ġ1234"):
        value["model"]["vocab"].setdefault(word, len(value["model"]["vocab"]))
    t = Tokenizer.from_str(json.dumps(value))
    t.add_special_tokens(["<s>", AddedToken("〈|EOS|〉", special=True, normalized=True)])
    t.add_tokens(
        [
            AddedToken("\u0439!", normalized=True),
            AddedToken("<n>", normalized=True, single_word=True),
            AddedToken("[W]", normalized=True, lstrip=True),
            AddedToken("</assistant>", normalized=False),
        ]
    )
    t.post_processor = template("<s>", t.token_to_id("<s>"))
    return t.to_str()


LAGUNA = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def laguna_style():
    """The two Split stages of laguna.md section 9, 32 control pieces first in the vocabulary, ids 2,
    9 and 24 as in the real model (24 not flagged special), BOS template, merges as pairs."""
    pieces = [f"〈|X{i}|〉" for i in range(32)]
    pieces[2], pieces[9], pieces[12], pieces[24] = "〈|EOS|〉", "〈|PAD|〉", "〈|MASK|〉", "</assistant>"
    pieces[20:24] = ["〈|CODE_START|〉", "〈|CODE_END|〉", "<assistant>", "</think>"]
    t = trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated"),
                pre_tokenizers.Split(Regex(LAGUNA), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        size=460,
        special=pieces,
    )
    t.post_processor = template("〈|EOS|〉", 2)
    value = json.loads(t.to_str())
    for token in value["added_tokens"]:
        if token["content"] in ("</assistant>", "<assistant>", "</think>"):
            token["special"] = False
    return json.dumps(value, ensure_ascii=False)


def digits_split():
    """Digits one by one, Split MergedWithPrevious on a literal and on a pattern, ByteLevel without
    its pattern; merges as strings; Sequence of post-processors."""
    t = trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Split(" ", "merged_with_previous"),
                pre_tokenizers.Split(Regex(r"[\r\n]+"), "merged_with_previous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    t.add_special_tokens(["<|endoftext|>", "〈|EOS|〉"])
    t.add_tokens([AddedToken("</assistant>", normalized=False), AddedToken("<mask>", normalized=False)])
    t.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template("<|endoftext|>", t.token_to_id("<|endoftext|>"))]
    )
    return merges_as_strings(t.to_str())


def other_splits():
    """The rest of Split: MergedWithNext, Contiguous, Removed, invert; digits in runs; a Sequence of
    normalizers. A reader may refuse this file as unsupported instead."""
    t = trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex(r"\s"), "merged_with_next"),
                pre_tokenizers.Split(Regex(r"[!?.]"), "contiguous"),
                pre_tokenizers.Split("|", "removed"),
                pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        normalizers.Sequence([normalizers.NFC()]),
    )
    t.add_tokens([AddedToken("</assistant>", normalized=False)])
    return t.to_str()


SMALL = {
    "gpt2-regex": gpt2_regex,
    "prefix-space": prefix_space,
    "laguna-style": laguna_style,
    "digits-split": digits_split,
    "other-splits": other_splits,
}


# --- vectors -------------------------------------------------------------------------------------


def byte_of_char():
    """GPT-2's map from printable characters back to bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {chr(b): b for b in keep}, 0
    for b in range(256):
        if b not in keep:
            table[chr(256 + extra)] = b
            extra += 1
    return table


BYTE = byte_of_char()


class Reference:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        value = json.loads(text)
        self.added = {a["id"]: a for a in value["added_tokens"]}
        # The package numbers added tokens itself; a file whose ids it would change proves nothing.
        for token_id, token in self.added.items():
            assert Tokenizer.from_str(text).token_to_id(token["content"]) == token_id, token
        self.tokenizer, self.special_plain = Tokenizer.from_str(text), Tokenizer.from_str(text)
        self.special_plain.encode_special_tokens = True
        for a in value["added_tokens"]:
            value["model"]["vocab"].pop(a["content"], None)
        value["added_tokens"], value["post_processor"] = [], None
        self.plain = Tokenizer.from_str(json.dumps(value))

    def token_bytes(self, token_id):
        if token_id in self.added:
            return self.added[token_id]["content"].encode()
        return bytes(BYTE[c] for c in self.tokenizer.id_to_token(token_id))

    def decoded(self, ids):
        pieces = [self.token_bytes(i) for i in ids]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stream = [decoder.decode(p) for p in pieces] + [decoder.decode(b"", final=True)]
        whole = self.tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(stream) == whole, (ids, stream, whole)
        return {
            "decoded": whole.encode().hex(),
            "decoded_skip": self.tokenizer.decode(ids, skip_special_tokens=True).encode().hex(),
            "token_bytes": [p.hex() for p in pieces],
            "stream": [s.encode().hex() for s in stream],
        }

    def text(self, about, text):
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        ids_plain = self.plain.encode(text, add_special_tokens=False).ids
        assert not self.added.keys() & set(ids_plain), text
        return {
            "about": about,
            "text": text.encode().hex(),
            "ids": ids,
            "ids_with_special": self.tokenizer.encode(text, add_special_tokens=True).ids,
            "ids_special_plain": self.special_plain.encode(text, add_special_tokens=False).ids,
            "ids_plain": ids_plain,
            **self.decoded(ids),
        }

    def sequences(self):
        rng = random.Random(3)
        known = sorted(self.tokenizer.get_vocab(with_added_tokens=True).values())
        single = {self.token_bytes(i): i for i in known if len(self.token_bytes(i)) == 1}
        raw = {
            "incomplete at the end": "61f09f98",
            "continuation bytes first": "80bf61",
            "overlong and invalid": "c0afe080aff08080af",
            "surrogate": "eda080edb08061",
            "beyond the last code point": "f4908080f5ff",
            "cut by ASCII": "e228f09f28c3",
            "cut by another start": "e2e282acf0f09f9880",
            "lone start bytes": "c2c3dfe0eff0f4",
            "FE FF": "fefffe",
        }
        out = []
        for about, text in raw.items():
            ids = [single[bytes([b])] for b in bytes.fromhex(text)]
            out.append({"about": about, "ids": ids, **self.decoded(ids)})
        for i in range(12):
            ids = [rng.choice(known) for _ in range(30)]
            if self.added and i % 2:
                ids[rng.randrange(30)] = rng.choice(sorted(self.added))
            out.append({"about": f"random {i}", "ids": ids, **self.decoded(ids)})
        return out


def vectors(path):
    reference = Reference(path)
    return {
        "tokenizer": os.path.relpath(path, REPO),
        "texts": [reference.text(about, text) for about, text in TEXTS + random_texts()],
        "sequences": reference.sequences(),
    }


def write(path, name):
    folder = os.path.join(ROOT, name)
    os.makedirs(folder, exist_ok=True)
    value = vectors(path)
    with open(os.path.join(folder, "vectors.json"), "w", encoding="utf-8") as f:
        f.write('{"tokenizer": ' + json.dumps(value["tokenizer"]))
        for key in ("texts", "sequences"):
            f.write(f',\n"{key}": [\n' + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value[key]) + "\n]")
        f.write("}\n")
    differ = sum(t["ids"] != t["ids_plain"] for t in value["texts"])
    print(name, len(value["texts"]), "texts,", differ, "where added tokens change the ids")


def main():
    if sys.argv[1:] == ["--check"]:
        good = True
        for name in sorted(os.listdir(ROOT)):
            with open(os.path.join(ROOT, name, "vectors.json"), encoding="utf-8") as f:
                stored = json.load(f)
            same = vectors(os.path.join(REPO, stored["tokenizer"])) == stored
            good = good and same
            print(name, "equal" if same else "DIFFERS")
        raise SystemExit(0 if good else 1)
    if len(sys.argv) == 3:
        return write(os.path.abspath(sys.argv[1]), sys.argv[2])
    for name, make in SMALL.items():
        path = os.path.join(ROOT, name, "tokenizer.json")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(json.dumps(json.loads(make()), ensure_ascii=False, indent=1) + "\n")
        write(path, name)


if __name__ == "__main__":
    main()
