"""What an operator asks for each item: the prompt by a template, and an answer that fits a schema.

Both are checked before the first call. Templates run in a sandbox: they come from callers, and so do the items.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, validator_for
from pydantic import BaseModel
from pydantic import ValidationError as ModelError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from proxy.wire.json_values import JSON_ERRORS, is_shallow

ITEM = "item"
"""The name by which a template refers to what it is rendered for."""

_MOST_ERRORS = 5
_LONGEST_ERROR = 300
_FENCED = re.compile(r"```[a-zA-Z]*+[^\S\n]*+\n(.*?)(```|\Z)", re.DOTALL)
# Models that think in the text do so before their answer.
_THOUGHT = re.compile(r"\A\s*<(think|thinking)>.*?</\1>", re.DOTALL)
_OPENING = re.compile(r"[{\[]")

_ORDERS = (
    "Answer with one JSON value that fits the JSON Schema below, and with nothing else: no explanation, no Markdown.\n"
    "JSON Schema:\n"
)
_CORRECTION = "This answer is not valid:\n{0}\nAnswer again, with nothing but one JSON value that fits the schema."


class Unfit(Exception):
    """An answer that does not fit the schema. Its text is what to tell the model."""


class ItemTemplate:
    """A prompt with a place for an item, in the language of Jinja. Raises ValueError unless it uses `item`.

    It has nothing but the item and Jinja's own functions and filters: no other templates, and no unsafe attributes.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ValueError(f"the prompt template is a text, not {type(text).__name__}")
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            tree = environment.parse(text)
            names = meta.find_undeclared_variables(tree) - environment.globals.keys()
            if any(True for _ in meta.find_referenced_templates(tree)):
                raise ValueError("a prompt template cannot load other templates")
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise ValueError(f"the prompt template is not valid: {_describe(error)}") from error
        if ITEM not in names:
            raise ValueError("the prompt template does not use item: write {{ item }} where it is to stand")
        if others := sorted(names - {ITEM}):
            raise ValueError(f"the prompt template uses {', '.join(others)}, but there is only item")

    def render(self, item: object) -> str:
        """Return the prompt for an item. May raise anything: a template calculates with what the item is."""
        return self._template.render({ITEM: item})


def _describe(error: Exception) -> str:
    return str(error)[:_LONGEST_ERROR] or type(error).__name__


class OutputSchema:
    """What answers have to fit: a JSON Schema, or a pydantic model. Raises ValueError for what is neither.

    A schema may refer to itself only. Nothing is ever fetched for it.
    """

    def __init__(self, schema: Mapping[str, object] | type[BaseModel]) -> None:
        self._model: type[BaseModel] | None = None
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            self._model, self.document = schema, schema.model_json_schema()
        elif isinstance(schema, Mapping):
            self.document = dict(schema)
        else:
            raise ValueError(f"output_schema is a JSON Schema or a pydantic model, not {type(schema).__name__}")
        find = validator_for(self.document, default=Draft202012Validator)
        try:
            find.check_schema(self.document)
            _check_references(self.document)
        except SchemaError as error:
            raise ValueError(f"output_schema is no valid JSON Schema: {_say_where(error)}") from error
        self._validator = find(self.document, registry=Registry(), format_checker=find.FORMAT_CHECKER)

    @property
    def orders(self) -> str:
        """What tells a model how to answer. It is the same for all items, so that a provider's cache has it."""
        return _ORDERS + json.dumps(self.document, ensure_ascii=False)

    def read(self, text: str) -> object:
        """Return the value that an answer says: an instance of the model, if there is one. Raises Unfit."""
        value = find_json(text)
        if self._model is not None:
            try:
                return self._model.model_validate_json(json.dumps(value))
            except ModelError as error:
                raise Unfit(_join(_list_model_errors(error))) from error
        errors = sorted(self._validator.iter_errors(value), key=lambda each: [str(step) for step in each.absolute_path])
        if errors:
            raise Unfit(_join(map(_say_where, errors)))
        return value


def _check_references(document: Mapping[str, object]) -> None:
    """Raise ValueError if a schema refers to something that is not in it."""
    whole: Resource[object] = Resource.from_contents(document, default_specification=DRAFT202012)
    resolver = Registry().with_resource(whole.id() or "", whole).resolver_with_root(whole)
    waiting = [(whole, resolver)]
    while waiting:
        resource, resolver = waiting.pop()
        reference = resource.contents.get("$ref") if isinstance(resource.contents, dict) else None
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                what = f"output_schema refers to {reference[:100]!r}, which is not in it; nothing is fetched"
                raise ValueError(what) from error
        waiting += [(each, resolver.in_subresource(each)) for each in resource.subresources()]


def write_correction(problem: Unfit) -> str:
    """Return what is said to a model whose answer did not fit."""
    return _CORRECTION.format(problem)


def find_json(text: str) -> object:
    """Return the JSON value of an answer, which may stand in a block of Markdown or behind words. Raises Unfit."""
    text = _THOUGHT.sub("", text).strip()
    for candidate in _list_candidates(text):
        try:
            value = msgspec.json.decode(candidate)
        except JSON_ERRORS:
            continue
        if not is_shallow(value):
            raise Unfit("the answer is nested too deeply")
        return value
    try:
        msgspec.json.decode(text)
    except JSON_ERRORS as error:
        raise Unfit(f"the answer is not JSON: {_describe(error)}" if text else "the answer is empty") from error
    raise Unfit("the answer is not JSON")


def _list_candidates(text: str) -> Iterator[str]:
    """Yield the parts of an answer that may be the value: all of it, blocks of code, from the first bracket on."""
    yield text
    yield from (match[1].strip() for match in _FENCED.finditer(text) if match[2])
    opening = _OPENING.search(text)
    if opening is not None:
        try:
            _, end = json.JSONDecoder().raw_decode(text, opening.start())
        except JSON_ERRORS:
            return
        yield text[opening.start() : end]


def _list_model_errors(error: ModelError) -> Iterator[str]:
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        yield f"{_name_place(each['loc'])}: {each['msg']}"


def _say_where(error: ValidationError | SchemaError) -> str:
    return f"{_name_place(error.absolute_path)}: {error.message}"


def _name_place(path: Iterable[object]) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return f"${''.join(steps)}"


def _join(errors: Iterable[str]) -> str:
    told = [each[:_LONGEST_ERROR] for each in errors]
    more = [f"and {len(told) - _MOST_ERRORS} more"] if len(told) > _MOST_ERRORS else []
    return "\n".join([*told[:_MOST_ERRORS], *more])
