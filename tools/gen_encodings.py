#!/usr/bin/env python3
"""Records what the Python `tokenizers` package makes of texts that are easy to get wrong.

    pip install tokenizers==0.23.3
    tools/gen_encodings.py

Reads crates/strata-engine/tests/data/strata-mini/tokenizer.json and writes encodings.json beside it, a list of
    text       what was encoded
    ids        its ids, the names of special tokens being those tokens
    plain_ids  its ids, the names of special tokens being text
    words      by name of the pattern, the words that it cuts the text into
"""

import json
import pathlib

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

HERE = pathlib.Path(__file__).resolve().parent.parent / "crates/strata-engine/tests/data/strata-mini"

PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces before and after  ",
    "I'm sure they'll say it's HERS, they'VE done IT'S, x'\u017f y'\u212a",
    "digits 1234567890, 3.14159, 1,000,000 and ½ Ⅳ ٣٤٥ ২০২৬",
    "Les élèves français n'ont pas où aller. Größe, naïve, coöperate",
    "Ein Wort: Donaudampfschifffahrtsgesellschaftskapitän",
    "Съешь ещё этих мягких французских булок, да выпей чаю",
    "敏捷的棕色狐狸跳过了懒狗。「引号」、全角！？",
    "いろはにほへと ちりぬるを カタカナ が か\u3099",
    "다람쥐 헌 쳇바퀴에 타고파 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "एक छोटी कहानी हिन्दी में क्\u200dष",
    "ภาษาไทยไม่มีช่องว่าง",
    "نص عربي مع تَشْكِيل ولا مشكلة",
    "עִבְרִית עם נִקּוּד",
    "e\u0301 a\u0308\u0323 n\u0303 o\u0302\u0301 \u0301alone \u0301\u0301\u0301",
    "x\u20d7 + y\u0338 = z\u0305, q\u0307\u0323 against q\u0323\u0307",
    "family 👨\u200d👩\u200d👧\u200d👦, flag 🏳\ufe0f\u200d🌈 🇯🇵, skin 👍🏽👍🏿, keycap 1\ufe0f\u20e3, 🦀🦀🦀",
    "def f(x: int) -> int:\n    # square\n\treturn x**2  # done\n\n\nprint(f(3))\n",
    "fn main() {\n    let v: Vec<u8> = (0..=255).collect();\n    println!(\"{v:?}\");\n}\n",
    "<div class=\"a b\">&amp; <!-- c --></div>",
    "{\"key\": [1, 2.5e-3, null, true], \"nested\": {\"x\": \"\\u00e9\"}}",
    "line one\r\nline two\r\n\r\nline four\rold mac\r\r",
    "tabs\t\tand \t mixed \t\t spaces     then text",
    "trailing spaces      \n      leading spaces\n   \n   \n",
    "space" + " " * 37 + "run" + " " * 64,
    "\n\n\n\n\nfive newlines \n \n \n",
    "nbsp\u00a0here\u2003em\u3000ideographic\u2028line\u2029para\u0085nel",
    "zero\u200bwidth\ufeffbom\u00adsoft",
    "control \x00 \x01 \x07 \x1b[31mred\x1b[0m \x7f \x9f",
    "---- ==== //// ****\n\n.... ?!?! …—–",
    "a.b.c->d::e #[cfg(test)] @user $HOME %d ^_^ ~/.x",
    "ﬁ ﬂ ligatures, Å (angstrom) Å Å, Ω Ω, 가 \u1100\u1161",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𓀀𓁐 𒀀",
    "\U0010ffff \ue000 \ufffd \ufffe",
    "antidisestablishmentarianism" * 3,
    "a" * 300,
    "aB" * 100 + "\U0001f600" * 20,
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "x<|endoftext|>y <|im_end|> z<|im_end|><|im_end|>",
    "<|im_start|><|im_star|> <|im_start |> <|IM_START|> <|im_start|",
    "e\u0301<|im_end|>\u0301e  <|im_end|>  ",
    "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
]


def main():
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    plain = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    plain.encode_special_tokens = True
    splits = {name: Split(Regex(pattern), "isolated") for name, pattern in PATTERNS.items()}

    cases = [
        {
            "text": text,
            "ids": tokenizer.encode(text, add_special_tokens=False).ids,
            "plain_ids": plain.encode(text, add_special_tokens=False).ids,
            "words": {
                name: [word for word, _ in split.pre_tokenize_str(text)] if text else []
                for name, split in splits.items()
            },
        }
        for text in TEXTS
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "encodings.json").write_text(f"[\n{lines}\n]\n")


main()
