"""What an operator asks for each item: the prompt by a template, and an answer that fits a schema.

Both are checked before the first call. Templates run in Jinja's sandbox: they come from callers, and so do the items.
Neither rendering nor checking an answer is bounded, so that a process of its own does them (`sandbox`); checking that a
template or a schema can be evaluates nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec
from jinja2 import StrictUndefined, Template, TemplateError, meta, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from proxy.engine.mapping.sandbox import Part, Unfit, join_errors, name_place
from proxy.wire.json_values import JSON_ERRORS, is_shallow

ITEM = "item"
"""The name by which a template refers to what it is rendered for."""

_LONGEST_ERROR = 300
_MOST_PARTS, _MOST_STEPS, _MOST_INDEX = 64, 16, 2**32  # of a template that is written without Jinja
_FENCED = re.compile(r"```[a-zA-Z]*+[^\S\n]*+\n(.*?)(```|\Z)", re.DOTALL)
# Models that think in the text do so before their answer.
_THOUGHT = re.compile(r"\A\s*<(think|thinking)>.*?</\1>", re.DOTALL)
_OPENING = re.compile(r"[{\[]")


class ItemTemplate:
    """A prompt with a place for an item, in the language of Jinja. Raises ValueError unless it uses `item`.

    It has nothing but the item and Jinja's own functions and filters: no other templates, and no unsafe attributes.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ValueError(f"the prompt template is a text, not {type(text).__name__}")
        self._text = text
        self._template: Template | None = None
        environment = _make_checking()
        try:
            tree = environment.parse(text)
            names = meta.find_undeclared_variables(tree) - environment.globals.keys()
            if any(True for _ in meta.find_referenced_templates(tree)):
                raise ValueError("a prompt template cannot load other templates")
        except RecursionError:
            raise ValueError("the prompt template is nested too deeply") from None
        except TemplateError as error:
            raise ValueError(f"the prompt template is not valid: {_describe(error)}") from error
        if ITEM not in names:
            raise ValueError("the prompt template does not use item: write {{ item }} where it is to stand")
        if others := sorted(names - {ITEM}):
            raise ValueError(f"the prompt template uses {_join_names(others)}, but there is only item")
        self.parts = tuple(_list_parts(tree))

    def compile(self) -> Template:
        """Return the compiled template. What it has of constants is evaluated here. Raises ValueError."""
        if self._template is None:
            try:
                self._template = _make_environment().from_string(self._text)
            except RecursionError:
                raise ValueError("the prompt template is nested too deeply") from None
            except (TemplateError, SyntaxError) as error:
                raise ValueError(f"the prompt template is not valid: {_describe(error)}") from error
        return self._template

    def render(self, item: object) -> str:
        """Return the prompt for an item. May raise anything: a template calculates with what the item is."""
        return self.compile().render({ITEM: item})


def _make_environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def _make_checking() -> ImmutableSandboxedEnvironment:
    """Return an environment that reads templates, and evaluates nothing of them while it looks what they use.

    Jinja folds constants, but no operator that is intercepted, and no filter or test that needs the context.
    """
    environment = _make_environment()
    environment.intercepted_binops = frozenset(environment.default_binop_table)
    environment.intercepted_unops = frozenset(environment.default_unop_table)
    environment.filters = dict.fromkeys(environment.filters, _refuse)
    environment.tests = dict.fromkeys(environment.tests, _refuse)
    return environment


@pass_context
def _refuse(*_: object) -> NoReturn:
    raise AssertionError("a template that is only checked is not rendered")


def _list_parts(tree: nodes.Template) -> list[Part]:
    """Return the parts of a template that does nothing but to name values of the item; nothing for any other."""
    parts = list[Part]()
    for output in tree.body:
        for node in output.nodes if isinstance(output, nodes.Output) else (output,):
            part = node.data if isinstance(node, nodes.TemplateData) else _find_way(node)
            if part is None or len(parts) == _MOST_PARTS:
                return []
            parts.append(part)
    return parts


def _find_way(node: nodes.Node) -> Part | None:
    """Return the keys and indexes that lead from the item to a value. What an object has as attributes are none."""
    way = list[str | int]()
    while isinstance(node, nodes.Getattr | nodes.Getitem) and len(way) < _MOST_STEPS:
        step: object = None
        if isinstance(node, nodes.Getattr):
            step = node.attr if not hasattr(dict, node.attr) else None
        elif isinstance(node.arg, nodes.Const):
            step = node.arg.value
        if isinstance(step, bool) or not isinstance(step, str | int) or (isinstance(step, int) and step > _MOST_INDEX):
            return None
        way.append(step)
        node = node.node
    return way[::-1] if isinstance(node, nodes.Name) and node.name == ITEM else None


def _join_names(names: list[str]) -> str:
    return ", ".join(names)[:_LONGEST_ERROR]


def _describe(error: Exception) -> str:
    return str(error)[:_LONGEST_ERROR] or type(error).__name__


class OutputSchema:
    """A JSON Schema that answers have to fit. Raises ValueError for what is none.

    It may refer to itself only, and has to come to an end. Nothing is ever fetched for it.
    """

    def __init__(self, document: Mapping[str, object]) -> None:
        find = validator_for(document, default=Draft202012Validator)
        try:
            if not is_shallow(document):
                raise RecursionError
            find.check_schema(document)
            _check_references(document, find.check_schema)
        except RecursionError:
            raise ValueError("output_schema is nested too deeply") from None
        except SchemaError as error:
            what = _say_where(error)[:_LONGEST_ERROR]
            raise ValueError(f"output_schema is no valid JSON Schema: {what}") from error
        self._validator = find(document, registry=Registry(), format_checker=find.FORMAT_CHECKER)

    def check(self, value: object) -> None:
        """Raise Unfit for a value that does not fit."""
        errors = sorted(self._validator.iter_errors(value), key=lambda each: [str(step) for step in each.absolute_path])
        if errors:
            raise Unfit(join_errors(map(_say_where, errors)))


# The members of a schema whose schemas apply to the same value as it does: one schema, a list of them, or some by name.
_SAME_VALUE = (
    *("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"),
    *("extends", "type", "disallow"),  # of the oldest drafts
)


def _check_references(document: Mapping[str, object], check: Callable[[Any], None]) -> None:
    """Raise ValueError if a schema refers to what is not in it, or to itself for the same value, which never ends.

    `check` raises for what is no schema: a reference may lead to where none is expected.
    """
    whole: Resource[Any] = Resource.from_contents(document, default_specification=DRAFT202012)
    root = Registry().with_resource(whole.id() or "", whole).resolver_with_root(whole)
    leads: dict[int, list[object]] = {}
    known, waiting, referred = {id(document)}, [(whole, root)], list[tuple[Any, Any]]()
    while waiting or referred:
        if not waiting:  # the schemas that stand where schemas do are all known
            target, resolver = referred.pop()
            if id(target) not in known:
                check(target)
                known.add(id(target))
                waiting.append((Resource.from_contents(target, default_specification=DRAFT202012), resolver))
            continue
        resource, resolver = waiting.pop()
        if isinstance(resource.contents, dict):
            targets = [_look_up(resolver, name) for name in _list_references(resource.contents)]
            leads[id(resource.contents)] = [*_list_same_value(resource.contents), *[each for each, _ in targets]]
            referred += targets
        inner = [(each, resolver.in_subresource(each)) for each in resource.subresources()]
        known.update(id(each.contents) for each, _ in inner)
        waiting += inner
    if _has_circle(leads):
        raise ValueError("output_schema refers to itself for the same value, so that checking an answer never ends")


def _list_references(schema: Mapping[str, object]) -> Iterator[str]:
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        reference = schema.get(keyword)
        if isinstance(reference, str):
            yield reference


def _look_up(resolver: Any, reference: str) -> tuple[object, Any]:
    """Return the schema that a reference leads to, and the resolver there."""
    told = f"output_schema refers to {reference[:100]!r}, which is"
    try:
        found = resolver.lookup(reference)
    except (Unresolvable, ValueError) as error:
        raise ValueError(f"{told} not in it; nothing is fetched") from error
    if not isinstance(found.contents, dict | bool):
        raise ValueError(f"{told} no schema")
    return found.contents, found.resolver


def _list_same_value(schema: Mapping[str, object]) -> Iterator[object]:
    """Yield what is, or has, schemas for the value that a schema is for."""
    for keyword in _SAME_VALUE:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, dict):
            yield value
            if keyword in ("dependentSchemas", "dependencies"):
                yield from value.values()


def _has_circle(leads: Mapping[int, Iterable[object]]) -> bool:
    """Return whether something leads to itself. `leads` has for the id of each what it leads to."""
    is_on_the_way: dict[int, bool] = {}
    for start in leads:
        way = [] if start in is_on_the_way else [(start, iter(leads[start]))]
        is_on_the_way.setdefault(start, True)
        while way:
            key, rest = way[-1]
            following = next((id(each) for each in rest if id(each) in leads and is_on_the_way.get(id(each), True)), 0)
            if not following:
                is_on_the_way[key] = False
                way.pop()
            elif following in is_on_the_way:
                return True
            else:
                is_on_the_way[following] = True
                way.append((following, iter(leads[following])))
    return False


def find_json(text: str) -> tuple[str, object]:
    """Return the JSON of an answer, which may stand in a block of Markdown or behind words, and its value.

    Raises Unfit.
    """
    text = _THOUGHT.sub("", text).strip()
    for candidate in _list_candidates(text):
        try:
            value = msgspec.json.decode(candidate)
        except JSON_ERRORS:
            continue
        if not is_shallow(value):
            raise Unfit("the answer is nested too deeply")
        return candidate, value
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


def _say_where(error: ValidationError | SchemaError) -> str:
    return f"{name_place(error.absolute_path)}: {error.message}"
