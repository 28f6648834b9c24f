"""Reads C++ and CUDA sources for scripts/mutate.py: tokens without comments and preprocessor lines, brackets, and the functions with bodies.

It relies on the layout of clang-format: a binary operator has white space on both sides, while the brackets of a template, the star of a pointer and the
ampersands of a reference do not. So no types are needed to tell a comparison from a template.
"""
import bisect
import re

LEXER = re.compile(
    r"""(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)
    |(?P<space>\s+)
    |(?P<comment>//(?:[^\\\n]|\\.)*|/\*.*?\*/)
    |(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
    |(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<punctuation><=>|->\*|<<=|>>=|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
# Words whose parentheses are no parameters of a function that is being defined.
NOT_A_NAME = {"alignas", "decltype", "noexcept", "requires", "explicit", "__attribute__", "__launch_bounds__", "if", "for", "while", "switch", "catch", "return"}


class Token:
    __slots__ = ("kind", "text", "start", "end", "spaced")

    def __init__(self, kind, text, start):
        self.kind, self.text, self.start, self.end = kind, text, start, start + len(text)
        self.spaced = False  # white space on both sides


class Function:
    """A function with a body. Its tokens from begin to end, the initialisers of a constructor's members included, are statements and expressions."""

    def __init__(self, name, begin, end):
        self.name, self.begin, self.end = name, begin, end


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = tokenize(text)
        self.partner = match_brackets(self.tokens)
        self.functions = find_functions(self)
        self.line_starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def line_of(self, position):
        return bisect.bisect_right(self.line_starts, position)


def tokenize(text):
    tokens = []
    for match in LEXER.finditer(text):
        kind = match.lastgroup if match.lastgroup != "delimiter" else "raw"
        if kind in ("directive", "space", "comment"):
            continue
        token = Token("string" if kind == "raw" else kind, match[0], match.start())
        token.spaced = token.start > 0 and text[token.start - 1].isspace() and text[token.end:token.end + 1].isspace()
        tokens.append(token)
    return tokens


def masked(text):
    """The text with blanks in the place of comments, preprocessor lines and what strings and characters hold. Lines and columns stay."""
    pieces, position = [], 0
    for token in tokenize(text):
        pieces.append(re.sub(r"[^\n]", " ", text[position:token.start]))
        if token.kind in ("string", "char"):
            pieces.append(token.text[0] + re.sub(r"[^\n]", " ", token.text[1:-1]) + token.text[-1])
        else:
            pieces.append(token.text)
        position = token.end
    pieces.append(re.sub(r"[^\n]", " ", text[position:]))
    return "".join(pieces)


def match_brackets(tokens):
    """The index of the other bracket for each bracket that has one. Both branches of an #if may open a bracket that is closed once; such a bracket has none."""
    partner, open_ = {}, []
    for i, token in enumerate(tokens):
        if token.kind != "punctuation":
            continue
        if token.text in CLOSING:
            open_.append(i)
        elif token.text in (")", "]", "}"):
            while open_ and CLOSING[tokens[open_[-1]].text] != token.text:
                open_.pop()
            if open_:
                partner[i] = open_.pop()
                partner[partner[i]] = i
    return partner


def skip_angles(tokens, i, end):
    """The index behind the template brackets that open at i, which may close with the token >>."""
    depth = 0
    while i < end:
        text = tokens[i].text
        if text == "<":
            depth += 1
        elif text in (">", ">>") and not tokens[i].spaced:
            depth -= len(text)
            if depth <= 0:
                return i + 1
        i += 1
    return end


def find_functions(source):
    functions = []
    scan_scope(source, 0, len(source.tokens), (), functions)
    return functions


def scan_scope(source, i, end, scope, functions):
    """Looks for functions among the declarations of a namespace or class."""
    tokens, partner = source.tokens, source.partner
    head = i  # where the declaration begins
    while i < end:
        text = tokens[i].text
        if text == ";" or text == "}":
            head = i + 1
        elif text == ":" and tokens[i - 1].text in ("public", "private", "protected"):
            head = i + 1
        elif text in ("(", "["):
            i = partner.get(i, i)
        elif text == "{":
            close = partner.get(i)
            if close is None:
                return
            kind, name, begin = classify(source, head, i)
            if kind == "scope":
                scan_scope(source, i + 1, close, scope + name, functions)
                head = close + 1
            elif kind == "function":
                functions.append(Function("::".join(scope + name), begin, close))
                head = close + 1
            elif kind == "enumeration":
                head = close + 1
            i = close
        i += 1


def may_have_parameters(name):
    return name not in NOT_A_NAME and not re.fullmatch(r"[A-Z0-9]+(?:_[A-Z0-9]+)+", name)  # a macro such as TRIREME_LEVEL(avx2) is no function


def classify(source, head, brace):
    """What the brace opens behind the declaration that begins at head: (kind, name, first token of statements)."""
    tokens, partner = source.tokens, source.partner
    i = head
    while i < brace and tokens[i].text == "template":
        i = skip_angles(tokens, i + 1, brace)
    first, parameters, assigned, initialisers, word = i, None, None, None, None
    while i < brace:
        text = tokens[i].text
        if text in ("class", "struct", "union", "enum", "namespace", "extern") and parameters is None and word is None:
            word = i
        elif text == "operator" and parameters is None:
            while i + 1 < brace and tokens[i + 1].text != "(":
                i += 1
            if tokens[i].text == "operator":  # operator()
                i += 2
        elif text == "<" and not tokens[i].spaced:
            i = skip_angles(tokens, i, brace) - 1
        elif text in ("(", "["):
            if text == "(" and parameters is None and assigned is None and may_have_parameters(tokens[i - 1].text) and (word is None or tokens[word].text == "extern"):
                parameters = i
            i = partner.get(i, i)
        elif text == "{":  # an initialiser of a member
            i = partner.get(i, i)
        elif text == "=" and assigned is None and parameters is None:
            assigned = i
        elif text == ":" and parameters is not None and initialisers is None:
            initialisers = i
        i += 1
    if parameters is not None:
        if initialisers is not None and tokens[brace - 1].kind == "name":
            return "initialiser", (), None
        return "function", (function_name(tokens, parameters),), brace + 1 if initialisers is None else initialisers + 1
    if assigned is not None:
        last = tokens[brace - 1].text  # a lambda: ") {", "] {", or a word such as mutable behind its parameters
        if assigned + 1 < brace and tokens[assigned + 1].text == "[" and (last in (")", "]", "mutable") or "->" in (token.text for token in tokens[assigned:brace])):
            return "function", (function_name(tokens, assigned),), brace + 1
        return "initialiser", (), None
    if word is None:
        return "initialiser", (), None
    if tokens[word].text == "enum":
        return "enumeration", (), None
    if tokens[word].text in ("namespace", "extern"):
        return "scope", (), None
    names = []
    for token in tokens[max(word, first) + 1:brace]:
        if token.text in (":", "final"):
            break
        if token.kind == "name" and token.text != "alignas":
            names.append(token.text)
    return "scope", (names[0],) if names else (), None


def function_name(tokens, parameters):
    """The name before the parameters, with what qualifies it: Class::~Class, operator==."""
    i, arguments = parameters - 1, ""
    if tokens[i].text == ")":  # operator()
        return function_name(tokens, parameters - 2) + "()"
    if tokens[i].kind != "name":
        begin = next((k for k in range(i, max(i - 8, -1), -1) if tokens[k].text == "operator"), None)
        if begin is None and tokens[i].text in (">", ">>"):  # a specialisation, as size<float>
            begin = next((k - 1 for k in range(i, 0, -1) if tokens[k].text == "<"), None)
        begin = i if begin is None else begin
        i, arguments = begin, "".join(token.text for token in tokens[begin + 1:i + 1])
    name = tokens[i].text + arguments
    while i >= 1 and tokens[i - 1].text in ("::", "~", "operator"):
        if tokens[i - 1].text == "::" and i >= 2 and tokens[i - 2].kind == "name":
            name, i = tokens[i - 2].text + "::" + name, i - 2
        elif tokens[i - 1].text != "::":
            name, i = tokens[i - 1].text + name, i - 1
        else:
            break
    return name
