"""Texts in many scripts, with what tokenizers stumble over: digits, spaces, line ends, marks, emoji, code."""

from __future__ import annotations

TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's 1,234.56 metres, isn't it? I'VE SEEN THEM'LL.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich: „Straße“ – 99 Luftballons!",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis. Où ça ? L'été 2024, à Noël…",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. 12 января 2023 года.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τα 3 μικρά γουρουνάκια.",
    "我能吞下玻璃而不伤身体。今天是2024年1月15日，天气很好！",
    "いろはにほへと ちりぬるを。カタカナも漢字も１２３混ざる文章です。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق ٣٤٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık bir gün.",
    "Kŕdeľ šťastných ďatľov učí pri ústí Váhu mĺkveho koňa obhrýzať kôru a žrať čerstvé mäso.",
    "🦙🚀 emoji 👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 skin ✅ done … 100%",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'\n\n\tif x >= 0x1F:  # comment\r\n\t\tprint(x ** 2)\n",
    "  leading,   several   spaces \t tabs\t\tand trailing   ",
    "\n\n\nline\n \n  ends\r\n\r\n",
    "https://example.org/a?b=c&d=%20#e mail@example.org C:\\dir\\file.txt ~/.config",
    "a\u00a0b\u2003c\u200bd\ufeffe \u2028 f",
    "∑_{i=1}^{n} x_i² ≈ ∫ f(x) dx → ∞ ± √2 · π",
    "x",
    " ",
    "00001111222233334444 7 77 777 7777 77777",
    "camelCase snake_case SCREAMING_CASE kebab-case XMLHttpRequest iPhone15ProMax",
    "'''\"\"\"```<<<>>>[[[]]]{{{}}}((()))--__==++",
)


def training_text() -> list[str]:
    """What small tokenizers learn from: every text, often enough that merges come about."""
    return [text for text in TEXTS for _ in range(3)]
