from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.hints.hints import TRUNCATED, apply_hints, check_hints
from breadcrumbs.runtime.hints.templates import MAX_VIEW_LOOPS, MAX_VIEW_STEPS, MAX_VIEW_TEXT

CONTEXT: dict[str, Any] = {
    "name": "catalog",
    "count": 2,
    "none": None,
    "yes": True,
    "no": False,
    "zero": 0,
    "ratio": 1.5,
    "blank": "",
    "empty": [],
    "hollow": {},
    "html": '<b> & "q"',
    "words": ["a", "b", "c"],
    "user": {"name": "Ann", "id": 7, "größe": "L"},
    "tools": [
        {"name": "search", "schema": {"q": "string", "n": "int"}, "secret": 1},
        {"name": "random", "schema": {}, "secret": 2, "user": {"id": 9}},
    ],
    "matrix": [[1, 2], [3]],
    "metadata": {"public": "yes", "internal_id": "x"},
}


def rule(kind: str, operand: Any) -> dict[str, Any]:
    return {"type": kind, {"extract": "value"}.get(kind, kind): operand}


def view(kind: str, operand: Any, context: dict[str, Any] = CONTEXT) -> Any:
    """Apply one valid rule to a context and return the result."""
    hints = {"transform": {"out": rule(kind, operand)}}
    assert check_hints(hints) == []
    return apply_hints(context, hints)["out"]


# --- include, exclude, mode ---


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["name"], {"name": "catalog"}),
        (["name", "count"], {"name": "catalog", "count": 2}),
        (["absent"], {}),
        (["user.name"], {"user": {"name": "Ann"}}),
        (["user.name", "user.id"], {"user": {"name": "Ann", "id": 7}}),
        (["user", "user.name"], {"user": CONTEXT["user"]}),
        (["user.name", "user"], {"user": CONTEXT["user"]}),
        (["user.absent"], {}),
        (["name.deeper"], {}),
        (["tools.name"], {"tools": [{"name": "search"}, {"name": "random"}]}),
        (["tools[*].name"], {"tools": [{"name": "search"}, {"name": "random"}]}),
        (["$.tools.user.id"], {"tools": [{"user": {"id": 9}}]}),
        (["none"], {"none": None}),
        (["empty"], {"empty": []}),
        (["words.x"], {}),
        ([], CONTEXT),
        (None, CONTEXT),
    ],
)
def test_include_keeps_only_the_listed_paths(paths: Any, expected: dict[str, Any]) -> None:
    assert apply_hints(CONTEXT, {"include": paths}) == expected


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["b"], {"a": {"x": 1, "y": 2}, "c": [{"x": 1, "y": [{"x": 2}]}, 5]}),
        (["a.x"], {"a": {"y": 2}, "b": [[{"x": 1}]], "c": [{"x": 1, "y": [{"x": 2}]}, 5]}),
        (["a.x", "a"], {"b": [[{"x": 1}]], "c": [{"x": 1, "y": [{"x": 2}]}, 5]}),
        (["a", "a.x"], {"b": [[{"x": 1}]], "c": [{"x": 1, "y": [{"x": 2}]}, 5]}),
        (["c.x", "b"], {"a": {"x": 1, "y": 2}, "c": [{"y": [{"x": 2}]}, 5]}),
        (["c[*].y[*].x", "b", "a"], {"c": [{"x": 1, "y": [{}]}, 5]}),
        (["b.x", "a", "c"], {"b": [[{}]]}),
        (["absent", "a.absent", "a.x.deeper"], None),
    ],
)
def test_exclude_removes_the_listed_paths(paths: list[str], expected: dict[str, Any] | None) -> None:
    context = {"a": {"x": 1, "y": 2}, "b": [[{"x": 1}]], "c": [{"x": 1, "y": [{"x": 2}]}, 5]}
    before = copy.deepcopy(context)
    assert apply_hints(context, {"exclude": paths}) == (before if expected is None else expected)
    assert context == before


def test_data_that_is_nested_too_deep_to_search_is_hidden() -> None:
    deep: Any = {"secret": 1}
    for _ in range(3_000):
        deep = [deep]
    for hints in ({"exclude": ["a.secret"]}, {"include": ["a.other"]}):
        seen: Any = apply_hints({"a": deep}, hints).get("a")
        while isinstance(seen, list):
            (seen,) = seen
        assert seen is None


def test_the_order_is_include_then_exclude_then_transform() -> None:
    hints = {
        "include": ["user", "name"],
        "exclude": ["user.id"],
        "transform": {
            "seen": rule("extract", "$"),
            "gone": rule("format", "[{user.id}{count}{context.count}]"),
        },
    }
    kept = {"user": {"name": "Ann", "größe": "L"}, "name": "catalog"}
    assert apply_hints(CONTEXT, hints) == {"seen": kept, "gone": "[]"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({}, {"b": 3, "c": 4}),
        ({"mode": None}, {"b": 3, "c": 4}),
        ({"mode": "replace"}, {"b": 3, "c": 4}),
        ({"mode": "merge"}, {"a": 1, "b": 3, "c": 4}),
    ],
)
def test_the_mode_decides_if_other_fields_stay(mode: dict[str, Any], expected: dict[str, Any]) -> None:
    hints = {"transform": {"b": rule("literal", 3), "c": rule("literal", 4)}, **mode}
    assert apply_hints({"a": 1, "b": 2}, hints) == expected


@pytest.mark.parametrize(
    "hints", [None, {}, {"transform": {}}, {"include": [], "exclude": []}, {"mode": "merge"}]
)
def test_empty_hints_change_nothing(hints: Any) -> None:
    assert check_hints(hints) == []
    assert apply_hints(CONTEXT, hints) == CONTEXT


# --- rules ---


@pytest.mark.parametrize("literal", [None, 0, "text {name}", [1], {"a": None}])
def test_a_literal_is_copied(literal: Any) -> None:
    assert view("literal", literal) == literal


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.absent", None),
        ("$.none", None),
        ("$.name", "catalog"),
        ("name", "catalog"),
        ("$.tools[*].name", ["search", "random"]),
        ("$.tools[*].user.id", 9),
        ("$.words", ["a", "b", "c"]),
        ("$.empty[*]", None),
    ],
)
def test_extract_returns_nothing_one_value_or_a_list(path: str, expected: Any) -> None:
    assert view("extract", path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("no braces", "no braces"),
        ("{name}: {count}", "catalog: 2"),
        ("{ name }", "catalog"),
        ("{absent}|{none}|{user.absent}|{name.x}", "|||"),
        ("{yes} {no} {zero} {ratio}", "true false 0 1.5"),
        ("{user}", '{"name":"Ann","id":7,"größe":"L"}'),
        ("{words} {empty} {hollow}", '["a","b","c"] [] {}'),
        ("{user.name} {context.user.name}", "Ann Ann"),
        ("{words.length} {words.1} {words.9} {user.length}", "3 b  "),
        ("{user.größe}", "L"),
        ("{{name}}", "{name}"),
        ("{{{name}}}", "{catalog}"),
        ('{{"n": {count}}}', '{"n": 2}'),
        ("{html}", '<b> & "q"'),
    ],
)
def test_a_format_is_filled_in(text: str, expected: str) -> None:
    assert view("format", text) == expected


def test_text_from_the_context_is_not_expanded_again() -> None:
    context = {"a": "{b} {{b}}", "b": "secret"}
    assert view("format", "{a}", context) == "{b} {{b}}"
    assert view("template", "{{a}}", context) == "{b} {{b}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("{{name}} {{ name }} {{{name}}} {{{ name }}}", "catalog catalog catalog catalog"),
        ("{{context.name}} {{context.user.name}}", "catalog Ann"),
        ("{{absent}}|{{none}}|{{user.absent.x}}", "||"),
        ("{{yes}} {{no}} {{zero}}", "true false 0"),
        ("{{html}} {{{html}}}", '<b> & "q" <b> & "q"'),
        ("{{user}}", '{"name":"Ann","id":7,"größe":"L"}'),
        ("{{tools.length}} {{context.tools.length}} {{words.0}}", "2 2 a"),
        ('{"a": {"b": {{count}}}}', '{"a": {"b": 2}}'),
        # each
        ("{{#each words}}{{this}},{{/each}}", "a,b,c,"),
        ("{{#each words}}{{.}}{{/each}}", "abc"),
        ("{{#each words}}{{@index}}{{@first}}{{@last}} {{/each}}", "0truefalse 1falsefalse 2falsetrue "),
        ("{{#each words}}{{@key}}{{/each}}", "012"),
        ("{{#each words}}{{this}}{{#unless @last}}, {{/unless}}{{/each}}", "a, b, c"),
        ("{{#each tools}}{{name}}={{this.name}};{{/each}}", "search=search;random=random;"),
        ("{{#each context.tools}}{{name}};{{/each}}", "search;random;"),
        ("{{#each tools}}{{count}}{{/each}}", "22"),
        ("{{#each tools}}{{this.count}}{{/each}}", ""),
        ("{{#each tools}}{{user.name}},{{user.id}};{{/each}}", "Ann,7;,9;"),
        ("{{#each tools}}{{context.name}};{{/each}}", "catalog;catalog;"),
        ("{{#each user}}{{@key}}:{{this}} {{/each}}", "name:Ann id:7 größe:L "),
        ("{{#each user}}{{@index}}{{#if @last}}!{{/if}}{{/each}}", "012!"),
        ("{{#each matrix}}{{#each this}}{{this}}{{/each}};{{/each}}", "12;3;"),
        ("{{#each tools}}{{#each schema}}{{@key}}{{else}}-{{/each}};{{/each}}", "qn;-;"),
        ("{{#each tools}}{{#each schema}}{{else}}{{@index}}{{/each}}{{/each}}", "1"),
        ("{{#each empty}}x{{else}}nothing{{/each}}", "nothing"),
        ("{{#each absent}}x{{else}}nothing{{/each}}", "nothing"),
        ("{{#each name}}x{{else}}nothing{{/each}}", "nothing"),
        ("{{#each hollow}}x{{/each}}", ""),
        ("{{#each this}}{{@key}} {{/each}}", " ".join(CONTEXT) + " "),
        # if and unless
        ("{{#if name}}y{{else}}n{{/if}}", "y"),
        ("{{#if absent}}y{{else}}n{{/if}}", "n"),
        ("{{#if absent}}y{{/if}}", ""),
        ("{{#unless absent}}y{{else}}n{{/unless}}", "y"),
        ("{{#unless name}}y{{else}}n{{/unless}}", "n"),
        ("{{#if none}}y{{else}}n{{/if}}{{#if no}}y{{else}}n{{/if}}{{#if zero}}y{{else}}n{{/if}}", "nnn"),
        (
            "{{#if blank}}y{{else}}n{{/if}}{{#if empty}}y{{else}}n{{/if}}{{#if hollow}}y{{else}}n{{/if}}",
            "nnn",
        ),
        ("{{#if user.id}}{{#if yes}}both{{/if}}{{/if}}", "both"),
        ("{{# if name}}y{{/ if }}", "y"),
        # comments and lines
        ("a{{! no {x} }}b{{!-- {{name}} --}}c", "abc"),
        ("List:\n{{#each words}}\n- {{this}}\n{{/each}}\nend", "List:\n- a\n- b\n- c\nend"),
        ("  {{#if name}}  \r\n  x\n  {{else}}\n  y\n  {{/if}}", "  x\n"),
        ("{{#if name}} x {{/if}}\n", " x \n"),
        ("{{name}}\n{{! gone }}\n{{name}}", "catalog\ncatalog"),
    ],
)
def test_a_template_renders(text: str, expected: str) -> None:
    assert view("template", text) == expected


def test_a_template_of_a_real_rcrt_catalog_renders() -> None:
    context = {
        "activeTools": 1,
        "tools": [
            {
                "name": "random",
                "description": "Numbers",
                "outputSchema": {"properties": {"numbers": {}, "seed": {}}},
                "examples": [1],
            }
        ],
    }
    hints = {
        "exclude": ["tools[*].examples"],
        "transform": {
            "formatted": rule(
                "template",
                "=== TOOLS ({{activeTools}} available) ===\n\n{{#each tools}}• {{name}}: {{description}} → "
                "{{#if outputSchema.properties}}{{#each outputSchema.properties}}{{@key}}"
                "{{#unless @last}}, {{/unless}}{{/each}}{{else}}object{{/if}}\n{{/each}}{{tools.0.examples}}",
            )
        },
        "mode": "replace",
    }
    assert check_hints(hints) == []
    assert apply_hints(context, hints) == {
        "formatted": "=== TOOLS (1 available) ===\n\n• random: Numbers → numbers, seed\n"
    }


def test_a_key_called_context_is_reached_through_the_context() -> None:
    context = {"context": {"name": "inner"}, "name": "outer"}
    assert view("template", "{{context.name}} {{context.context.name}}", context) == "outer inner"


# --- refusals ---


@pytest.mark.parametrize(
    ("hints", "where", "complaint"),
    [
        ("text", "llm_hints", "must be an object"),
        ([], "llm_hints", "must be an object"),
        ({"includes": ["a"]}, "llm_hints.includes", "unknown key"),
        ({"include": "a"}, "llm_hints.include", "must be a list"),
        ({"include": ["a", 1]}, "llm_hints.include[1]", "must be a string"),
        ({"exclude": [""]}, "llm_hints.exclude[0]", "a name is empty"),
        ({"exclude": ["a..b"]}, "llm_hints.exclude[0]", "a name is empty"),
        ({"exclude": ["[*].a"]}, "llm_hints.exclude[0]", "a name is empty"),
        ({"exclude": ["a[0].b"]}, "llm_hints.exclude[0]", "only [*]"),
        ({"exclude": ["a" * 257]}, "llm_hints.exclude[0]", "longer than 256"),
        ({"exclude": [".".join("a" * 33)]}, "llm_hints.exclude[0]", "more than 32 names"),
        ({"exclude": ["a"] * 257}, "llm_hints.exclude", "at most 256"),
        ({"mode": "overlay"}, "llm_hints.mode", "'replace' or 'merge'"),
        ({"mode": ["merge"]}, "llm_hints.mode", "'replace' or 'merge'"),
        ({"transform": []}, "llm_hints.transform", "must be an object"),
        ({"transform": {"x": "$.name"}}, "llm_hints.transform.x", "must be a rule"),
        ({"transform": {"x": {}}}, "llm_hints.transform.x.type", "must be one of format, template"),
        ({"transform": {"x": {"type": "shell"}}}, "llm_hints.transform.x.type", "must be one of"),
        ({"transform": {"x": {"type": ["jq"]}}}, "llm_hints.transform.x.type", "must be one of"),
        (
            {"transform": {"x": {"type": "jq", "query": "."}}},
            "llm_hints.transform.x.type",
            "jq is not supported",
        ),
        ({"transform": {"x": {"type": "literal"}}}, "llm_hints.transform.x.literal", "is missing"),
        ({"transform": {"x": rule("format", 1)}}, "llm_hints.transform.x.format", "must be a string"),
        ({"transform": {"x": rule("extract", None)}}, "llm_hints.transform.x.value", "must be a string"),
        ({"transform": {"x": rule("extract", "$.a[?(1)]")}}, "llm_hints.transform.x.value", "not supported"),
        (
            {"transform": {"x": {**rule("format", ""), "template": ""}}},
            "llm_hints.transform.x.template",
            "a format rule has type and format",
        ),
        ({"transform": {str(n): rule("literal", n) for n in range(33)}}, "llm_hints.transform", "at most 32"),
    ],
)
def test_invalid_hints_are_reported_and_do_not_change_the_context(
    hints: Any, where: str, complaint: str
) -> None:
    found = check_hints(hints)
    assert [c.where for c in found] == [where]
    assert complaint in found[0].message
    assert apply_hints(CONTEXT, hints) == CONTEXT


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "a lone '{' at character 1"),
        ("a}", "a lone '}' at character 2"),
        ("{a", "a lone '{'"),
        ("{a{b}}", "a lone '{'"),
        ("{}", "is not a path"),
        ("{a b}", "is not a path"),
        ("{a!r}", "is not a path"),
        ("{a:>10}", "is not a path"),
        ("{a.__class__()}", "is not a path"),
        ("{a..b}", "is not a path"),
        ("{" + "a" * 257 + "}", "longer than 256"),
        ("a" * 65_537, "longer than 65536"),
    ],
)
def test_a_bad_format_is_refused(text: str, complaint: str) -> None:
    (found,) = check_hints({"transform": {"x": rule("format", text)}})
    assert complaint in found.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{{", "at character 1: {{ is never closed with }}"),
        ("ab{{name", "at character 3: {{ is never closed"),
        ("{{{name}}", "{{{ is never closed with }}}"),
        ("{{!-- x }}", "{{!-- is never closed with --}}"),
        ("{{}}", "a name is missing"),
        ("{{#if}}{{/if}}", "a name is missing"),
        ("{{#}}{{/}}", "unknown block ''"),
        ("{{upper name}}", "unknown helper 'upper'"),
        ("{{#if (eq a b)}}{{/if}}", "unknown helper"),
        ("{{#with user}}{{/with}}", "unknown block 'with'"),
        ("{{> partial}}", "unknown helper '>'"),
        ("{{>partial}}", "is not a path"),
        ("{{name()}}", "is not a path"),
        ("{{a..b}}", "is not a path"),
        ("{{~name~}}", "is not a path"),
        ("{{../name}}", "'../' is not supported"),
        ("{{@index}}", "'@index' is unknown here"),
        ("{{#each a}}{{else}}{{@index}}{{/each}}", "'@index' is unknown here"),
        ("{{#each a}}{{@root}}{{/each}}", "'@root' is unknown here"),
        ("{{#if a}}", "at character 1: {{#if}} is never closed"),
        ("{{#each a}}{{#if b}}{{/each}}{{/if}}", "at character 21: {{/each}} closes no open block"),
        ("{{/if}}", "{{/if}} closes no open block"),
        ("{{/}}", "{{/}} closes no open block"),
        ("{{else}}", "{{else}} is only allowed once, inside a block"),
        ("{{#if a}}{{else}}{{else}}{{/if}}", "{{else}} is only allowed once, inside a block"),
        ("{{#if a}}{{else if b}}{{/if}}", "{{else if}} is not supported"),
        ("{{{#if a}}}{{/if}}", "have two braces"),
        ("{{#if a}}" * 33 + "{{/if}}" * 33, "nest deeper than 32"),
        ("a" * 65_537, "longer than 65536"),
    ],
)
def test_a_bad_template_is_refused(text: str, complaint: str) -> None:
    (found,) = check_hints({"transform": {"x": rule("template", text)}})
    assert complaint in found.message


def test_the_number_of_reported_errors_is_limited() -> None:
    assert len(check_hints({f"x{number}": 1 for number in range(1000)})) == 20


# --- the allowance ---


def test_text_past_the_allowance_is_cut_with_a_marker() -> None:
    context = {"big": "x" * 300_000}
    for kind, text in (("format", "{big}" * 5), ("template", "{{big}}" * 5)):
        out = view(kind, text, context)
        assert out == "x" * MAX_VIEW_TEXT + TRUNCATED


def test_the_allowance_is_shared_by_all_rules_of_a_view() -> None:
    context = {"big": "x" * 600_000}
    hints = {"transform": {key: rule("format", "{big}") for key in "abc"}}
    lengths = {key: len(value.removesuffix(TRUNCATED)) for key, value in apply_hints(context, hints).items()}
    assert lengths == {"a": 600_000, "b": MAX_VIEW_TEXT - 600_000, "c": 0}


def test_loops_past_the_allowance_are_cut_with_a_marker() -> None:
    context = {"rows": [1] * 200}
    nested = "{{#each rows}}{{#each rows}}.{{/each}}{{/each}}"
    out = view("template", nested, context)
    assert out.endswith(TRUNCATED)
    assert MAX_VIEW_LOOPS - 200 <= out.count(".") < MAX_VIEW_LOOPS


def test_a_template_without_output_is_limited() -> None:
    context = {"rows": [1] * MAX_VIEW_LOOPS}
    text = "{{#each rows}}" + "{{absent}}" * 1_000 + "{{/each}}"
    assert MAX_VIEW_LOOPS * 1_000 > MAX_VIEW_STEPS
    assert view("template", text, context) == TRUNCATED


def test_an_extract_cannot_multiply_a_large_document() -> None:
    document: dict[str, Any] = {"a": "x" * 10_000}
    for _ in range(40):
        document = {"a": document}
    out = view("extract", "$..a..a", document)
    assert out[-1] == TRUNCATED
    assert len(json.dumps(out)) < 2 * MAX_VIEW_TEXT


def test_an_extract_from_too_many_values_is_marked_as_incomplete() -> None:
    out = view("extract", "$.rows[*]", {"rows": [0] * 20_000})
    assert out[-1] == TRUNCATED
    assert set(out[:-1]) == {0}


# --- properties ---

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
KEYS = st.sampled_from(["a", "b", "context", "this", "length", "0"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
PATHS = st.sampled_from(["a", "b", "a.b", "this", "a.length", "b.0", "context.a", "c", "this.a"])
SCRAPS = st.sampled_from(
    ["{{", "}}", "{{{", "}}}", "{", "}", "#each ", "/each", "#if ", "/if", "else", "!", " ", "\n"]
)
SOUP = st.lists(SCRAPS | PATHS, max_size=12).map("".join)
WRAPPED = st.builds(
    "{{{{#{0} {1}}}}}{2}{{{{{3}}}}}{{{{else}}}}{4}{{{{/{0}}}}}".format,
    st.sampled_from(["each", "if", "unless"]),
    PATHS,
    st.text(" \nx", max_size=3),
    PATHS,
    st.text(" \nx", max_size=3),
)
RULES = st.one_of(
    st.builds(rule, st.sampled_from(["format", "template", "extract"]), SOUP | PATHS),
    st.builds(rule, st.just("template"), st.lists(WRAPPED, max_size=3).map("".join)),
    st.builds(rule, st.just("literal"), JSON),
    JSON,
)
HINTS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "include": st.lists(PATHS, max_size=3) | JSON,
        "exclude": st.lists(PATHS, max_size=3) | JSON,
        "transform": st.dictionaries(st.text(max_size=3), RULES, max_size=3) | JSON,
        "mode": st.sampled_from(["merge", "replace", None]) | JSON,
    },
)


@given(st.dictionaries(KEYS, JSON, max_size=4), HINTS)
def test_no_combination_of_context_and_hints_raises_or_is_modified(
    context: dict[str, Any], hints: Any
) -> None:
    before = repr((context, hints))
    seen = apply_hints(context, hints)
    assert isinstance(seen, dict)
    if check_hints(hints):
        assert seen is context
    assert repr((context, hints)) == before


WORDLESS = st.recursive(
    st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(KEYS, WORDLESS, max_size=4), st.lists(WRAPPED, max_size=4).map("".join))
def test_well_formed_templates_are_accepted_and_never_show_python(context: dict[str, Any], text: str) -> None:
    out = view("template", text, context)
    assert not any(word in out for word in ("None", "True", "False", "_Missing", "'"))


@given(st.text(max_size=30), st.text(max_size=30))
def test_doubled_braces_are_literal(before: str, after: str) -> None:
    escaped = [part.replace("{", "{{").replace("}", "}}") for part in (before, after)]
    assert view("format", "{name}".join(escaped)) == before + "catalog" + after


@given(st.dictionaries(KEYS, JSON, max_size=4), st.sampled_from(["a", "b", "context"]))
def test_include_and_exclude_of_one_key_partition_the_context(context: dict[str, Any], key: str) -> None:
    kept, left = apply_hints(context, {"include": [key]}), apply_hints(context, {"exclude": [key]})
    assert {**left, **kept}.keys() == context.keys()
    assert not left.keys() & kept.keys()
