"""Finds the places of a C++ or CUDA source where scripts/mutate.py can plant a bug: one function per operator, each of which yields edits.

  wait       a statement that waits, synchronises, orders memory or notifies is removed
  compare    < and <=, > and >=, == and != change places
  term       the right side of a sum, difference, product or quotient is dropped
  bound      "+ 1" or "- 1" is dropped; the first or last turn of a for loop is left out
  index      rank 0 in the place of a rank, stage, shard or micro-batch, or the next one
  condition  the condition of an if with a short body is negated; && and || change places

Texts for users, checks of invariants and template arguments have no places, nor have declarations without a body and initialisers outside of functions.
"""
import collections
import hashlib
import re

import cpp_source

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
WAITS = re.compile(r"(?:a?wait|barrier|sync|synchroni[sz]e|fence|notify)(?:_\w+)?|\w+_(?:wait|fence|commit|barrier|sync)|__sync(?:threads|warp)\w*|__threadfence\w*"
                   r"|cuda(?:Stream|Event|Device)Synchronize|cudaStreamWaitEvent|order_after|MPI_(?:Wait|Barrier)\w*")
INDICES = {name + end for name in ("rank", "stage", "shard", "peer", "microbatch", "micro_batch", "replica") for end in ("", "_")}
SUBSCRIPTS = INDICES | {"source", "destination", "chunk"}  # indices in brackets only; an argument of this name can be anything
UNEVALUATED = {"static_assert", "decltype", "noexcept", "requires", "alignas", "sizeof", "TRIREME_CHECK", "assert"}
TEXTS = {"print", "printf", "fprintf", "snprintf", "concat", "printable", "warn", "fail", "fail_to_start", "print_line", "log", "format", "refuse"}
TEXT_PARTS = {"to_string", "printable", "concat", "string", "string_view", "format", "text"}
KEYWORDS = {"return", "if", "for", "while", "switch", "case", "else", "do", "new", "delete", "throw", "goto", "co_await", "co_return", "operator", "const", "auto"}
# What binds less than + and -, so that "+ 1" behind it would belong to a part only.
LOOSE = {"?", "<<", ">>", "&", "|", "^", "&&", "||", "<", "<=", ">", ">=", "==", "!=", "=", "{"}


class Edit:
    def __init__(self, begin, end, replacement, key):
        self.begin, self.end, self.replacement, self.key = begin, end, replacement, key


class Site:
    """A place with the edit that plants a bug there. Its id depends on its file, operator, function and text, and counts only equal texts of that function."""

    def __init__(self, file, line, operator, function, edit, ordinal):
        self.file, self.line, self.operator, self.function, self.edit = file, line, operator, function, edit
        key = "\0".join((file, operator, function, edit.key, edit.replacement, str(ordinal)))
        self.id = f"{operator}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"

    def module(self):
        folders = self.file.split("/")[:-1]
        return "/".join(folders[:2])

    def apply(self, text):
        return text[:self.edit.begin] + self.edit.replacement + text[self.edit.end:]


class Reader:
    """A function of a source while operators look at it."""

    def __init__(self, source):
        self.source, self.tokens, self.partner = source, source.tokens, source.partner
        self.skipped = self.find_skipped()
        self.opener = self.find_openers()

    def text(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def key(self, begin, end):
        return " ".join(token.text for token in self.tokens[begin:end])

    def span(self, begin, end):
        return self.tokens[begin].start, self.tokens[end - 1].end

    def written(self, begin, end):
        start, stop = self.span(begin, end)
        return self.source.text[start:stop]

    def find_openers(self):
        """For each token the index of the innermost bracket around it, or -1."""
        opener, open_ = [], []
        for i, token in enumerate(self.tokens):
            if i in self.partner and self.partner[i] < i and open_:
                open_.pop()
            opener.append(open_[-1] if open_ else -1)
            if i in self.partner and self.partner[i] > i:
                open_.append(i)
        return opener

    def find_skipped(self):
        skipped, tokens = bytearray(len(self.tokens)), self.tokens

        def skip(begin, end):
            skipped[begin:end] = b"\1" * (min(end, len(tokens)) - begin)

        statement = 0
        for i, token in enumerate(tokens):
            following = tokens[i + 1].text if i + 1 < len(tokens) else ""
            if token.text in (";", "{", "}"):
                statement = i + 1
            elif token.kind == "name" and following == "(" and i + 1 in self.partner:
                close = self.partner[i + 1]
                if token.text in UNEVALUATED or token.text in TEXTS and any(part.kind == "string" for part in tokens[i:close]):
                    skip(i, close + 1)
            elif token.text == "throw":
                skip(i, self.statement_end(i))
            elif token.text == "<<" and not skipped[i]:
                end = self.statement_end(i)
                if any(part.kind == "string" for part in tokens[statement:end]):
                    skip(i, end)
            elif token.text == "<" and not token.spaced:
                skip(i, cpp_source.skip_angles(tokens, i, min(i + 100, len(tokens))))
        return skipped

    def statement_end(self, i):
        """The index of the semicolon behind i, or of the bracket that closes around i."""
        while i < len(self.tokens) and self.tokens[i].text not in (";", ")", "]", "}"):
            i = self.partner[i] + 1 if self.partner.get(i, -1) > i else i + 1
        return i

    def operand_end(self, i):
        """The index behind the simple operand that begins at i: a number, a group, or a name with members, calls and subscripts. None if it is not simple."""
        if self.text(i) == "::":
            i += 1
        token = self.tokens[i]
        if token.text == "(" and i in self.partner:
            i = self.partner[i] + 1
        elif token.kind == "number" or token.kind == "name" and token.text not in KEYWORDS:
            i += 1
        else:
            return None
        while i < len(self.tokens):
            text = self.tokens[i].text
            if text in ("(", "[") and i in self.partner:
                i = self.partner[i] + 1
            elif text == "{" and self.tokens[i].start == self.tokens[i - 1].end and i in self.partner:
                i = self.partner[i] + 1
            elif text in (".", "->", "::"):
                i += 2
            elif text == "<" and not self.tokens[i].spaced:
                i = cpp_source.skip_angles(self.tokens, i, len(self.tokens))
            elif text in ("++", "--"):
                return None
            else:
                return i
        return i

    def operand_begin(self, i):
        """The first token of the simple operand that ends before i, or None."""
        while True:
            text, kind = self.text(i - 1), self.tokens[i - 1].kind
            if text in (")", "]") and i - 1 in self.partner:
                i = self.partner[i - 1]
                before = self.tokens[i - 1]
                if text == ")" and not (before.kind == "name" and before.text not in KEYWORDS or before.text in (")", "]", ">")):
                    return i
            elif text == ">" and not self.tokens[i - 1].spaced:
                while i > 1 and self.text(i - 1) != "<":
                    i -= 1
                i -= 1
            elif kind == "number":
                return i - 1
            elif kind == "name" and text not in KEYWORDS:
                i -= 1
                if self.text(i - 1) == "::" and (self.tokens[i - 2].kind != "name" or self.text(i - 2) in KEYWORDS):
                    return i - 1
                if self.text(i - 1) not in (".", "->", "::"):
                    return i
                i -= 1
            else:
                return None

    def part_of_text(self, i):
        """Does the sum around the operator at i join strings?"""
        for step in (-1, 1):
            k = i + step
            while 0 <= k < len(self.tokens) and self.text(k) not in (";", ",", "{", "}", "=", "return", "(", "[", ")", "]", "?", "&&", "||"):
                if self.tokens[k].kind in ("string", "char") or self.text(k) in TEXT_PARTS:
                    return True
                k += step
                if step == -1 and self.text(k) in (")", "]") or step == 1 and self.text(k) in ("(", "["):
                    k = self.partner.get(k, k) + step
        return False

    def begins_statement(self, i):
        before = self.text(i - 1)
        if before == ")":
            word = self.partner.get(i - 1, 0) - 1
            return self.text(word) in ("if", "for", "while", "constexpr")
        return before in (";", "{", "}", "else", "do") or before == ":" and self.text(i - 2) != "?"


def wait_edits(reader, function):
    for i in range(function.begin, function.end):
        if reader.tokens[i].kind != "name" or not WAITS.fullmatch(reader.text(i)):
            continue
        call = i + 1
        if reader.text(call) == "<":
            call = cpp_source.skip_angles(reader.tokens, call, function.end)
        if reader.text(call) != "(" or call not in reader.partner:
            continue
        end = reader.partner[call] + 1
        around = reader.opener[i]
        if around > 0 and reader.text(around) == "(" and reader.text(around - 1) == "check":  # check(cudaStreamSynchronize(stream), "...")
            begin, end = around - 1, reader.partner[around] + 1
        else:
            begin = reader.operand_begin(end)
        if begin is None or reader.text(end) != ";" or not reader.begins_statement(begin):
            continue
        start, stop = reader.span(begin, end + 1)
        if reader.text(begin - 1) not in (";", "{", "}"):
            yield Edit(start, stop, "{}", reader.key(begin, end))
            continue
        line = reader.source.text.rfind("\n", 0, start) + 1
        if reader.source.text[line:start].isspace() and reader.source.text[stop:stop + 1] == "\n":
            start = line  # The empty line stays, so that no number of a line changes in the program.
        yield Edit(start, stop, "", reader.key(begin, end))


def compare_edits(reader, function):
    for i in range(function.begin, function.end):
        token = reader.tokens[i]
        if token.text in SWAPS and token.spaced and not reader.skipped[i] and reader.text(i - 1) != "operator":
            begin, end = reader.operand_begin(i), reader.operand_end(i + 1)
            yield Edit(token.start, token.end, SWAPS[token.text], reader.key(begin or i - 1, end or i + 2))


def term_edits(reader, function):
    for i in range(function.begin, function.end):
        token = reader.tokens[i]
        if token.text not in ("+", "-", "*", "/") or not token.spaced or reader.skipped[i]:
            continue
        begin, end = reader.operand_begin(i), reader.operand_end(i + 1)
        if begin is None or end is None or token.text in "+-" and (reader.text(end) in ("*", "/", "%") or reader.text(i + 1) == "1" and end == i + 2):
            continue
        if token.text == "+" and reader.part_of_text(i):
            continue
        yield Edit(reader.tokens[i - 1].end, reader.tokens[end - 1].end, "", reader.key(begin, end))


def bound_edits(reader, function):
    for i in range(function.begin, function.end):
        if reader.skipped[i]:
            continue
        if reader.text(i) in ("+", "-") and reader.tokens[i].spaced and reader.text(i + 1) == "1" and reader.text(i + 2) not in ("*", "/", "%"):
            begin = reader.operand_begin(i)
            yield Edit(reader.tokens[i - 1].end, reader.tokens[i + 1].end, "", reader.key(begin or i - 1, i + 2))
        elif reader.text(i) == "for" and reader.text(i + 1) == "(" and i + 1 in reader.partner:
            yield from loop_edits(reader, i + 1, reader.partner[i + 1])


def loop_edits(reader, open_, close):
    semicolons = [i for i in range(open_ + 1, close) if reader.text(i) == ";" and reader.opener[i] == open_]
    if len(semicolons) != 2:
        return

    def top(begin, end, texts):
        """The first of these tokens that is in no further bracket."""
        return next((i for i in range(begin, end) if reader.text(i) in texts and reader.opener[i] == open_), None)

    def later(begin, end, change):
        """Appends the change to an expression that can take it."""
        loose = any(reader.text(i) in LOOSE and reader.opener[i] == open_ and (reader.tokens[i].spaced or reader.text(i) == "{") for i in range(begin, end))
        if begin < end and not loose and reader.text(end - 2) not in ("+", "-"):
            stop = reader.tokens[end - 1].end
            yield Edit(stop, stop, change, reader.key(begin, end))

    first = top(open_ + 1, semicolons[0], ("=",))
    if first is not None:
        yield from later(first + 1, top(first, semicolons[0], (",",)) or semicolons[0], " + 1")
    comparison = next((i for i in range(semicolons[0], semicolons[1]) if reader.text(i) in SWAPS and reader.tokens[i].spaced and reader.opener[i] == open_), None)
    if comparison is not None:
        end = top(comparison + 1, semicolons[1], ("&&", "||")) or semicolons[1]
        if reader.text(comparison) in ("<", "<="):
            yield from later(comparison + 1, end, " - 1")
        elif reader.text(comparison) in (">", ">="):
            yield from later(comparison + 1, end, " + 1")


def index_edits(reader, function):
    for i in range(function.begin, function.end):
        if reader.tokens[i].kind != "name" or reader.text(i) not in SUBSCRIPTS or reader.skipped[i] or reader.text(i + 1) not in (")", "]", ","):
            continue
        begin, end = reader.operand_begin(i + 1), i + 1
        if begin is None:
            continue
        if reader.text(begin - 1) == "(" and reader.text(end) == ")" and reader.text(begin - 2) == ">":  # static_cast<size_t>(rank)
            cast = reader.operand_begin(end + 1)
            if cast is not None and reader.text(cast) == "static_cast":
                begin, end = cast, end + 1
        before, after = reader.text(begin - 1), reader.text(end)
        start, stop = reader.span(begin, end)
        if before == "[" and after == "]" and (reader.tokens[begin - 2].kind == "name" or reader.text(begin - 2) in (")", "]")):
            base = reader.operand_begin(begin - 1)
            if base is None:
                continue
            key = reader.key(base, end + 1)
            yield Edit(start, stop, "0", key)
            if reader.text(begin - 2) != ")":
                yield Edit(start, stop, f"({reader.written(begin, end)} + 1) % {reader.written(base, begin - 1)}.size()", key)
        elif reader.text(i) in INDICES and before in ("(", ",") and after in (")", ","):
            open_ = reader.opener[begin]
            called = reader.tokens[open_ - 1]
            if reader.text(open_) == "(" and (called.kind == "name" and called.text not in KEYWORDS or called.text == ">" and not called.spaced):
                yield Edit(start, stop, "0", f"{called.text} {reader.key(begin - 1, end + 1)}")


def condition_edits(reader, function):
    for i in range(function.begin, function.end):
        text = reader.text(i)
        if reader.skipped[i]:
            continue
        if text in ("&&", "||") and reader.tokens[i].spaced:
            yield Edit(reader.tokens[i].start, reader.tokens[i].end, "||" if text == "&&" else "&&", reader.key(i - 3, i + 4))
        elif text == "if" and reader.text(i + 1) == "(" and i + 1 in reader.partner:
            open_, close = i + 1, reader.partner[i + 1]
            if can_be_negated(reader, open_, close) and has_short_body(reader, close + 1, function.end):
                start, stop = reader.span(open_ + 1, close)
                yield Edit(start, stop, f"!({reader.written(open_ + 1, close)})", reader.key(open_, close + 1))


def can_be_negated(reader, open_, close):
    top = [reader.text(i) for i in range(open_ + 1, close) if reader.opener[i] == open_]
    if ";" in top or "=" in top:
        return False
    # The operator compare makes the same bug of a single == or !=.
    return "&&" in top or "||" in top or not ("==" in top or "!=" in top)


def has_short_body(reader, begin, end):
    """One statement, which raises no error: a negated guard of an error fails every test, and shows nothing."""
    if reader.text(begin) == "{" and begin in reader.partner:
        end = reader.partner[begin]
        body = [reader.text(i) for i in range(begin + 1, end)]
        following = end + 1
    else:
        following = reader.statement_end(begin) + 1
        body = [reader.text(i) for i in range(begin, min(following, end))]
    return reader.text(following) != "else" and body.count(";") == 1 and body[0] not in ("throw", "fail", "refuse", "for", "while", "if", "switch")


OPERATORS = {"wait": wait_edits, "compare": compare_edits, "term": term_edits, "bound": bound_edits, "index": index_edits, "condition": condition_edits}


def find_sites(file, text):
    """All sites of a source, in the order of its text."""
    source = cpp_source.Source(text)
    reader = Reader(source)
    found = []
    for operator, edits in OPERATORS.items():
        seen = collections.Counter()
        for function in source.functions:
            for edit in sorted(edits(reader, function), key=lambda edit: edit.begin):
                identity = (function.name, edit.key, edit.replacement)
                found.append(Site(file, source.line_of(edit.begin), operator, function.name, edit, seen[identity]))
                seen[identity] += 1
    return sorted(found, key=lambda site: (site.edit.begin, site.operator, site.edit.replacement))
