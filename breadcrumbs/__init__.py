"""Breadcrumbs: a tag-based breadcrumb blackboard runtime for agents."""

__version__ = "0.1.0"

__all__ = ["__version__"]
