"""Templates: from the fields of an item to the rendered input of a model.

Two languages. Ours are Jinja, sandboxed and strict: a field that the template names and nobody
gives is an error, and so is an answer that the template does not show. Official templates have
`{field}` marks and are substituted in a single pass, so that braces in data are only data. In both,
data are never rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from judgebench.errors import ConfigError
from judgebench.request import clean, digest, messages_input, prompt_input

_CHATML = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>", re.DOTALL)
_MARK = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        finalize=_given,
        autoescape=False,
        keep_trailing_newline=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _given(value: Any) -> Any:
    """What a template may show: the word "None" in a prompt would be nobody's text."""
    if value is None:
        raise ValueError("it shows a field that this item does not have; put {% if field %} around it")
    return value


@dataclass(frozen=True)
class Text:
    """One piece of template text in one of the two languages."""

    source: str
    official: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)  # official mark -> our field

    @property
    def uses(self) -> frozenset[str]:
        """The names of our fields that this text shows."""
        if self.official:
            marks = _MARK.findall(self.source)
            return frozenset(self.fields[name] for name in marks if name in self.fields)
        from jinja2 import TemplateSyntaxError, meta

        try:
            return frozenset(meta.find_undeclared_variables(_environment().parse(self.source)))
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"The template does not parse: {error.message} (line {error.lineno})."
            ) from None

    def render(self, values: Mapping[str, Any]) -> str:
        """The text with the values in place."""
        if self.official:
            return _MARK.sub(lambda mark: self._official(mark, values), self.source)
        try:
            compiled, given, constant = _compiled(self.source)
            if constant is not None:
                return constant
            # What `compiled.render` does, without its copy of the environment's names for each item.
            context = compiled.new_context({**given, **values}, shared=True)
            return "".join(compiled.root_render_func(context))
        except Exception as error:  # the sandbox raises whatever the template does
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            start = self.source[:100]
            raise ConfigError(f"The template cannot be rendered ({problem}): {start!r}.") from error

    def _official(self, mark: re.Match[str], values: Mapping[str, Any]) -> str:
        name = mark.group(1)
        if name not in self.fields:
            return mark.group(0)  # a brace of the prompt's own
        ours = self.fields[name]
        value = values[ours]
        if value is None:
            raise ConfigError(f"The official prompt shows {ours!r}, which this item does not have.")
        return str(value)


@lru_cache(maxsize=256)
def _compiled(source: str) -> tuple[Any, dict[str, Any], str | None]:
    """The template, what every template knows, and its text where it shows no field (system messages)."""
    compiled = _environment().from_string(source)
    return compiled, dict(compiled.globals), None if Text(source).uses else str(compiled.render())


@dataclass(frozen=True)
class Template:
    """A whole prompt: messages for a chat model, or one text for a base model.

    `messages`: (role, text) pairs; `text`: instead of messages. Exactly one of the two.
    """

    messages: tuple[tuple[str, Text], ...] = ()
    text: Text | None = None
    fold_system: bool = False  # for a model whose chat template knows no system role

    @cached_property
    def uses(self) -> frozenset[str]:
        """The fields that the prompt shows."""
        parts = [text for _, text in self.messages] + ([self.text] if self.text else [])
        return frozenset().union(*(part.uses for part in parts))

    @cached_property
    def hash(self) -> str:
        """16 hex digits over the template's own text."""
        parts = [(role, text.source) for role, text in self.messages]
        folded = ("fold_system",) if self.fold_system else ()
        return digest(repr((parts, self.text.source if self.text else None, *folded)))[:16]

    def check(self, known: frozenset[str], needed: Sequence[frozenset[str]], name: str) -> None:
        """Refuse fields nobody gives, and a prompt that shows none of a `needed` group."""
        unknown = self.uses - known
        if unknown:
            raise ConfigError(
                f"The template of {name!r} names {', '.join(sorted(unknown))}, which nobody gives. "
                f"Fields: {', '.join(sorted(known))}."
            )
        for group in needed:
            if not self.uses & group:
                raise ConfigError(f"The template of {name!r} shows none of {', '.join(sorted(group))}.")

    def render(self, values: Mapping[str, Any]) -> str:
        """Canonical input text, ready to be hashed and sent."""
        if self.text is not None:
            return prompt_input(self.text.render(values))
        rendered = ((role, text.render(values)) for role, text in self.messages)
        messages = [{"role": role, "content": text} for role, text in rendered if text or role != "system"]
        return messages_input(folded(messages) if self.fold_system else messages)


def folded(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The same conversation without a system message: its text begins the first user turn.

    >>> folded([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi'}]
    """
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    rest: list[Mapping[str, str]] = [message for message in messages if message["role"] != "system"]
    if not system:
        return rest
    if rest and rest[0]["role"] == "user":
        return [{"role": "user", "content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": system}, *rest]


def chat_template(messages: Sequence[Mapping[str, str]]) -> Template:
    """A chat template from `[{role, content}, …]` with Jinja contents."""
    return Template(messages=tuple((str(m["role"]), Text(str(m["content"]))) for m in messages))


def text_template(source: str) -> Template:
    """A template for base models."""
    return Template(text=Text(source))


def official_template(source: str, fields: Mapping[str, str], markup: str | None) -> Template:
    """A published prompt: `{field}` marks, and ChatML marks between system and user if `markup` says so.

    Raises:
        ConfigError: an unknown markup, or a declared field that the prompt does not show.
    """
    absent = sorted(fields.keys() - set(_MARK.findall(source)))
    if absent:
        marks = ", ".join(sorted(set(_MARK.findall(source)))) or "none"
        raise ConfigError(f"The official prompt has no mark {{{absent[0]}}}. Its marks: {marks}.")
    if markup is None:
        return Template(messages=(("user", Text(source, True, fields)),))
    if markup != "chatml":
        raise ConfigError(f"markup={markup!r} is not known. Choices: chatml, or null.")
    parts = _CHATML.findall(source)
    if not parts:
        raise ConfigError("The official prompt holds no ChatML marks.")
    return Template(messages=tuple((role, Text(content.strip(), True, fields)) for role, content in parts))


def conversation(turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
    """Turns and answers in pairs, as templates see them: `[{user, assistant}, …]`."""
    return [{"user": clean(u), "assistant": clean(a)} for u, a in zip(turns, answers, strict=False)]
