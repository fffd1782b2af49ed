"""Checks that PromQL expressions use only metrics and labels that exist."""

from __future__ import annotations

from collections.abc import Mapping, Set

import promql_parser as promql

TARGET_LABELS = frozenset(("instance", "job", "namespace", "pod"))
"""Labels that Prometheus adds to each sample of a target."""


class UnknownName(Exception):
    """An expression uses a metric or a label that does not exist."""


def result_labels(expression: str, metrics: Mapping[str, Set[str]]) -> Set[str]:
    """Parse an expression and return the labels of its result.

    `metrics` has the labels of each sample name. Raise `UnknownName` for other names, and `ValueError` if the
    expression does not parse.
    """
    return _Checker(metrics).labels_of(promql.parse(expression))


class _Checker:
    def __init__(self, metrics: Mapping[str, Set[str]]) -> None:
        self._metrics = metrics

    def labels_of(self, node: promql.Expr) -> Set[str]:
        match node:
            case promql.VectorSelector():
                return self._of_selector(node)
            case promql.MatrixSelector():
                return self._of_selector(node.vector_selector)
            case promql.AggregateExpr():
                return self._of_aggregate(node)
            case promql.BinaryExpr():
                return self._of_binary(node)
            case promql.Call():
                return self._of_call(node)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.labels_of(node.expr)
            case promql.NumberLiteral() | promql.StringLiteral():
                return frozenset()
        raise NotImplementedError(f"no rule for {type(node).__name__}")

    def _of_selector(self, node: promql.VectorSelector) -> Set[str]:
        if node.name is None or node.name not in self._metrics:
            raise UnknownName(f"metric {node.name}")
        labels = self._metrics[node.name] | TARGET_LABELS
        self._require({matcher.name for matcher in node.matchers.matchers}, labels, node)
        return labels

    def _of_aggregate(self, node: promql.AggregateExpr) -> Set[str]:
        labels = self.labels_of(node.expr)
        if str(node.op) in ("topk", "bottomk"):
            return labels
        if node.modifier is None:
            return frozenset()
        named = set(node.modifier.labels)
        self._require(named, labels, node)
        return named if node.modifier.type == promql.AggModifierType.By else labels - named

    def _of_binary(self, node: promql.BinaryExpr) -> Set[str]:
        sides = [
            self.labels_of(side)
            for side in (node.lhs, node.rhs)
            if not isinstance(side, promql.NumberLiteral)
        ]
        if str(node.op) == "or":
            return sides[0] & sides[1]
        matching = node.modifier and node.modifier.matching
        if matching:
            for side in sides:
                self._require(set(matching.labels), side, node)
            return sides[0]
        if len(sides) == 2 and sides[0] != sides[1]:
            # Without `on`, sides with different labels match nothing.
            raise UnknownName(f"sides with different labels in {node.prettify()}")
        return sides[0] if sides else frozenset()

    def _of_call(self, node: promql.Call) -> Set[str]:
        labels: Set[str] = frozenset()
        for argument in node.args:
            labels = labels | self.labels_of(argument)
        if node.func.name == "absent":
            (selector,) = node.args
            return {
                matcher.name for matcher in selector.matchers.matchers if matcher.op == promql.MatchOp.Equal
            }
        if node.func.name == "histogram_quantile":
            if "le" not in labels:
                raise UnknownName(f"label le is lost in {node.prettify()}")
            return labels - {"le"}
        return labels

    @staticmethod
    def _require(names: set[str], labels: Set[str], node: promql.Expr) -> None:
        if unknown := names - labels:
            raise UnknownName(f"label {', '.join(sorted(unknown))} in {node.prettify()}")
