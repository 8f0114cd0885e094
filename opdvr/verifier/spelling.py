"""Bring the many spellings of one LaTeX answer to one, without changing what it says."""

import re
import unicodedata

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+",
        "＝": "=",
        "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
        "°": r"^\circ ", "º": r"^\circ ", "√": r"\sqrt ", "∞": r"\infty ", "±": r"\pm ",
        "∓": r"\mp ",
        "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
        "≡": r"\equiv ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
        "ℂ": r"\mathbb{C}", "⁄": "/", "∕": "/", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"',
        "，": ",", "、": ",", "；": ";", "：": ":", "（": "(", "）": ")", "［": "[", "］": "]",
        "｛": "{", "｝": "}", "％": r"\%", "。": ".", "⟨": "(", "⟩": ")",
        "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
        "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ",
        "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ",
        "ω": r"\omega ", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2007": " ", "\u200a": " ",
    }
    # Characters that are not seen, and control characters, say nothing.
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad")
    | {chr(code): None for code in range(32) if chr(code) not in "\t\n\r"}
    | {chr(0xFF10 + digit): str(digit) for digit in range(10)}
    | {
        sign: rf"\frac{{{top}}}{{{bottom}}}"
        for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
        for top, bottom in [unicodedata.normalize("NFKC", sign).split("\u2044")]
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = (
    "arcsinh|arccosh|arctanh|arcsin|arccos|arctan|arccot|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc"
    "|ln|log|exp|gcd|lcm|max|min|det"
)

_MONEY = {"€": "euros", "£": "pounds", "¥": "yen"}
# Words with which an opening does not say what the answer is.
_CHANGES = "not|never|except|twice|half|double|negative|square|inverse|reciprocal|wrong"
_START = r"=|\\approx|\\therefore|\\implies|\\(?:Long)?[Rr]ightarrow|\\to|\\because"

# In order: each line may rely on the ones before it.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        # Dress: sizes, colours, invisible spacing, fonts, delimiters of mathematics.
        (r"^\s*(\*{1,3})(.*)\1\s*$", r"\2"),
        (r"`|\\#|\\checkmark(?![A-Za-z])|\\\\\s*$", ""),
        # Thousands: 12\,345, 12{,}345, 12~345, 12\text{,}345.
        (r"(?<=\d)\s*(?:\\text\s*)?\{\s*,\s*\}\s*(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)(?:\\[,;: ]|~)\s*(?=\d{3}(?!\d))", ""),
        (r"\\text\s*\{\s*(\\\$\s*[\d.,]+)\s*\}", r"\1"),
        # Money: \$36 is 36 dollars. A plain $ only delimits mathematics.
        (r"\\\$\s*(-?[\d.,]+(?:\\?[,!]\s*\d{3})*|\\frac\{[^{}]*\}\{[^{}]*\})(?!\s*\\text)",
         r"\1\\text{ dollars}"),
        (r"([€£¥])\s*([\d.,]+)", lambda m: rf"{m[2]}\text{{ {_MONEY[m[1]]}}}"),
        (r"(?<=\d)\s*,\s*\\!\s*(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\[$!]|\$|\\(?:display|text|script)style(?![A-Za-z])", ""),
        (r"(?<!\\)\\[()]|^\s*\\\[|(?<!\\)\\\]\s*$", ""),
        (r"\\{1,2}(?:boxed|fbox|framebox)(?![A-Za-z])", ""),
        (r"\\(?:[hv]space\*?|phantom|color|label|tag)\s*\{[^{}]*\}", ""),
        (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\(?:bf|it|rm|large|Large|LARGE|huge|limits)(?![A-Za-z])",
         ""),
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"\\(?:l|big)?langle(?![A-Za-z])|\\lparen(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])|\\rparen(?![A-Za-z])", ")"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\[lr]vert(?![A-Za-z])", "|"),
        (r"\\(?:[dtc]|nice|x|s)frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:thin|med|thick|neg|neg?thin)space(?![A-Za-z])", r"\\,"),
        (r"(?<!\\text)\{\s*([,:])\s*\}", r"\1"),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r" {2,}", " "),
        (r"\\(?:text(?:bf|it|rm|normal|up|sf|tt|sc)|[mh]box|mathrm|operatorname\*?)\s*\{",
         r"\\text{"),
        (r"\\(?:math(?:bf|it|sf|tt|normal)|boldsymbol|bm|underline|ensuremath|emph)\s*"
         r"\{((?:[^{}]|\{[^{}]*\})*)\}",
         r"\1"),
        # Names of functions, upright e, i and d, numbers, lists of letters: no \text needed.
        (rf"\\text\s*\{{\s*({_FUNCTIONS})\s*\}}(?=\s*[({{_\\^\[A-Za-z])", r"\\\1 "),
        (r"\\text\s*\{\s*([-+eid:]|[-+]?[\d.,]+)\s*\}", r"\1"),
        (r"\\text\s*\{\s*([A-Z](?:\s*(?:,|,?\s*and)\s+?[A-Z]|\s*,\s*[A-Z])+)\s*\}", r"\1"),
        (r"\\text\s*\{\s*([-+]?[\d.,]+)(\s+[A-Za-z][^{}]*)\}", r"\1\\text{\2}"),
        (r"(?<=\d)\s*(?:\\text\s*\{\s*)?([apAP])\.?\s*[mM]\.?\s*\}?\s*$",
         lambda m: rf"\text{{{m[1].lower()}m}}"),
        (r"\\text\s*\{([^{}^]*)\^\s*\{(-?\d)\}", r"\\text{\1^\2"),
        (r"^\s*\\text\s*\{\s*([A-Za-z])\s*\}\s*$", r"\1"),
        (r"\\Bbb(?![A-Za-z])", r"\\mathbb"),
        (r"(?:\\text\s*\{\s*|^\s*)(?:[Tt]he\s+set\s+of\s+)?[Aa]ll\s+real(?:s|\s+numbers?)\s*(?:\}|$)",
         r"\\mathbb{R}"),
        (r"(?:\\text\s*\{\s*|^\s*)(?:[Tt]he\s+)?[Ee]mpty\s+set\s*(?:\}|$)", r"\\emptyset "),
        (r"\\mathbb\s*\{?R\}?\s*(?:-|\\backslash)\s*(?=\\\{)", r"\\mathbb{R}\\setminus "),
        # One spelling for what has several.
        (r"\{([^{}\\]{1,60})\\choose([^{}\\]{1,60})\}", r"\\binom{\1}{\2}"),
        (r"\\log(?![A-Za-z])(?!\s*_)", r"\\ln "),
        (r"\\[lr]Vert(?![A-Za-z])", r"\\|"),
        (r"\\bar(?![A-Za-z])", r"\\overline"),
        (r"\\(overline|vec|hat|tilde)\s*([A-Za-z])(?![A-Za-z])", r"\\\1{\2}"),
        (r"\\frac\s*(\\[a-z]+)\s*(\d|\{)(?!\d*\}\s*\{)", r"\\frac{\1}\2"),
        (r"(?<!\\text)\{\s*([-+])\s*\}", r"\1"),
        (r"\s*\\text\s*\{\s*\(?\s*(?:in\s+)?base[\s-]*(\d+)\s*\)?\s*\}", r"_{\1}"),
        (r"\\log\s*_\s*\{?\s*e\s*\}?(?![A-Za-z])", r"\\ln "),
        (r"\\(max|min|gcd|lcm)\s*\\\{([^{}]*)\\\}", r"\\\1(\2)"),
        (r"\(?\s*\\(?:pmod|bmod|mod|text\s*\{\s*mod\s*\})\s*\{?\s*(\w+)\s*\}?\s*\)?",
         r" \\pmod{\1}"),
        (r"\\colon(?![A-Za-z])|(?<=\d)\s*\\text\s*\{\s*to\s*\}\s*(?=\d)", ":"),
        (r"\(\s*(\w+)\s*\)\s*_", r"\1_"),
        (r"\(([^()]*,[^()]*)\)\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?\s*$", r"(\1)"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\infin(?![A-Za-z])|(?:\\text\s*\{\s*|^\s*)infinity\s*(?:\}|$)", r"\\infty"),
        (r"\\(le|ge)q(?:slant)?(?![A-Za-z])", r"\\\1 "),
        (r"\\neq(?![A-Za-z])|\\not\s*=|!=", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*([\d.]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*[)}]?",
         r"\1(\\frac{\2\\pi }{180})"),
        # 336^\circ: the mark is a unit behind a value, and nothing inside one.
        (r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z]))\s*"
         r"(?=$|[,;)\]=<>.]|\\[}\]]|\\text|\\(?:le|ge|cup|approx|pm)(?![A-Za-z]))",
          r"\\text{ degrees}"),
        (r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", ""),
        # \text{The answer is } 5, \text{Answer: 5}, Answer: 5, = 5
        (r"^\s*\\text\s*\{\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+)?[Aa]nswer\s*(?:\s(?:is|are)\b|:)\s*([^{}]+?)"
         r"[\s.]*\}", r"\1"),
        (rf"^\s*\\text\s*\{{(?![^{{}}]*\b(?i:{_CHANGES})\b)[^{{}}]*\b(?:is|are|equals|=|:)\s*:?\s*"
         r"\}\s*:?\s*(?=\S)", ""),
        (r"^\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+)?[Aa]nswer\s*(?:\s(?:is|are)\b|:|=)\s*:?\s*(?=\S)", ""),
        (rf"^\s*(?:(?:{_START})\s*)+(?=[^A-Za-z\s])", ""),
        (rf"^\s*(?:(?:{_START})\s+)+(?=\S)|^\s*=\s*(?=\S)", ""),
        # numpy and plain text as programs print them.
        (r"(?<![A-Za-z\\])(?:np|math)\.(pi|sqrt|exp|log|a?r?c?(?:sin|cos|tan))(?![A-Za-z])",
         r"\\\1 "),
        (r"(?<![A-Za-z\\])(sqrt|pi)(?![A-Za-z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\*\*(?=\s*[-\d({A-Za-z])", "^"),
        # 4.5e33: LaTeX parsers read the e as Euler's number.
        (r"(^|[(\[,{=]|\\times|\\cdot)(\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([-+]?\d+)(?!\w)",
         r"\1\2\\times 10^{\3}"),
        (r"\^\s*\{?\s*\\prime\s*\}?", "'"),
        (r"\s+", " "),
    ]
]  # fmt: skip


def _without_outer_braces(text: str) -> str:
    while text.startswith("{") and text.endswith("}"):
        depth = 0
        for token in re.finditer(r"\\.|[{}]", text):
            depth += {"{": 1, "}": -1}.get(token.group(), 0)
            if depth == 0:
                break
        if token.end() < len(text):
            break
        text = text[1:-1].strip()
    return text


# What follows an answer as a remark on where it holds.
_REMARK = re.compile(
    r"(?<=\S)\s?,?\s?\(?\s?(?:\\text\s?\{\s?\(?(?:since|because|where|for (?:all|every|any|each))\b"
    r"|\\forall(?![A-Za-z])).*$"
)
# A second value, another quantifier or the end of a set: then it is no remark.
_NO_REMARK = re.compile(
    r"[,;]|\\\}|otherwise|elsewhere|else|\b(?:and|or)\b|\\(?:exists|neg|lnot|forall.*\\forall)(?![A-Za-z])"
)


def without_remark(text: str) -> str:
    """A tidied answer without "for all x", "since ..." and the like at its end."""
    remark = _REMARK.search(text)
    if remark is None or _NO_REMARK.search(remark.group().lstrip(" ,")):
        return text
    head = text[: remark.start()].rstrip(" ,(")
    return text if _NO_REMARK.search(re.sub(r"[,;]", "", head)) else head


def tidy(text: str) -> str:
    """LaTeX of one answer in one spelling; marks that only dress it are gone. Idempotent."""
    text = re.sub(r"\s+", " ", text)  # first: long runs of spaces would cost the rules below dearly
    text = re.sub(
        r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda run: f"^{{{run.group().translate(_SUPERSCRIPTS)}}}", text
    )
    text = re.sub(r"[₀-₉]+", lambda run: f"_{{{run.group().translate(_SUBSCRIPTS)}}}", text)
    text = text.translate(_UNICODE)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    # A factorial, a prime and a closing bracket belong to the answer; a full stop does not.
    text = text.strip().rstrip(".;,: ").strip()
    return _without_outer_braces(text)
