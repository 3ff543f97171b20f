"""Outlines by grammars, in this process: only of harmless texts."""

import io
import json
import resource
import subprocess
import sys

import pytest

from proxy.worker.outline_program import MOST_DEFINITIONS, main, outline, serve
from proxy.worker.outlines import GRAMMARS, PROGRAM

# Grammars with a text and what is in it; lines are left out.
TEXTS = {
    "javascript": (
        "class A {\n m(){}\n f = () => 1\n}\nconst h = async (x) => {\n}\nconst n = 1\nfunction g(){}\n",
        ["class A", "  method m", "  function f", "function h", "function g"],
    ),
    "typescript": (
        "interface I {\n m(): void\n}\nabstract class A<T> {}\nnamespace N {\n export function f(){}\n}\nenum E {}",
        ["interface I", "  method m", "class A", "namespace N", "  function f", "enum E"],
    ),
    "tsx": ("const A = () => <b>\n{1}</b>;\ntype T = 1", ["function A", "type T"]),
    "go": ("package a\ntype T struct{}\nfunc (t *T) M() {}\nfunc F() {}", ["type T", "method M", "function F"]),
    "rust": (
        "struct S;\nimpl fmt::Display for S<T> {\n fn m(&self) {}\n}\ntrait T {\n fn x();\n}\nmacro_rules! k {()=>{}}",
        ["struct S", "impl S", "  function m", "trait T", "  function x", "macro k"],
    ),
    "java": (
        "class A {\n A(){}\n void m(){}\n}\ninterface I {}\nrecord R(int a){}",
        ["class A", "  constructor A", "  method m", "interface I", "record R"],
    ),
    "c": (
        "static char *g(void) {}\nstruct s {int a;};\nint f(struct s x) {\n struct s y;\n}\ntypedef struct {int b;} t;",
        ["function g", "struct s", "function f"],
    ),
    "cpp": (
        "namespace n {\nclass A {\n void m() {}\n};\n}\nvoid n::A::x() {}\ntemplate<class T> T f(T a) {}",
        ["namespace n", "  class A", "    function m", "function n::A::x", "function f"],
    ),
    "csharp": ("namespace N {\nclass A {\n void M() {}\n}\n}", ["namespace N", "  class A", "    method M"]),
    "ruby": (
        "module M\n class A < B\n  def m(a)\n  end\n  def self.s; end\n end\nend",
        ["module M", "  class A", "    method m", "    method s"],
    ),
    "php": (
        "<?php\nclass A {\n function m(){}\n}\nfunction f(){}\ntrait T {}",
        ["class A", "  method m", "function f", "trait T"],
    ),
    "kotlin": (
        "class A {\n fun m() {}\n}\nobject O {}\nfun f() {}",
        ["class A", "  function m", "object O", "function f"],
    ),
    "swift": (
        "class A {\n func m() {}\n init() {}\n}\nprotocol P {\n func q()\n}\nextension A {}",
        ["class A", "  function m", "  constructor init", "protocol P", "  function q", "class A"],
    ),
    "scala": ("class A {\n def m() = 1\n}\nobject O\ntrait T", ["class A", "  function m", "object O", "trait T"]),
    "bash": ("f() {\n echo\n}\nfunction g { echo; }", ["function f", "function g"]),
}


@pytest.mark.parametrize("grammar", sorted(set(GRAMMARS.values())))
def test_what_is_defined_is_found(grammar: str) -> None:
    text, expected = TEXTS[grammar]
    assert [line.partition(" · ")[0] for line in outline(text, grammar)] == expected


def test_lines_are_counted_from_one() -> None:
    assert outline("\nfunction f() {\n}\n", "javascript") == ["function f · lines 2-3"]


def test_it_stops_when_the_time_is_up() -> None:
    times = iter([0.0, *[1.0] * 1000])
    assert outline("function f() {}\n" * 2000, "javascript", lambda: next(times)) == []


def test_there_is_an_end_to_what_is_found() -> None:
    assert len(outline("function f() {}\n" * (MOST_DEFINITIONS + 5), "javascript")) == MOST_DEFINITIONS


def test_deep_text_is_searched_to_a_depth() -> None:
    text = "function f() {\n" * 60 + "}\n" * 60
    assert 5 < len(outline(text, "javascript")) < 60


def test_names_are_of_one_line_and_short() -> None:
    [line] = outline(f"class A::\n  B{'x' * 200} {{\n}};", "cpp")
    name = line.removeprefix("class ").partition(" · ")[0]
    assert name.startswith("A:: Bx")
    assert len(name) == 100


def test_what_has_no_name_is_left_out() -> None:
    assert outline("export default class {\n m() {}\n}", "javascript") == ["method m · lines 2-2"]
    assert outline("struct {\n int a;\n} t;", "c") == []


def test_lines_are_answered_by_lines() -> None:
    sink = io.StringIO()
    serve([json.dumps(["go", "package a\nfunc F() {}"]), json.dumps(["go", ""])], sink)
    assert [json.loads(line) for line in sink.getvalue().splitlines()] == [["function F · lines 2-2"], []]


BLOCKED = """
import socket, runpy, sys
def refuse(*_, **__):
    raise SystemExit("the network was asked")
for name in ("socket", "create_connection", "getaddrinfo"):
    setattr(socket, name, refuse)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("allowed", [700 * 1024**2, resource.RLIM_INFINITY])
def test_memory_is_limited_whatever_the_limit_was(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append((kind, limit)))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    main()
    most = 1024**3 if allowed == resource.RLIM_INFINITY else allowed
    assert limits == [(resource.RLIMIT_AS, (most, most)), (resource.RLIMIT_CORE, (0, 0))]


def test_grammars_come_with_the_wheel_and_from_nowhere_else() -> None:
    questions = "".join(json.dumps([grammar, text]) + "\n" for grammar, (text, _) in TEXTS.items())
    command = [sys.executable, "-I", "-c", BLOCKED, PROGRAM[-1]]
    told = subprocess.run(command, input=questions, capture_output=True, encoding="utf-8", check=True, env={})
    assert all(json.loads(line) for line in told.stdout.splitlines())
    assert len(told.stdout.splitlines()) == len(TEXTS)
