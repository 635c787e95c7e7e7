"""Conversations to ids and loss mask: a sandboxed Jinja2 template, loss on what it marks with `{% generation %}`.

A document is a conversation if its metadata hold `messages`, a list of `{"role", "content", ...}`. The template is the one
that Hugging Face tokenizers use. Special tokens that the template writes are tokens; the same characters inside a message
are text, so that no message can forge a turn.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np

from modalities.errors import InputError
from modalities.tokenization.encoding import load
from modalities.tokens import Array

TEMPLATE = "chat_template.jinja"
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_OPEN, _CLOSE = _NONCHARACTERS[-2:]
"""Mark generated spans in rendered text; messages that hold them are refused."""


class ConversationError(ValueError):
    """A document's `messages` cannot be rendered; the document is dropped and counted."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> Any:
        """Turn the block into a call that marks its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


def check_template(path: Path) -> jinja2.Template:
    """Return the compiled template; raise `InputError` if it is none or marks nothing to learn."""
    text = path.read_text(encoding="utf-8")
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    try:
        template = environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{path}:{error.lineno}: expected a Jinja2 template, got {error.message}; mend it") from None
    if not re.search(r"{%-?\s*generation\b", text):
        raise InputError(
            f"{path}: expected {{% generation %}} around what the assistant says, got none; without it nothing is learnt"
        )
    return template


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def messages_of(metadata: str | None) -> list[Any] | None:
    """Return the `messages` of a document's metadata, or None if it is no conversation."""
    if metadata is None or '"messages"' not in metadata:
        return None
    found = json.loads(metadata)
    messages = found.get("messages") if isinstance(found, dict) else None
    return messages if isinstance(messages, list) else None


class ChatEncoder:
    """Encode conversations with the template and the tokenizer of one folder."""

    def __init__(self, folder: Path) -> None:
        self._template = check_template(folder / TEMPLATE)
        self._tokenizer = load(folder / "tokenizer.json")
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: number for number, token in added.items() if token.special}
        tokens = sorted(self._special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else None
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._names = {
            name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }

    def encode(self, messages: list[Any]) -> tuple[Array, Array]:
        """Return uint32 ids and uint8 mask, 1 for tokens that lie wholly or partly in generated text."""
        text, learnt, guard = self._render(messages)
        ids: list[int] = []
        mask: list[int] = []
        start = 0
        for piece in self._split.split(text) if self._split else [text]:
            inside = learnt[start : start + len(piece)]
            start += len(piece)
            if piece in self._special:
                ids.append(self._special[piece])
                mask.append(int(inside.any()))
                continue
            keep = np.array([c != guard for c in piece], bool)
            inside, piece = inside[keep], piece.replace(guard, "")
            encoding = self._tokenizer.encode(piece, add_special_tokens=False)
            ids.extend(encoding.ids)
            mask.extend(int(inside[a : max(b, a + 1)].any()) for a, b in encoding.offsets)
        return np.array(ids, np.uint32), np.array(mask, np.uint8)

    def _render(self, messages: list[Any]) -> tuple[str, Array, str]:
        """Return the text without span marks, which characters are learnt, and the guard inside literal specials."""
        raw = json.dumps(messages, ensure_ascii=False)
        guard = next((c for c in _NONCHARACTERS[:-2] if c not in raw), None)
        if guard is None or _OPEN in raw or _CLOSE in raw:
            raise ConversationError("expected text without U+FDD0 to U+FDEF, got some")
        guarded = [_guard(message, self._split, guard) for message in messages]
        try:
            marked = self._template.render(messages=guarded, add_generation_prompt=False, **self._names)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ConversationError(str(error)) from None
        depth = np.cumsum([(c == _OPEN) - (c == _CLOSE) for c in marked])
        plain = np.array([c not in (_OPEN, _CLOSE) for c in marked], bool)
        return marked.replace(_OPEN, "").replace(_CLOSE, ""), (depth > 0)[plain], guard


def _guard(message: Any, split: re.Pattern[str] | None, guard: str) -> Any:
    """Put a guard character into special tokens that a message spells out."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ConversationError(f"expected messages with a role, got {message!r:.60}")
    return _guarded(dict(message), split, guard)


def _guarded(value: Any, split: re.Pattern[str] | None, guard: str) -> Any:
    if isinstance(value, str) and split is not None:
        return split.sub(lambda found: found[0][0] + guard + found[0][1:], value)
    if isinstance(value, dict):
        return {name: _guarded(item, split, guard) for name, item in value.items()}
    return [_guarded(item, split, guard) for item in value] if isinstance(value, list) else value


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
